"""Runtime manifests: one encoding, ids over every field, and every rule between the parts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from tallystick.canonical.hashing import format_digest
from tallystick.compute.architecture import decode_architecture, encode_architecture
from tallystick.compute.manifest import verify_manifest
from tallystick.compute.rules import RULES_V1, RULES_V2
from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.compute_receipt import TraceEvidence
from tallystick.contracts.manifest import RuntimeManifest
from tallystick.contracts.manifest_facts import (
    ManifestDigests,
    ManifestFacts,
    base_metadata_digest,
    manifest_digests,
)
from tallystick.contracts.manifest_parts import (
    ModelProfile,
    PalwRuntimeClass,
    ShapePolicy,
    ShapeProfile,
    Topology,
    shape_of,
    shape_profile,
)
from tallystick.contracts.platform import LoadedLibrary, PlatformFacts
from tallystick.contracts.runtime import RowClass
from tallystick.errors import EvidenceError
from tests.support.documents import RUNTIME, digest_of
from tests.support.manifests import CONTEXT, example_manifest, example_manifest_facts
from tests.unit.compute.descriptions import FAMILY_NUMBERS

MANIFEST = example_manifest()
PROFILE, CLASS, SHAPE = MANIFEST.model_profile, MANIFEST.runtime_class, MANIFEST.shape_profile
FACTS = MANIFEST.decoded_facts()


def other(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, Topology | ShapePolicy):
        return type(value)(1 - value)
    if isinstance(value, TraceEvidence):
        return TraceEvidence.ABSENT
    if isinstance(value, int):
        return value + 1 if value != 1 else 0
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, bytes):
        return value[:-1] + bytes([value[-1] ^ 1])
    if isinstance(value, RowClass):
        return replace(value, floor=value.floor + 1)
    raise TypeError(type(value).__name__)


def with_facts(facts: ManifestFacts, manifest: RuntimeManifest = MANIFEST) -> RuntimeManifest:
    """Return ``manifest`` with other facts and the digests that follow from them."""
    digests = manifest_digests(
        facts,
        manifest.runtime_class.decoded(),
        adapter_mapping_id=manifest.adapter_mapping_id,
        cu_ruleset_id=manifest.cu_ruleset_id,
        experts=manifest.model_profile.experts,
    )
    return replace(manifest, facts=encode_bytes(facts), digests=digests)


def with_platform(**changes: Any) -> RuntimeManifest:
    return with_facts(replace(FACTS, platform=replace(FACTS.platform, **changes)))


def refused(manifest: RuntimeManifest, words: str) -> None:
    with pytest.raises(EvidenceError, match=words) as caught:
        verify_manifest(manifest)
    assert caught.value.expected is not None


@pytest.mark.parametrize("family", FAMILY_NUMBERS)
def test_a_manifest_comes_back_and_holds(family: str) -> None:
    manifest = example_manifest(family)
    data = manifest.canonical_bytes

    assert RuntimeManifest.decode_strict(data) == manifest
    assert RuntimeManifest.decode_strict(data).canonical_bytes == data
    architecture = verify_manifest(manifest)
    assert architecture == decode_architecture(manifest.model_profile.architecture)
    assert manifest.model_profile.experts == FAMILY_NUMBERS[family].experts


PARTS: tuple[tuple[Any, str], ...] = (
    (PROFILE, "model_profile_id"),
    (CLASS, "runtime_class_id"),
    (SHAPE, "shape_profile_id"),
)
FIELDS = [(part, name, field.name) for part, name in PARTS for field in fields(part)]


@pytest.mark.parametrize(("part", "identity", "field"), FIELDS, ids=lambda v: str(v)[:24])
def test_every_field_is_in_the_id_of_its_part(part: Any, identity: str, field: str) -> None:
    changed = replace(part, **{field: other(getattr(part, field))})

    assert getattr(changed, identity) != getattr(part, identity)
    assert type(part).decode_strict(changed.canonical_bytes) == changed


def manifest_variants() -> dict[str, RuntimeManifest]:
    """Return manifests that differ from MANIFEST in one field each, the parts' fields included."""
    found = {}
    for name in ("version", "trace_capability", "cu_ruleset_id", "adapter_mapping_id", "facts"):
        found[name] = replace(MANIFEST, **{name: other(getattr(MANIFEST, name))})
    for field in fields(ManifestDigests):
        value = other(getattr(MANIFEST.digests, field.name))
        digests = replace(MANIFEST.digests, **{field.name: value})
        found[f"digests.{field.name}"] = replace(MANIFEST, digests=digests)
    for member in ("model_profile", "runtime_class", "shape_profile"):
        part = getattr(MANIFEST, member)
        for field in fields(part):
            changed = replace(part, **{field.name: other(getattr(part, field.name))})
            found[f"{member}.{field.name}"] = replace(MANIFEST, **{member: changed})
    return found


