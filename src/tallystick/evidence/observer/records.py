"""The records of a transcript: header, events, routes, result (docs/spec/observer.md#records)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, TypeAlias

from tallystick.contracts import compute_receipt, manifest_parts
from tallystick.contracts.types import (
    U32,
    Count,
    IntRange,
    LongText,
    MaxLength,
    OneOf,
    Pattern,
    ShortText,
    TokenId,
)

SCHEMA: Final = "misaka.palw.runtime_observer"
SCHEMA_VERSION: Final = 2
OBSERVERS: Final = ("off", "graph", "sketch")
PRODUCT: Final = "MUL_MAT"
TRACE_VARIANT: Final = {"off": "none", "graph": "graph_fallback", "sketch": "graph_fallback"}

CONTEXT_TOKENS: Final = manifest_parts.SEQUENTIAL_CONTEXT
MAX_GENERATED: Final = manifest_parts.MAX_GENERATED
MAX_EVENTS: Final = compute_receipt.MAX_EVENTS
MAX_TRANSCRIPT: Final = 64 * 1024 * 1024
MAX_LINE: Final = 4 * 1024 * 1024

Natural = Annotated[int, IntRange(0, 2**53 - 1)]
Extent = Annotated[int, IntRange(1, 2**53 - 1)]
Name = Annotated[str, MaxLength(256)]
Phase = Annotated[str, OneOf(("prefill", "decode", "sealing"))]
Shape = Annotated[tuple[Extent, ...], MaxLength(4)]


@dataclass(frozen=True, slots=True)
class MetadataEntry:
    """One entry of the model file's metadata that is not an array, as the engine prints it."""

    key: Annotated[str, MaxLength(1024)]
    value: LongText


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """What the engine says of the model. ``path`` is the file's name alone."""

    path: Annotated[str, MaxLength(1024)]
    description: ShortText
    tensor_size_bytes: Natural
    parameter_count: Natural
    file_type: U32 | None
    n_ctx_train: Natural
    n_embd: Count
    n_layer: Count
    n_head: U32
    n_head_kv: U32
    n_vocab: Count
    rope_type: ShortText
    rope_freq_scale_train: Annotated[str, Pattern(r"[0-9]+(\.[0-9]+)?", 60)]
    metadata: Annotated[tuple[MetadataEntry, ...], MaxLength(4096)]


@dataclass(frozen=True, slots=True)
class RuntimeRecord:
    """What the engine says of itself. On a processor nothing is offloaded."""

    ggml_version: ShortText
    ggml_commit: ShortText
    system_info: Annotated[str, MaxLength(1024)]
    supports_gpu_offload: bool
    requested_gpu_layers: U32
    devices: Annotated[tuple[ShortText, ...], MaxLength(64)]


@dataclass(frozen=True, slots=True)
class ExecutionPolicy:
    """The `sequential` policy: one value for each field, and no other is accepted."""

    n_ctx: U32 = CONTEXT_TOKENS
    n_batch: U32 = 1
    n_ubatch: U32 = 1
    n_seq_max: U32 = 1
    n_threads: U32 = 1
    n_threads_batch: U32 = 1
    sampler: ShortText = "greedy"
    flash_attn: ShortText = "disabled"
    type_k: ShortText = "f16"
    type_v: ShortText = "f16"
    split_mode: ShortText = "none"
    use_mmap: bool = True


@dataclass(frozen=True, slots=True)
class ObservationPolicy:
    """What an observer may do: one value for each field, and no other is accepted."""

    read_only: bool = True
    graph_metadata_stage: ShortText = "ask"
    sketch_bits: U32 = 256
    sketch_probe: ShortText = "gemm_output_contiguous_prefix_64"
    raw_activation_values_published: bool = False
    tile_variant: ShortText = "graph_fallback_logical_prefix_v1"
    kernel_trace_claim: ShortText = "none"


@dataclass(frozen=True, slots=True)
class Header:
    """The first record."""

    record: Annotated[str, OneOf(("header",))]
    schema: Annotated[str, OneOf((SCHEMA,))]
    schema_version: Annotated[int, IntRange(SCHEMA_VERSION, SCHEMA_VERSION)]
    producer: Annotated[str, OneOf(("tallystick",))]
    observer: Annotated[str, OneOf(OBSERVERS)]
    trace_variant: ShortText
    cuda_kernel_trace: bool
    model: ModelRecord
    runtime: RuntimeRecord
    execution_policy: ExecutionPolicy
    observation_policy: ObservationPolicy


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """The tensor that an operation makes; ``shape`` is innermost first."""

    name: Name
    op: Annotated[str, MaxLength(64)]
    type: Annotated[str, MaxLength(64)]
    shape: Shape
    n_bytes: Natural


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """A tensor that an operation reads."""

    name: Name
    type: Annotated[str, MaxLength(64)]
    shape: Annotated[tuple[Natural, ...], MaxLength(4)]


