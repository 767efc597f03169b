"""Header gates: each field by itself, and who is known at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from tallystick.compute.profiles import QWEN36_35B_A3B
from tallystick.contracts.codec import decode
from tallystick.contracts.model import ModelShape
from tallystick.errors import EvidenceError, IncomparableError
from tallystick.evidence.adapter.gates import (
    QWEN36_35B_A3B_GATE,
    HeaderGate,
    check_header,
    gate_of,
)
from tallystick.evidence.observer.records import Header, MetadataEntry
from tests.golden import reference_observer as reference


@dataclass(frozen=True)
class Numbers:
    architecture: str
    layers: int
    embedding: int
    vocabulary: int
    experts: int
    experts_used: int
    shape: ModelShape | None
    context_train: int
    parameters: int


PLAIN_SHAPE = ModelShape(4, 2, 16, 16, 128, *(0,) * 11)


def dense(architecture: str) -> Numbers:
    return Numbers(architecture, 2, 64, 100, 0, 0, PLAIN_SHAPE, 4096, 1000)


QWEN = Numbers(
    QWEN36_35B_A3B.architecture,
    QWEN36_35B_A3B.layers,
    QWEN36_35B_A3B.embedding,
    QWEN36_35B_A3B.vocabulary,
    QWEN36_35B_A3B.experts,
    QWEN36_35B_A3B.experts_used,
    QWEN36_35B_A3B.shape,
    262144,
    35951822704,
)
TOY = replace(QWEN, embedding=64, vocabulary=300, context_train=4096, parameters=72831200)
ROPES = {"llama": "norm", "qwen2": "neox", "qwen3": "neox", "gemma3": "neox"}


def header(numbers: Numbers, file_type: int | None = 15) -> Header:
    """Return the header of a transcript of a model with these numbers."""
    family = numbers.architecture
    entries = {
        "general.architecture": family,
        f"{family}.context_length": str(numbers.context_train),
        f"{family}.embedding_length": str(numbers.embedding),
        f"{family}.block_count": str(numbers.layers),
    }
    if file_type is not None:
        entries["general.file_type"] = str(file_type)
        entries["general.quantization_version"] = "2"
    if numbers.experts:
        entries[f"{family}.expert_count"] = str(numbers.experts)
        entries[f"{family}.expert_used_count"] = str(numbers.experts_used)
    plain = decode(Header, reference.header("sketch"))
    model = replace(
        plain.model,
        parameter_count=numbers.parameters,
        file_type=file_type,
        n_ctx_train=numbers.context_train,
        n_embd=numbers.embedding,
        n_layer=numbers.layers,
        n_head=4,
        n_head_kv=2,
        n_vocab=numbers.vocabulary,
        rope_type=ROPES.get(family, "imrope"),
        rope_freq_scale_train="1",
        metadata=tuple(MetadataEntry(*entry) for entry in sorted(entries.items())),
    )
    return replace(plain, model=model)


def with_entry(header: Header, key: str, value: str | None) -> Header:
    entries = {entry.key: entry.value for entry in header.model.metadata}
    if value is None:
        del entries[key]
    else:
        entries[key] = value
    metadata = tuple(MetadataEntry(*entry) for entry in entries.items())
    return replace(header, model=replace(header.model, metadata=metadata))


def test_the_pin_has_the_published_values() -> None:
    pinned = HeaderGate(
        architecture="qwen35moe",
        layers=40,
        blocks=40,
        embedding=2048,
        vocabulary=248320,
        context_train=262144,
        parameters=35951822704,
        experts=256,
        experts_used=8,
        file_type=15,
    )
    assert pinned == QWEN36_35B_A3B_GATE
    check_header(header(QWEN), QWEN36_35B_A3B_GATE)
    assert gate_of(QWEN, file_type=15) == QWEN36_35B_A3B_GATE


@pytest.mark.parametrize("numbers", [TOY, *map(dense, ROPES)], ids=lambda n: n.architecture)
def test_a_gate_for_other_widths(numbers: Numbers) -> None:
    check_header(header(numbers), gate_of(numbers))
    check_header(header(numbers, 7), gate_of(numbers, file_type=7))
    check_header(header(numbers, None), gate_of(numbers))
    with pytest.raises(EvidenceError):
        check_header(header(numbers), QWEN36_35B_A3B_GATE)


MODEL_FIELDS: list[tuple[str, object]] = [
    ("n_layer", 39),
    ("n_embd", 2049),
    ("n_vocab", 248321),
    ("n_ctx_train", 262143),
    ("parameter_count", 35951822703),
    ("rope_freq_scale_train", "0.25"),
    ("file_type", 14),
    ("file_type", None),
]
ENTRIES = [
    ("general.file_type", "14"),
    ("general.quantization_version", "3"),
    ("qwen35moe.context_length", "1"),
    ("qwen35moe.embedding_length", "2049"),
    ("qwen35moe.block_count", "41"),
    ("qwen35moe.expert_count", "255"),
    ("qwen35moe.expert_used_count", "9"),
]


@pytest.mark.parametrize(("field", "value"), MODEL_FIELDS)
def test_each_field_of_the_model_by_itself(field: str, value: object) -> None:
    whole = header(QWEN)
    changed = replace(whole, model=replace(whole.model, **{field: value}))  # type: ignore[arg-type]
    with pytest.raises(EvidenceError, match=rf"model\.{field} contradicts") as refusal:
        check_header(changed, QWEN36_35B_A3B_GATE)
    assert refusal.value.expected != refusal.value.found


@pytest.mark.parametrize(("key", "value"), ENTRIES)
def test_each_entry_of_the_metadata_by_itself(key: str, value: str) -> None:
    for changed in (value, None):
        with pytest.raises(EvidenceError, match=rf"metadata {key} contradicts"):
            check_header(with_entry(header(QWEN), key, changed), QWEN36_35B_A3B_GATE)


def test_heads_and_rotary_embedding_are_free_in_a_hybrid_only() -> None:
    for field, value in (("n_head", 9), ("n_head_kv", 0), ("rope_type", "none")):
        hybrid, plain = header(QWEN), header(dense("llama"))
        free = replace(hybrid, model=replace(hybrid.model, **{field: value}))  # type: ignore[arg-type]
        check_header(free, QWEN36_35B_A3B_GATE)
        pinned = replace(plain, model=replace(plain.model, **{field: value}))  # type: ignore[arg-type]
        with pytest.raises(EvidenceError, match=rf"model\.{field} contradicts"):
            check_header(pinned, gate_of(dense("llama")))


@pytest.mark.parametrize("name", ["expert_count", "expert_used_count"])
def test_a_dense_model_has_no_entries_on_experts(name: str) -> None:
    plain = dense("qwen3")
    with pytest.raises(EvidenceError, match=name):
        check_header(with_entry(header(plain), f"qwen3.{name}", "8"), gate_of(plain))


@pytest.mark.parametrize(
    ("field", "value"),
    [("supports_gpu_offload", True), ("requested_gpu_layers", 999), ("devices", ("GPU",))],
)
def test_a_run_elsewhere_than_on_the_processor(field: str, value: object) -> None:
    whole = header(QWEN)
    changed = replace(whole, runtime=replace(whole.runtime, **{field: value}))  # type: ignore[arg-type]
    with pytest.raises(EvidenceError, match=rf"runtime\.{field} contradicts"):
        check_header(changed, QWEN36_35B_A3B_GATE)


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: gate_of(dense("mamba")),
        lambda: check_header(
            with_entry(header(QWEN), "general.architecture", "mamba"), QWEN36_35B_A3B_GATE
        ),
        lambda: check_header(
            with_entry(header(QWEN), "general.architecture", None), QWEN36_35B_A3B_GATE
        ),
    ],
)
def test_an_unknown_architecture_cannot_be_compared(attempt: Callable[[], object]) -> None:
    with pytest.raises(IncomparableError) as refusal:
        attempt()
    assert refusal.value.exit_code == 3
    for known in ("qwen35moe", "llama", "qwen2", "qwen3", "gemma3"):
        assert known in str(refusal.value.expected)


def test_another_known_architecture_contradicts() -> None:
    with pytest.raises(EvidenceError, match=r"general\.architecture contradicts"):
        check_header(with_entry(header(QWEN), "general.architecture", "llama"), QWEN36_35B_A3B_GATE)


def test_a_key_twice() -> None:
    whole = header(QWEN)
    metadata = (*whole.model.metadata, whole.model.metadata[0])
    with pytest.raises(EvidenceError, match=r"model\.metadata contradicts"):
        check_header(replace(whole, model=replace(whole.model, metadata=metadata)), gate_of(QWEN))


def test_draft_layers_may_be_counted_or_not() -> None:
    assert QWEN.shape is not None
    numbers = replace(QWEN, layers=41, shape=replace(QWEN.shape, draft_layers=1))
    gate, whole = gate_of(numbers), header(numbers)
    assert (gate.figures.layers, gate.blocks) == (40, 41)
    for layers in (40, 41):
        check_header(replace(whole, model=replace(whole.model, n_layer=layers)), gate)
    with pytest.raises(EvidenceError, match="n_layer"):
        check_header(replace(whole, model=replace(whole.model, n_layer=39)), gate)


def test_widths_that_differ_from_layer_to_layer_are_not_pinned() -> None:
    numbers = replace(dense("gemma3"), shape=None)
    assert gate_of(numbers).heads is None
    assert gate_of(numbers).rope_type is None
    check_header(header(numbers), gate_of(numbers))