VARIANTS = manifest_variants()
# What nothing else in the manifest repeats (of the architecture, its last flag): the receipt and
# the model itself bind these.
FREE = {
    "model_profile.architecture",
    "model_profile.name",
    "model_profile.rope",
    "model_profile.native_context_tokens",
    "model_profile.parameters",
    "model_profile.model_digest",
    "model_profile.model_bytes",
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_field_is_in_the_hash_and_held_to_the_others(name: str) -> None:
    changed = VARIANTS[name]

    assert changed.runtime_manifest_hash != MANIFEST.runtime_manifest_hash
    assert RuntimeManifest.decode_strict(changed.canonical_bytes) == changed
    if name in FREE:
        verify_manifest(changed)
    else:
        with pytest.raises(EvidenceError):
            verify_manifest(changed)


def test_ids_differ_between_kinds_of_parts() -> None:
    ids = {
        MANIFEST.model_profile_id,
        MANIFEST.runtime_class_id,
        MANIFEST.shape_profile_id,
        MANIFEST.runtime_manifest_hash,
    }

    assert len(ids) == 4
    assert {len(identity) for identity in ids} == {32}


@pytest.mark.parametrize("rules", [RULES_V1, RULES_V2])
def test_other_rulesets_are_accepted_with_their_digests(rules: Any) -> None:
    manifest = with_facts(FACTS, replace(MANIFEST, cu_ruleset_id=rules.ruleset_id))

    verify_manifest(manifest)


def test_an_unknown_ruleset_or_mapping_is_refused() -> None:
    unknown = bytes(31) + b"\1"
    refused(with_facts(FACTS, replace(MANIFEST, cu_ruleset_id=unknown)), "cu_ruleset_id")
    refused(with_facts(FACTS, replace(MANIFEST, adapter_mapping_id=unknown)), "adapter_mapping_id")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden": 258}, "hidden"),
        ({"heads": 8, "heads_kv": 3}, "heads"),
        ({"heads_kv": 0}, "heads_kv"),
        ({"layers": 0}, "layers"),
        ({"vocabulary": 0}, "vocabulary"),
        ({"parameters": 0}, "parameters"),
        ({"name": ""}, "name"),
        ({"rope": ""}, "rope"),
        ({"experts": 4}, "experts"),
        ({"topology": Topology.MIXTURE_OF_EXPERTS}, "experts_used"),
        ({"topology": Topology.MIXTURE_OF_EXPERTS, "experts": 2, "experts_used": 3}, "experts_us"),
        ({"model_digest": bytes(32)}, "model_digest"),
        ({"tokenizer_digest": bytes(32)}, "tokenizer_digest"),
        ({"architecture": b""}, "architecture"),
        ({"version": 2}, "version"),
    ],
)
def test_rules_of_a_profile(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(EvidenceError, match=f"bad field {words}"):
        replace(PROFILE, **changes).validate()


def test_the_head_width_is_independent_of_the_hidden_width() -> None:
    wide = decode_architecture(PROFILE.architecture)
    mixer: Any = wide.layers[0].mixer
    mixer = replace(mixer, key_width=80)
    layers = tuple(replace(layer, mixer=mixer) for layer in wide.layers)
    architecture = encode_architecture(replace(wide, layers=layers))

    profile = replace(PROFILE, head_width=80, architecture=architecture)

    assert verify_manifest(replace(MANIFEST, model_profile=profile)).layers == layers


@pytest.mark.parametrize("field", ["layers", "hidden", "head_width", "feed_forward", "vocabulary"])
def test_a_profile_says_what_its_architecture_says(field: str) -> None:
    value = 2 * getattr(PROFILE, field)

    refused(replace(MANIFEST, model_profile=replace(PROFILE, **{field: value})), field)


def test_layers_of_two_sizes_have_no_profile() -> None:
    mixed = decode_architecture(PROFILE.architecture)
    mixer: Any = mixed.layers[0].mixer
    mixer = replace(mixer, heads_kv=1)
    layers = (replace(mixed.layers[0], mixer=mixer), *mixed.layers[1:])
    profile = replace(PROFILE, architecture=encode_architecture(replace(mixed, layers=layers)))

    refused(replace(MANIFEST, model_profile=profile), "no model profile")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"flash_attention": 1}, "flash_attention"),
        ({"mapped_weights": 0}, "mapped_weights"),
        ({"repacked_weights": 1}, "repacked_weights"),
        ({"offloaded_layers": 1}, "offloaded_layers"),
        ({"cache_key_type": "q8_0"}, "cache_key_type"),
        ({"cache_value_type": "f32"}, "cache_value_type"),
        ({"split_mode": "layer"}, "split_mode"),
        ({"quantization": ""}, "quantization"),
        ({"quantization": "F16"}, "quantization"),
        ({"runtime_class": b"{}"}, "runtime class"),
    ],
)
def test_rules_of_a_runtime_class(changes: dict[str, Any], words: str) -> None:
    refused(replace(MANIFEST, runtime_class=replace(CLASS, **changes)), words)