@dataclass(frozen=True, slots=True)
class Gemm:
    """The size of a matrix product: ``batch_shape`` products of m x k by k x n."""

    variant: Annotated[str, OneOf(("ggml_graph_op_v1",))]
    m: Extent
    n: Extent
    k: Extent
    batch_shape: Annotated[tuple[Extent, ...], MaxLength(2)]


@dataclass(frozen=True, slots=True)
class Sketch:
    """256 bits about the first elements of a product (docs/spec/observer.md#sketch).

    They are derived from what was read and written, and as private.
    """

    scheme: Annotated[str, OneOf(("sign_bucket_256_v1",))]
    bits: Annotated[int, IntRange(256, 256)]
    elements: Annotated[int, IntRange(1, 64)]
    hex: Annotated[str, Pattern(r"[0-9a-f]{64}", 64)] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tile:
    """Which part of the product the sketch covers: its first elements, never all of it."""

    variant: Annotated[str, OneOf(("graph_fallback_logical_prefix_v1",))]
    offset: Annotated[int, IntRange(0, 0)]
    elements: Annotated[int, IntRange(1, 64)]


@dataclass(frozen=True, slots=True)
class KernelTrace:
    """There is none, and this record says so."""

    available: bool = False
    backend: ShortText = "none"
    claim: ShortText = "not_a_cuda_kernel_trace"


@dataclass(frozen=True, slots=True)
class Event:
    """One evaluated operation."""

    record: Annotated[str, OneOf(("event",))]
    event_seq: Annotated[int, IntRange(1, MAX_EVENTS)]
    phase: Phase
    phase_step: U32
    stage: Annotated[str, OneOf(("ask_metadata",))]
    layer: U32 | None
    categories: Annotated[tuple[ShortText, ...], MaxLength(8)]
    tensor: TensorRecord
    sources: Annotated[tuple[SourceRecord, ...], MaxLength(10)]


@dataclass(frozen=True, slots=True)
class GemmEvent:
    """One evaluated matrix product, of which nothing was read."""

    record: Annotated[str, OneOf(("event",))]
    event_seq: Annotated[int, IntRange(1, MAX_EVENTS)]
    phase: Phase
    phase_step: U32
    stage: Annotated[str, OneOf(("ask_metadata",))]
    layer: U32 | None
    categories: Annotated[tuple[ShortText, ...], MaxLength(8)]
    tensor: TensorRecord
    sources: Annotated[tuple[SourceRecord, ...], MaxLength(10)]
    gemm: Gemm


@dataclass(frozen=True, slots=True)
class SketchEvent:
    """One evaluated matrix product and its sketch."""

    record: Annotated[str, OneOf(("event",))]
    event_seq: Annotated[int, IntRange(1, MAX_EVENTS)]
    phase: Phase
    phase_step: U32
    stage: Annotated[str, OneOf(("post_compute_sketch",))]
    layer: U32 | None
    categories: Annotated[tuple[ShortText, ...], MaxLength(8)]
    tensor: TensorRecord
    sources: Annotated[tuple[SourceRecord, ...], MaxLength(10)]
    gemm: Gemm
    sketch: Sketch
    tile: Tile
    kernel_trace: KernelTrace


@dataclass(frozen=True, slots=True)
class Route:
    """The experts that one layer chose for one token; ``event_seq`` is that of their event.

    The choice follows from the text, and is as private.
    """

    record: Annotated[str, OneOf(("route",))]
    route_seq: Annotated[int, IntRange(1, MAX_EVENTS)]
    event_seq: Annotated[int, IntRange(1, MAX_EVENTS)]
    phase: Phase
    phase_step: U32
    position: U32
    layer: U32
    expert_count: Count
    expert_ids: Annotated[tuple[U32, ...], MaxLength(1024)] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Result:
    """The last record. Its ids and bytes are private: they are the prompt and the answer."""

    record: Annotated[str, OneOf(("result",))]
    status: Annotated[str, OneOf(("ok",))]
    stop_reason: Annotated[str, OneOf(("n_predict", "eog"))]
    prompt_token_ids: Annotated[tuple[TokenId, ...], MaxLength(CONTEXT_TOKENS)] = field(repr=False)
    generated_token_ids: Annotated[tuple[TokenId, ...], MaxLength(MAX_GENERATED)] = field(
        repr=False
    )
    output_bytes: Annotated[
        tuple[Annotated[int, IntRange(0, 255)], ...], MaxLength(1024 * 1024)
    ] = field(repr=False)
    output_n_bytes: U32
    event_count: Annotated[int, IntRange(0, MAX_EVENTS)]


AnyEvent: TypeAlias = Event | GemmEvent | SketchEvent

EXECUTION_POLICY: Final = ExecutionPolicy()
OBSERVATION_POLICY: Final = ObservationPolicy()
KERNEL_TRACE: Final = KernelTrace()
