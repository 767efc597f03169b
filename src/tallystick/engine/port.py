"""The engine port: what the rest of the project knows about an inference engine.

An adapter opens a model, evaluates batches of rows, and hands back rows. It decides nothing
about schedules, sampling or evidence: those are `execution/`. One adapter exists, `libllama`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self


@dataclass(frozen=True, slots=True)
class ContextSpec:
    """How to open a context.

    ``cells`` is the number of KV cells, ``max_rows`` the largest batch, ``sequences`` the number
    of parallel sequences (scratch rows each take one of their own).
    """

    cells: int
    max_rows: int
    sequences: int
    threads: int


@dataclass(frozen=True, slots=True)
class Rows:
    """One batch: parallel tuples. ``outputs[i]`` asks for the last layer and logits of row i.

    ``tokens`` are private.
    """

    tokens: Sequence[int] = field(repr=False)
    positions: Sequence[int]
    sequences: Sequence[int]
    outputs: Sequence[bool]


@dataclass(frozen=True, slots=True)
class LayerRows:
    """The output of one layer for one batch: ``rows`` rows of float32, back to back."""

    layer: int
    rows: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class RouteRows:
    """The experts that one layer chose for one batch: ``rows`` rows of ``used`` ids, back to back.

    Ids are int32 in native order, below ``experts``, in the engine's order. The rows are those of
    the batch, in order; in the last layer they are, as a rule, those with outputs only.
    """

    layer: int
    rows: int
    used: int
    experts: int
    data: memoryview = field(repr=False)


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """What a tensor of a graph is, without its data. ``shape`` is innermost first."""

    name: str
    op: str
    type: str
    shape: tuple[int, int, int, int]
    n_bytes: int


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One operation of a graph: the tensor that it makes, and those that it makes it from."""

    tensor: GraphTensor
    sources: tuple[GraphTensor, ...]


@dataclass(frozen=True, slots=True)
class NodeReading:
    """A node that was evaluated, and what was read of its output, if anything was.

    Of a matrix product: the first 64 elements at most, f32 little-endian. Of the chosen experts
    (``ffn_moe_topk-N``): every id, i32 little-endian, row by row. The same ``node`` object comes
    back in later evaluations as long as nothing about it changes.
    """

    node: GraphNode
    data: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Watch:
    """What is observed while graphs are evaluated; nothing of it changes a bit.

    ``rows``: every layer's output rows. ``routes``: every layer's chosen experts. ``graph``: every
    node, and with "products" what a `NodeReading` may hold. Whatever is watched, each graph is
    checked for what has no getter: flash attention off, a KV cache of 16-bit floats.
    """

    rows: Literal["none", "layers"] = "none"
    routes: Literal["none", "experts"] = "none"
    graph: Literal["none", "nodes", "products"] = "none"


@dataclass(frozen=True, slots=True)
class Observation:
    """What was watched of one evaluation, each in evaluation order.

    The bytes of ``layers`` and ``routes`` are valid until the next `evaluate`. Nodes without
    elements are left out.
    """

    layers: Sequence[LayerRows]
    routes: Sequence[RouteRows]
    nodes: Sequence[NodeReading]


@dataclass(frozen=True, slots=True)
class MetadataText:
    """One entry of a model's metadata that is not an array, as the engine prints it."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """What the engine says of a loaded model. ``heads_kv`` is that of the first layer."""

    description: str
    tensor_bytes: int
    parameters: int
    context_train: int
    embedding: int
    layers: int
    heads: int
    heads_kv: int
    vocabulary: int
    rope_type: str
    rope_frequency_scale: str
    metadata: tuple[MetadataText, ...]


@dataclass(frozen=True, slots=True)
class EngineSummary:
    """What the engine says of itself."""

    version: str
    commit: str
    system_info: str
    gpu_offload: bool


class Context(Protocol):
    """A KV cache and the graphs over it."""

    def evaluate(self, rows: Rows) -> None:
        """Evaluate one batch; raises RunFailedError when the engine refuses."""

    def logits(self, row: int) -> memoryview:
        """Return the logits (f32, native order) of batch row ``row``; valid until `evaluate`."""

    def forget(self, sequence: int) -> None:
        """Drop every cell of ``sequence``."""

    def close(self) -> None:
        """Free the context."""


class ObservedContext(Context, Protocol):
    """A context whose graphs are watched while they are evaluated."""

    def observation(self) -> Observation:
        """Return, once, what was watched of the evaluations since the last call.

        Raises IncomparableError when a graph shows flash attention or a KV cache that is not F16,
        or no cache where there has to be one; RunFailedError when something was not readable.
        """


class Model(Protocol):
    """A loaded model."""

    @property
    def layers(self) -> int:
        """Number of layers."""

    @property
    def embedding(self) -> int:
        """Floats in a layer's output row."""

    @property
    def vocabulary(self) -> int:
        """Floats in a row of logits: one for each token id."""

    @property
    def context_train(self) -> int:
        """The context in tokens that the model was trained for."""

    @property
    def adds_bos(self) -> bool:
        """Whether the tokenizer puts a begin-of-sequence token first by itself."""

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> tuple[int, ...]:
        """Return the token ids of UTF-8 ``text``."""

    def piece(self, token: int, *, special: bool) -> bytes:
        """Return the bytes of ``token``; control tokens are empty unless ``special``."""

    def special_piece(self, name: Literal["bos", "eos"]) -> str:
        """Return the text of the begin or end token, "" when the vocabulary has none."""

    def chat_template(self) -> str | None:
        """Return the chat template that the model carries, None when there is none.

        Raises InputError when it is not text.
        """

    def is_end(self, token: int) -> bool:
        """Tell whether ``token`` ends a generation."""

    def open_context(self, spec: ContextSpec) -> Context:
        """Open a context."""

    def open_observed(self, spec: ContextSpec, watch: Watch) -> ObservedContext:
        """Open a context whose graphs are watched."""

    def close(self) -> None:
        """Free the model."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...


class DescribedModel(Model, Protocol):
    """A model that says what the engine knows of it."""

    def summary(self) -> ModelSummary:
        """Return what the engine says of this model."""

    def engine_summary(self) -> EngineSummary:
        """Return what the engine says of itself."""