def test_the_runtime_class_is_the_receipt_s_own() -> None:
    assert CLASS.runtime_class == encode_bytes(RUNTIME)
    assert CLASS.decoded() == RUNTIME
    assert CLASS.quantization == "F32+Q8_0"


def test_a_shape_follows_from_class_and_context() -> None:
    assert shape_of(RUNTIME, CONTEXT) == SHAPE
    assert (SHAPE.max_prefill_tokens, SHAPE.max_generated_tokens) == (510, 510)
    large = shape_of(RUNTIME, 8192)
    assert (large.max_prefill_tokens, large.max_generated_tokens) == (8190, 1024)


@pytest.mark.parametrize(
    "counts", [(1, 1), (510, 1), (1, 510), (255, 256)], ids=lambda counts: f"{counts}"
)
def test_counts_that_fit(counts: tuple[int, int]) -> None:
    SHAPE.verify_shape(*counts)


@pytest.mark.parametrize("counts", [(0, 1), (1, 0), (511, 1), (1, 511), (256, 256), (-1, 4)])
def test_counts_that_do_not_fit(counts: tuple[int, int]) -> None:
    with pytest.raises(EvidenceError, match=r"tokens is outside|beyond the shape"):
        SHAPE.verify_shape(*counts)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_prefill_tokens": 511},
        {"max_generated_tokens": 1},
        {"chunk_rule": "other"},
        {"prompt_class": RowClass(0, 4)},
        {"decode_class": RowClass(8, 4)},
    ],
)
def test_rules_of_a_shape(changes: dict[str, Any]) -> None:
    with pytest.raises(EvidenceError, match=f"bad field {next(iter(changes))}"):
        replace(SHAPE, **changes).validate()


@pytest.mark.parametrize("context", [1, 2, 4095, 4097])
def test_contexts_without_room_or_of_another_policy_are_refused(context: int) -> None:
    one = RowClass(1, 1)
    sequential = shape_profile(ShapePolicy.SEQUENTIAL, context, one, one)
    with pytest.raises(EvidenceError, match="context_tokens"):
        sequential.validate()
    shape_profile(ShapePolicy.SEQUENTIAL, 4096, one, one).validate()
    with pytest.raises(EvidenceError, match="context_tokens"):
        shape_profile(ShapePolicy.ROW_CLASS, 2, RowClass(2, 4), RowClass(2, 4)).validate()


def test_shape_and_runtime_class_agree() -> None:
    sequential = shape_profile(ShapePolicy.SEQUENTIAL, 4096, RowClass(2, 512), RowClass(2, 512))
    refused(replace(MANIFEST, shape_profile=sequential), "policy")
    narrow = shape_profile(ShapePolicy.ROW_CLASS, CONTEXT, RowClass(2, 8), RowClass(2, 512))
    refused(replace(MANIFEST, shape_profile=narrow), "prompt_class")


FACT_CHANGES: tuple[tuple[Callable[[ManifestFacts], ManifestFacts], str], ...] = (
    (lambda f: replace(f, tokenizer_model="other"), "tokenizer_digest"),
    (lambda f: replace(f, tokenizer_digest=digest_of("x")), "tokenizer_digest"),
    (lambda f: replace(f, chat_template_digest=digest_of("x")), "chat_template_digest"),
    (lambda f: replace(f, base_metadata=example_manifest_facts().base_metadata), "base_metadata"),
    (lambda f: replace(f, weight_types=f.weight_types[:1]), "quantization"),
    (lambda f: replace(f, weight_types=f.weight_types[::-1]), "weight types"),
    (lambda f: replace(f, engine=replace(f.engine, library=digest_of("x"))), "engine"),
)


