"""Whether a transcript's header is that of the model it is said to be of.

A gate is made for one model: exactly pinned numbers where they are published, else the numbers of
the model file's facts (docs/spec/evidence.md#header-gates).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Protocol

from tallystick.compute.families import FAMILIES, ModelNumbers
from tallystick.compute.profiles import QWEN36_35B_A3B
from tallystick.errors import EvidenceError, IncomparableError
from tallystick.evidence.adapter.nodes import ModelFigures
from tallystick.evidence.observer.sealing import AnyHeader

#: The only version of ggml's quantisation formats that engines load.
QUANTIZATION_VERSION: Final = 2
#: How the position embedding is laid out, by the engine's name, where all layers are alike.
_ROPE_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "llama": "norm",
        "qwen2": "neox",
        "qwen3": "neox",
        "qwen3moe": "neox",
        "gemma2": "neox",
        "gemma3": "neox",
    }
)


class GatedNumbers(ModelNumbers, Protocol):
    """What a gate needs of a model's facts."""

    @property
    def context_train(self) -> int:
        """Trained context in tokens."""

    @property
    def parameters(self) -> int:
        """Elements of all tensors."""


@dataclass(frozen=True, slots=True)
class HeaderGate:
    """The values that a header must have. None: not pinned.

    ``layers`` are those that run, ``blocks`` those in the file; ``experts`` and ``experts_used``
    are 0 for a dense model.
    """

    architecture: str
    layers: int
    blocks: int
    embedding: int
    vocabulary: int
    context_train: int
    parameters: int
    experts: int
    experts_used: int
    heads: int | None = None
    heads_kv: int | None = None
    rope_type: str | None = None
    file_type: int | None = None
    rope_frequency_scale: str = "1"

    @property
    def figures(self) -> ModelFigures:
        """What the adapter has to know of the model."""
        return ModelFigures(self.layers, self.experts, self.experts_used)


#: The published values of Qwen3.6-35B-A3B, quantised as Q4_K_M.
QWEN36_35B_A3B_GATE: Final = HeaderGate(
    architecture=QWEN36_35B_A3B.architecture,
    layers=QWEN36_35B_A3B.layers,
    blocks=QWEN36_35B_A3B.layers,
    embedding=QWEN36_35B_A3B.embedding,
    vocabulary=QWEN36_35B_A3B.vocabulary,
    context_train=262_144,
    parameters=35_951_822_704,
    experts=QWEN36_35B_A3B.experts,
    experts_used=QWEN36_35B_A3B.experts_used,
    file_type=15,
)


def gate_of(
    numbers: GatedNumbers, *, file_type: int | None = None, rope_frequency_scale: str = "1"
) -> HeaderGate:
    """Return the gate for a model with these numbers.

    In hybrid models heads and rotary embedding differ from layer to layer, so they are pinned for
    other families only. Raises IncomparableError for an unknown architecture.
    """
    _require_known(numbers.architecture)
    shape = numbers.shape
    draft = 0 if shape is None else shape.draft_layers
    gate = HeaderGate(
        architecture=numbers.architecture,
        layers=numbers.layers - draft,
        blocks=numbers.layers,
        embedding=numbers.embedding,
        vocabulary=numbers.vocabulary,
        context_train=numbers.context_train,
        parameters=numbers.parameters,
        experts=numbers.experts,
        experts_used=numbers.experts_used,
        file_type=file_type,
        rope_frequency_scale=rope_frequency_scale,
    )
    if shape is None or numbers.architecture not in _ROPE_TYPES:
        return gate
    return replace(
        gate,
        heads=shape.heads,
        heads_kv=shape.heads_kv or shape.heads,
        rope_type=_ROPE_TYPES[numbers.architecture],
    )


def check_header(header: AnyHeader, gate: HeaderGate) -> None:
    """Require that ``header`` is of the model of ``gate``, run on the processor.

    Raises IncomparableError for a header of an unknown architecture, EvidenceError naming the first
    field that contradicts the gate.
    """
    metadata = {entry.key: entry.value for entry in header.model.metadata}
    if len(metadata) != len(header.model.metadata):
        raise _misfit("model.metadata", "each key once", "a key twice")
    _require_known(metadata.get("general.architecture", ""))
    for field, expected, found in (*_fields(header, gate), *_entries(header, gate, metadata)):
        if expected != found:
            raise _misfit(field, _text(expected), _text(found))


def _fields(header: AnyHeader, gate: HeaderGate) -> Iterator[tuple[str, object, object]]:
    model, runtime = header.model, header.runtime
    layers = gate.blocks if model.n_layer == gate.blocks else gate.layers
    yield "model.n_layer", layers, model.n_layer
    yield "model.n_embd", gate.embedding, model.n_embd
    yield "model.n_vocab", gate.vocabulary, model.n_vocab
    yield "model.n_ctx_train", gate.context_train, model.n_ctx_train
    yield "model.parameter_count", gate.parameters, model.parameter_count
    yield "model.rope_freq_scale_train", gate.rope_frequency_scale, model.rope_freq_scale_train
    for field, pinned, found in (
        ("file_type", gate.file_type, model.file_type),
        ("n_head", gate.heads, model.n_head),
        ("n_head_kv", gate.heads_kv, model.n_head_kv),
        ("rope_type", gate.rope_type, model.rope_type),
    ):
        if pinned is not None:
            yield f"model.{field}", pinned, found
    yield "runtime.supports_gpu_offload", False, runtime.supports_gpu_offload
    yield "runtime.requested_gpu_layers", 0, runtime.requested_gpu_layers
    yield "runtime.devices", (), runtime.devices


def _entries(
    header: AnyHeader, gate: HeaderGate, metadata: Mapping[str, str]
) -> Iterator[tuple[str, object, object]]:
    required: dict[str, int | None] = {
        "context_length": gate.context_train,
        "embedding_length": gate.embedding,
        "block_count": gate.blocks,
        # A dense model has no entries on experts at all.
        "expert_count": gate.experts or None,
        "expert_used_count": gate.experts_used or None,
    }
    yield _entry(metadata, "general.architecture", gate.architecture)
    for name, value in required.items():
        yield _entry(metadata, f"{gate.architecture}.{name}", value)
    file_type = header.model.file_type
    yield _entry(metadata, "general.file_type", file_type)
    if "general.quantization_version" in metadata or gate.file_type is not None:
        yield _entry(metadata, "general.quantization_version", QUANTIZATION_VERSION)


def _entry(
    metadata: Mapping[str, str], key: str, value: int | str | None
) -> tuple[str, object, object]:
    return f"model.metadata {key}", None if value is None else str(value), metadata.get(key)


def _require_known(architecture: str) -> None:
    if architecture not in FAMILIES:
        raise IncomparableError(
            "no evidence is defined for this architecture",
            expected=" or ".join(FAMILIES),
            found=ascii(architecture[:40]),
        )


def _text(value: object) -> str:
    return "none" if value is None or value == () else ascii(value)[:80]


def _misfit(field: str, expected: str, found: str) -> EvidenceError:
    return EvidenceError(
        f"the header's {field} contradicts the model's profile", expected=expected, found=found
    )
