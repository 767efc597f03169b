"""The canonical operations and their encoding (docs/spec/compute-units.md#operations).

An operation says what is computed and on what size, never how. Its encoding is one byte for the
kind (``tag``), then its fields in order: u32, or u64 where a field counts bytes or elements.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, get_type_hints

from tallystick.canonical.codec import BinaryReader, BinaryWriter
from tallystick.errors import InputError

U32 = Annotated[int, 32]
U64 = Annotated[int, 64]


@dataclass(frozen=True, slots=True)
class Operation:
    """What all operations share: a kind, and fields within their widths (else InputError)."""

    tag: ClassVar[int]
    name: ClassVar[str]

    def __post_init__(self) -> None:
        """Refuse a field that its encoding could not hold."""
        layout = LAYOUTS[self.tag]
        try:  # packing is the fastest way to check every field against its width
            layout.whole.pack(*layout.values(self))
        except struct.error:
            raise _misfit(self, layout) from None


def _misfit(operation: Operation, layout: Layout) -> InputError:
    fields = layout.values(operation)[1:]
    for field, bits, value in zip(layout.names, layout.bits, fields, strict=True):
        if not 0 <= value < 1 << bits:
            return InputError(
                f"the {field} of a {operation.name} operation does not fit",
                expected=f"an integer of {bits} bits",
                found="below 0" if value < 0 else f"{value.bit_length()} bits",
            )
    raise AssertionError("the layout refuses what its widths take")


@dataclass(frozen=True, slots=True)
class Gemm(Operation):
    """``batch`` products of m x k by k x n matrices; n counts the tokens."""

    tag: ClassVar[int] = 0
    name: ClassVar[str] = "gemm"
    m: U32
    n: U32
    k: U32
    batch: U32


@dataclass(frozen=True, slots=True)
class Attention(Operation):
    """Scores, softmax and weighted sum of all heads over the positions in reach."""

    tag: ClassVar[int] = 1
    name: ClassVar[str] = "attention"
    query_tokens: U32
    kv_tokens: U32
    heads: U32
    head_dim: U32
    batch: U32


@dataclass(frozen=True, slots=True)
class LayerNorm(Operation):
    """``batch`` normalisations by mean and variance, of ``elements`` values each."""

    tag: ClassVar[int] = 2
    name: ClassVar[str] = "layer_norm"
    elements: U32
    batch: U32


@dataclass(frozen=True, slots=True)
class RmsNorm(Operation):
    """``batch`` normalisations by the root mean square, of ``elements`` values each."""

    tag: ClassVar[int] = 3
    name: ClassVar[str] = "rms_norm"
    elements: U32
    batch: U32


@dataclass(frozen=True, slots=True)
class Rotary(Operation):
    """Rotary position embedding of the heads of each token."""

    tag: ClassVar[int] = 4
    name: ClassVar[str] = "rotary"
    tokens: U32
    heads: U32
    head_dim: U32


@dataclass(frozen=True, slots=True)
class ExpertRoute(Operation):
    """The choice of ``top_k`` of ``experts`` for each token."""

    tag: ClassVar[int] = 5
    name: ClassVar[str] = "expert_route"
    tokens: U32
    experts: U32
    top_k: U32


@dataclass(frozen=True, slots=True)
class KvCacheRead(Operation):
    """Bytes read from the cache of keys and values."""

    tag: ClassVar[int] = 6
    name: ClassVar[str] = "kv_cache_read"
    bytes: U64


@dataclass(frozen=True, slots=True)
class KvCacheWrite(Operation):
    """Bytes written to the cache of keys and values."""

    tag: ClassVar[int] = 7
    name: ClassVar[str] = "kv_cache_write"
    bytes: U64


@dataclass(frozen=True, slots=True)
class Silu(Operation):
    """The activation x * sigmoid(x) of each element."""

    tag: ClassVar[int] = 8
    name: ClassVar[str] = "silu"
    elements: U64


@dataclass(frozen=True, slots=True)
class ElementwiseMultiply(Operation):
    """Products of corresponding elements."""

    tag: ClassVar[int] = 9
    name: ClassVar[str] = "elementwise_multiply"
    elements: U64


@dataclass(frozen=True, slots=True)
class Softmax(Operation):
    """Softmax over rows of altogether ``elements`` values."""

    tag: ClassVar[int] = 10
    name: ClassVar[str] = "softmax"
    elements: U64


@dataclass(frozen=True, slots=True)
class ElementwiseAdd(Operation):
    """Sums of corresponding elements."""

    tag: ClassVar[int] = 11
    name: ClassVar[str] = "elementwise_add"
    elements: U64


@dataclass(frozen=True, slots=True)
class TensorCopy(Operation):
    """Bytes of a tensor that are copied, joined or laid out anew."""

    tag: ClassVar[int] = 12
    name: ClassVar[str] = "tensor_copy"
    bytes: U64


@dataclass(frozen=True, slots=True)
class EmbeddingLookup(Operation):
    """Elements of the rows that are taken out of a table."""

    tag: ClassVar[int] = 13
    name: ClassVar[str] = "embedding_lookup"
    elements: U64


@dataclass(frozen=True, slots=True)
class Generic(Operation):
    """An operation without a kind of its own. Ruleset v2 prices it; v1 and v3 refuse it."""

    tag: ClassVar[int] = 14
    name: ClassVar[str] = "generic"
    op_class: U32
    elements: U64


@dataclass(frozen=True, slots=True)
class ExpertGemm(Operation):
    """Products of m x k matrices, ``top_k`` of ``experts`` for each of n tokens."""

    tag: ClassVar[int] = 15
    name: ClassVar[str] = "expert_gemm"
    m: U32
    n: U32
    k: U32
    experts: U32
    top_k: U32


@dataclass(frozen=True, slots=True)
class SsmConv(Operation):
    """Causal convolution of each channel over ``kernel`` positions."""

    tag: ClassVar[int] = 16
    name: ClassVar[str] = "ssm_conv"
    tokens: U32
    channels: U32
    kernel: U32


@dataclass(frozen=True, slots=True)
class GatedDeltaNet(Operation):
    """The recurrence of a gated delta net: a key_dim x value_dim state for each head."""

    tag: ClassVar[int] = 17
    name: ClassVar[str] = "gated_delta_net"
    tokens: U32
    heads: U32
    key_dim: U32
    value_dim: U32


@dataclass(frozen=True, slots=True)
class L2Norm(Operation):
    """``batch`` normalisations by the Euclidean length, of ``elements`` values each."""

    tag: ClassVar[int] = 18
    name: ClassVar[str] = "l2_norm"
    elements: U32
    batch: U32


@dataclass(frozen=True, slots=True)
class Reduction(Operation):
    """``batch`` sums of ``elements`` values each."""

    tag: ClassVar[int] = 19
    name: ClassVar[str] = "reduction"
    elements: U32
    batch: U32


@dataclass(frozen=True, slots=True)
class Elementwise(Operation):
    """A function of each element by itself: activation, scale, division, clamp."""

    tag: ClassVar[int] = 20
    name: ClassVar[str] = "elementwise"
    elements: U64


@dataclass(frozen=True, slots=True)
class Layout:
    """How one kind is encoded: ``whole`` with its tag in front, ``fields`` without.

    ``values`` reads the tag and all fields from an operation.
    """

    kind: type[Operation]
    names: tuple[str, ...]
    bits: tuple[int, ...]
    values: Callable[[Operation], tuple[int, ...]]
    whole: struct.Struct
    fields: struct.Struct


def _layout(kind: type[Operation]) -> Layout:
    names = tuple(field.name for field in fields(kind))
    hints = get_type_hints(kind, include_extras=True)
    bits = tuple(hints[name].__metadata__[0] for name in names)
    codes = "".join("I" if width == 32 else "Q" for width in bits)
    return Layout(
        kind,
        names,
        bits,
        attrgetter("tag", *names),
        struct.Struct("<B" + codes),
        struct.Struct("<" + codes),
    )


KINDS: Final[tuple[type[Operation], ...]] = (
    Gemm,
    Attention,
    LayerNorm,
    RmsNorm,
    Rotary,
    ExpertRoute,
    KvCacheRead,
    KvCacheWrite,
    Silu,
    ElementwiseMultiply,
    Softmax,
    ElementwiseAdd,
    TensorCopy,
    EmbeddingLookup,
    Generic,
    ExpertGemm,
    SsmConv,
    GatedDeltaNet,
    L2Norm,
    Reduction,
    Elementwise,
)
LAYOUTS: Final[tuple[Layout, ...]] = tuple(_layout(kind) for kind in KINDS)
NAMES: Final[Mapping[str, type[Operation]]] = MappingProxyType({kind.name: kind for kind in KINDS})
MAX_OPERATION: Final = max(layout.whole.size for layout in LAYOUTS)


def write_operation(writer: BinaryWriter, operation: Operation) -> None:
    """Append the encoding of ``operation``."""
    layout = LAYOUTS[operation.tag]
    writer.integers(layout.whole, layout.values(operation))


def read_operation(reader: BinaryReader) -> Operation:
    """Read one operation. Raises EvidenceError for an unknown kind and for data that ends early."""
    tag = reader.u8()
    if tag >= len(LAYOUTS):
        raise reader.refusal(
            "not a canonical operation", expected=f"0..{len(LAYOUTS) - 1}", found=str(tag)
        )
    layout = LAYOUTS[tag]
    return layout.kind(*reader.integers(layout.fields))


def encode_operation(operation: Operation) -> bytes:
    """Return the encoding of ``operation``."""
    layout = LAYOUTS[operation.tag]
    return layout.whole.pack(*layout.values(operation))