@pytest.mark.parametrize(("change", "words"), FACT_CHANGES, ids=[w for _, w in FACT_CHANGES])
def test_facts_are_held_to_the_parts(
    change: Callable[[ManifestFacts], ManifestFacts], words: str
) -> None:
    refused(with_facts(change(FACTS)), words)


@pytest.mark.parametrize("field", [field.name for field in fields(PlatformFacts)])
def test_other_platforms_have_other_digests(field: str) -> None:
    value: Any = getattr(FACTS.platform, field)
    if field == "libraries":
        changed: Any = (*value, LoadedLibrary("libz.so", digest_of("z")))
    elif field == "environment":
        changed = (*value, "TZ=UTC")
    else:
        first = fields(value)[-1].name
        other_value = digest_of("other") if first in ("record", "sources") else "other"
        changed = replace(value, **{first: other_value})
    manifest = with_platform(**{field: changed})

    verify_manifest(manifest)
    assert manifest.digests != MANIFEST.digests
    refused(replace(manifest, digests=MANIFEST.digests), "runtime manifest: bad field")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("LD_PRELOAD=x", "LD_PRELOAD"),
        ("PYTHONPATH=/secret", "PYTHONPATH"),
        ("LANG", "LANG"),
        ("", "variable"),
    ],
)
def test_variables_that_no_child_has_are_refused(text: str, words: str) -> None:
    with pytest.raises(EvidenceError, match="variable") as caught:
        verify_manifest(with_platform(environment=(text,)))
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("names", [("b", "a"), ("a", "a")], ids=["not sorted", "twice"])
def test_lists_have_one_order(names: tuple[str, ...]) -> None:
    engine = LoadedLibrary("0", FACTS.engine.library)
    libraries = (engine, *(LoadedLibrary(name, digest_of("same")) for name in names))
    refused(with_platform(libraries=libraries), "libraries are not in order")


def test_libraries_of_one_name_may_both_be_loaded() -> None:
    pair = sorted(format_digest(bytes([number]) * 32) for number in (1, 2))
    engine = LoadedLibrary("0", FACTS.engine.library)
    both = (engine, *(LoadedLibrary("libgomp.so.1", digest) for digest in pair))
    verify_manifest(with_platform(libraries=both))


def test_metadata_files_are_in_the_profile() -> None:
    facts = example_manifest_facts()
    profile = replace(PROFILE, base_metadata_digest=base_metadata_digest(facts.base_metadata))

    verify_manifest(replace(with_facts(facts), model_profile=profile))


@pytest.mark.parametrize("part", [MANIFEST, PROFILE, CLASS, SHAPE], ids=lambda p: type(p).__name__)
def test_cut_and_prolonged_encodings_are_refused(part: Any) -> None:
    data = part.canonical_bytes
    kind: Any = type(part)
    for end in {0, 1, 2, len(data) // 2, len(data) - 1}:
        with pytest.raises(EvidenceError):
            kind.decode_strict(data[:end])
    with pytest.raises(EvidenceError, match="bytes after the end"):
        kind.decode_strict(data + b"\0")


def test_numbers_that_name_no_kind_and_texts_that_are_none_are_refused() -> None:
    data = bytearray(SHAPE.canonical_bytes)
    data[2] = 2
    with pytest.raises(EvidenceError, match="not one of the kinds"):
        ShapeProfile.decode_strict(bytes(data))
    data = bytearray(PROFILE.canonical_bytes)
    data[6] = 0xFF
    with pytest.raises(EvidenceError, match="not UTF-8"):
        ModelProfile.decode_strict(bytes(data))
    data = bytearray(CLASS.canonical_bytes)
    data[-5] = 2
    with pytest.raises(EvidenceError, match="not one of the kinds"):
        PalwRuntimeClass.decode_strict(bytes(data))


def test_nothing_in_the_text_of_the_facts_is_hidden_by_another_spelling() -> None:
    spaced = re.sub(rb'","', b'", "', MANIFEST.facts, count=1)
    refused(replace(MANIFEST, facts=spaced), "manifest facts")
