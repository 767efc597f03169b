"""Building manifests: names, pins, and models that cannot have one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tallystick.compute.manifest import verify_manifest
from tallystick.contracts.manifest_facts import MetadataFile, base_metadata_digest
from tallystick.contracts.model import WeightType
from tallystick.contracts.runtime import RowClass
from tallystick.errors import IncomparableError, InputError
from tallystick.models.manifest import build_manifest, model_profile
from tests.support.documents import RUNTIME, digest_of
from tests.support.manifests import example_model, example_profile_pin, example_runtime

MODEL = example_model()
RUNS = example_runtime()


def with_facts(**changes: Any) -> Any:
    return replace(MODEL, facts=replace(MODEL.facts, **changes))


def test_equal_arguments_give_equal_bytes() -> None:
    first = build_manifest(MODEL, RUNS)

    assert build_manifest(example_model(), example_runtime()).canonical_bytes == (
        first.canonical_bytes
    )
    assert first.model_profile == model_profile(MODEL)


def test_the_profile_does_not_depend_on_the_machine() -> None:
    platform = replace(RUNS.platform, environment=("LANG=C",))
    other = replace(
        RUNS,
        platform=platform,
        context_tokens=1024,
        runtime_class=replace(RUNTIME, prompt_class=RowClass(4, 8), decode_class=RowClass(4, 8)),
    )

    here, there = build_manifest(MODEL, RUNS), build_manifest(MODEL, other)

    assert here.model_profile_id == there.model_profile_id
    assert here.runtime_class_id != there.runtime_class_id
    assert here.shape_profile_id != there.shape_profile_id
    assert here.runtime_manifest_hash != there.runtime_manifest_hash


def test_names() -> None:
    assert model_profile(MODEL).name == "example"
    assert model_profile(with_facts(name="")).name == "unnamed llama"
    assert model_profile(with_facts(name="\u732b" * 200)).canonical_bytes
    pinned = model_profile(replace(MODEL, profile=example_profile_pin()))
    assert (pinned.name, pinned.rope) == ("Example-Q8_0", "RoPE")
    assert model_profile(MODEL).rope == "model-file"


def test_a_pinned_model_runs_on_the_pinned_engine_only() -> None:
    model = replace(MODEL, profile=example_profile_pin())
    verify_manifest(build_manifest(model, RUNS))
    with pytest.raises(IncomparableError, match="the engine is not what"):
        build_manifest(model, replace(RUNS, engine=replace(RUNS.engine, version="other")))


def test_metadata_counts_when_every_digest_is_published() -> None:
    pin = example_profile_pin()
    digest = "ab" * 32
    files = tuple(replace(file, sha256=digest) for file in pin.base_artifact.files[::-1])
    some = (*files[:6], replace(files[6], sha256=None))
    named = tuple(MetadataFile(file.path, f"sha256:{digest}") for file in files[::-1])

    for chosen, expected in ((pin.base_artifact.files, ()), (some, ()), (files, named)):
        base = replace(pin.base_artifact, files=chosen)
        model = replace(MODEL, profile=replace(pin, base_artifact=base))
        manifest = build_manifest(model, RUNS)
        assert manifest.decoded_facts().base_metadata == expected
        assert manifest.model_profile.base_metadata_digest == base_metadata_digest(expected)


def test_weight_types_have_one_order() -> None:
    types = (WeightType("Q6_K", 1, 1), WeightType("F32", 2, 2), WeightType("Q4_K", 3, 3))

    manifest = build_manifest(with_facts(weight_types=types), RUNS)

    assert manifest.runtime_class.quantization == "F32+Q4_K+Q6_K"


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"architecture": "mamba"}, IncomparableError, "not defined for this architecture"),
        ({"shape": None}, IncomparableError, "differ from layer to layer"),
        ({"embedding": 258}, IncomparableError, "bad field hidden"),
        ({"context_train": 0}, IncomparableError, "bad field native_context_tokens"),
        ({"vocabulary": 0}, InputError, "no usable vocabulary"),
        ({"weight_types": ()}, IncomparableError, "bad field quantization"),
    ],
    ids=str,
)
def test_models_without_a_manifest(changes: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        build_manifest(with_facts(**changes), RUNS)


@pytest.mark.parametrize("changes", [{"embedding": 258}, {"context_train": 0}], ids=str)
def test_a_profile_s_rules_are_checked_before_anything_runs(changes: Any) -> None:
    with pytest.raises(IncomparableError, match="model profile: bad field"):
        model_profile(with_facts(**changes))


def test_a_context_without_room_is_refused() -> None:
    with pytest.raises(IncomparableError, match="context_tokens"):
        build_manifest(MODEL, replace(RUNS, context_tokens=2))


def test_an_engine_that_was_not_loaded_is_refused() -> None:
    engine = replace(RUNS.engine, library=digest_of("other"))
    with pytest.raises(IncomparableError, match="not among the loaded libraries"):
        build_manifest(MODEL, replace(RUNS, engine=engine))
