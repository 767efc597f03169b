"""The shipped profile pins: the published values, and how models are held to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tallystick.compute.profiles import QWEN36_35B_A3B
from tallystick.contracts.model import ModelFacts, WeightType
from tallystick.contracts.runtime import EngineBuild
from tallystick.engine.libllama.pins import ENGINE_NAME, PINS
from tallystick.errors import IncomparableError, InputError
from tallystick.models.catalogue import CATALOGUE
from tallystick.models.manifest import PinnedFacts, model_profile
from tallystick.models.profiles import (
    find_profile,
    profile_names,
    profile_pin,
    require_profile,
    require_runtime,
)
from tests.support.documents import ENGINE, digest_of, example_facts
from tests.support.manifests import example_profile_pin, family_facts

QWEN = "qwen3.6-35b-a3b-abliterated"
GGUF = "1dc494614bee8a3bc00e79fe5a49da0fc1c36b3b118c4156e223e98e5a0a671b"
MODEL = digest_of("model")


def qwen_facts() -> ModelFacts:
    """Return the facts of the published file, as far as they are published."""
    numbers = QWEN36_35B_A3B
    return replace(
        example_facts(),
        architecture=numbers.architecture,
        layers=numbers.layers,
        embedding=numbers.embedding,
        vocabulary=numbers.vocabulary,
        experts=numbers.experts,
        experts_used=numbers.experts_used,
        shape=numbers.shape,
        context_train=262144,
        parameters=35_951_822_704,
        weight_types=(WeightType("Q4_K", 1, 1),),
    )


def test_the_published_values() -> None:
    pin = profile_pin(QWEN)

    assert pin.inference_artifact.sha256 == pin.inference_artifact.revision == GGUF
    assert pin.inference_artifact.bytes == 23_938_321_728
    assert pin.inference_artifact.tag == "35b-Claude-4.7"
    assert pin.base_artifact.revision == "ac18882735d037f6074a7630eb68d85db8234c25"
    assert [file.path for file in pin.base_artifact.files] == [
        "README.md",
        "chat_template.jinja",
        "config.json",
        "model.safetensors.index.json",
        "processor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    model = pin.model
    assert (model.architecture, model.model_type) == (
        "Qwen3_5MoeForConditionalGeneration",
        "qwen3_5_moe",
    )
    assert (model.hidden_size, model.num_attention_heads, model.head_dim) == (2048, 16, 256)
    assert (model.rope, model.rope_theta) == ("Qwen3.5-iMRoPE", 10_000_000)


def test_every_pin_is_for_a_model_and_engine_that_are_known() -> None:
    assert profile_names() == tuple(sorted(CATALOGUE))
    for name in profile_names():
        pin, entry = profile_pin(name), CATALOGUE[name]
        assert entry.digest == "sha256:" + pin.inference_artifact.sha256
        assert entry.size == pin.inference_artifact.bytes
        for build in PINS:
            require_runtime(pin, EngineBuild(ENGINE_NAME, build.version, build.library))


def test_a_pin_is_found_by_the_digest_of_its_file_or_of_what_it_was_derived_from() -> None:
    assert find_profile("sha256:" + GGUF) == profile_pin(QWEN)
    assert find_profile(digest_of("derived"), "sha256:" + GGUF) == profile_pin(QWEN)
    assert find_profile(digest_of("derived")) is None
    with pytest.raises(InputError, match="no such model profile"):
        profile_pin("../registry")


def test_the_published_numbers_fit_the_pin_and_make_its_profile() -> None:
    pin, size = profile_pin(QWEN), 23_938_321_728

    profile = model_profile(PinnedFacts(qwen_facts(), "sha256:" + GGUF, size, pin))

    assert profile.name == "Qwen3.6-35B-A3B-Claude-4.7-Opus-abliterated-Q4_K_M"
    assert (profile.hidden // profile.heads, profile.head_width) == (128, 256)
    assert profile.rope == "Qwen3.5-iMRoPE"
    assert profile.parameters == 35_951_822_704
    assert profile.layers == 40


def test_a_file_derived_from_the_pinned_one_keeps_the_name_and_not_the_size() -> None:
    facts = replace(qwen_facts(), parameters=34_660_610_688)
    derived = PinnedFacts(facts, digest_of("derived"), 22_000_000_000, profile_pin(QWEN))

    profile = model_profile(derived)

    assert profile.name == profile_pin(QWEN).profile_name
    assert profile.model_bytes == 22_000_000_000


FACTS = family_facts("llama")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"architecture": "qwen2"}, "gguf_architecture"),
        ({"embedding": 512}, "hidden_size"),
        ({"layers": 4}, "num_hidden_layers"),
        ({"vocabulary": 1001}, "vocab_size"),
        ({"context_train": 513}, "max_position_embeddings"),
        ({"experts": 4}, "expert_count"),
        ({"experts_used": 4}, "experts_per_token"),
        ({"parameters": 1}, "parameters"),
        ({"shape": {"heads": 2}}, "num_attention_heads"),
        ({"shape": {"heads_kv": 4}}, "num_key_value_heads"),
        ({"shape": {"key_length": 32}}, "head_dim"),
        ({"shape": {"feed_forward": 1}}, "intermediate_size"),
        ({"shape": {"ssm_kernel": 1}}, "linear_conv_kernel_dim"),
        ({"shape": {"ssm_state": 1}}, "linear_key_head_dim"),
        ({"shape": {"ssm_inner": 1}}, "linear_value_head_dim"),
        ({"shape": {"ssm_groups": 1}}, "linear_num_key_heads"),
        ({"shape": {"ssm_rank": 1}}, "linear_num_value_heads"),
    ],
    ids=str,
)
def test_a_model_that_differs_from_its_pin_is_not_used(changes: Any, field: str) -> None:
    pin = example_profile_pin()
    require_profile(pin, FACTS, MODEL, 2**40)
    if "shape" in changes:
        assert FACTS.shape is not None
        changes = {"shape": replace(FACTS.shape, **changes["shape"])}

    with pytest.raises(IncomparableError, match="is not what the model's profile") as caught:
        require_profile(pin, replace(FACTS, **changes), MODEL, 2**40)

    assert str(caught.value.expected).startswith(field + " ")


def test_the_size_of_the_very_file_is_pinned() -> None:
    with pytest.raises(IncomparableError, match=r"inference_artifact\.bytes"):
        require_profile(example_profile_pin(), FACTS, MODEL, 2**40 + 1)


@pytest.mark.parametrize("field", ["name", "version"])
def test_another_engine_than_the_pin_s_is_refused(field: str) -> None:
    require_runtime(example_profile_pin(), ENGINE)
    with pytest.raises(IncomparableError, match="the engine is not what"):
        require_runtime(example_profile_pin(), replace(ENGINE, **{field: "other"}))
