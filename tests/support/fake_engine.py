"""An engine of pure arithmetic behind the port: rows are hashes of what they may depend on.

A row depends on the tokens of its sequence up to it and on the *class* of its batch, as a real
engine's does: a batch of fewer than ``floor`` rows, or of fewer than ``floor`` output rows, gives
other bits. So a schedule that breaks the class shows, as it would with the real one.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

from tallystick.engine.port import (
    ContextSpec,
    GraphNode,
    GraphTensor,
    LayerRows,
    NodeReading,
    Observation,
    RouteRows,
    Rows,
    Watch,
)

Records = list[LayerRows]


def words(count: int, *parts: object) -> bytes:
    """Return ``count`` float32 values, little-endian and finite, as a hash of ``parts``."""
    raw = hashlib.shake_256(repr(parts).encode()).digest(4 * count)
    # 64 <= |x| < 256: exponents 133 and 134.
    return b"".join(
        bytes((raw[i], raw[i + 1], raw[i + 2] & 0x7F | 0x80, 0x42 | raw[i + 3] & 0x80))
        for i in range(0, 4 * count, 4)
    )


def hash_of(*parts: object) -> int:
    """Return a 32-bit number that is a hash of ``parts``."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big")


@dataclass
class FakeContext:
    """One context; ``batches`` keeps every batch that was evaluated."""

    model: FakeModel
    spec: ContextSpec
    watch: Watch | None
    batches: list[Rows] = field(default_factory=list)
    closed: bool = False
    _cells: dict[int, list[int]] = field(default_factory=dict)
    _logits: dict[int, bytes] = field(default_factory=dict)
    _records: Records = field(default_factory=list)
    _routes: list[RouteRows] = field(default_factory=list)
    _nodes: list[NodeReading] = field(default_factory=list)

    def evaluate(self, rows: Rows) -> None:
        model, spec = self.model, self.spec
        n = len(rows.tokens)
        assert n == len(rows.positions) == len(rows.sequences) == len(rows.outputs)
        assert 1 <= n <= spec.max_rows
        assert not self._records, "the layer rows of the batch before were not taken"
        histories = [
            self._advance(*row)
            for row in zip(rows.tokens, rows.positions, rows.sequences, strict=True)
        ]
        assert sum(map(len, self._cells.values())) <= spec.cells
        hidden = min(n, model.floor)
        outputs = min(sum(rows.outputs), model.floor)
        self.batches.append(rows)
        self._logits = {
            i: words(model.vocabulary, "logits", histories[i], hidden, outputs)
            for i in range(n)
            if rows.outputs[i]
        }
        if self.watch is not None and self.watch.rows == "layers":
            self._records = model.damage(self._observe(rows, histories, hidden, outputs))
        if self.watch is not None and self.watch.routes == "experts" and model.experts:
            self._routes = self._choose(rows, histories)
        if self.watch is not None and self.watch.graph != "none":
            self._nodes = self._graph(histories, self.watch.graph == "products")

    def _advance(self, token: int, position: int, sequence: int) -> tuple[int, ...]:
        assert 0 <= sequence < self.spec.sequences
        cells = self._cells.setdefault(sequence, [])
        assert position == len(cells), "positions of a sequence are consecutive"
        cells.append(token)
        return tuple(cells)

    def _observe(
        self, rows: Rows, histories: Sequence[tuple[int, ...]], hidden: int, outputs: int
    ) -> Records:
        model = self.model
        records = [self._layer(layer, histories, (hidden,)) for layer in range(model.layers - 1)]
        shown = [
            history
            for history, wanted in zip(histories, rows.outputs, strict=True)
            if wanted or model.last_layer == "every row"
        ]
        if shown:
            records.append(self._layer(model.layers - 1, shown, (hidden, outputs)))
        return records

    @property
    def observed(self) -> bool:
        """Tell whether this context was opened to be watched."""
        return self.watch is not None

    def _choose(self, rows: Rows, histories: Sequence[tuple[int, ...]]) -> list[RouteRows]:
        model = self.model
        chosen = []
        for layer in range(model.layers):
            shown = [
                history
                for history, wanted in zip(histories, rows.outputs, strict=True)
                if wanted or layer < model.layers - 1 or model.last_layer == "every row"
            ]
            ids = [
                (hash_of(layer, history) + i) % model.experts
                for history in shown
                for i in range(model.used)
            ]
            data = memoryview(struct.pack(f"={len(ids)}i", *ids))
            chosen.append(RouteRows(layer, len(shown), model.used, model.experts, data))
        return chosen

    def _graph(self, histories: Sequence[tuple[int, ...]], products: bool) -> list[NodeReading]:
        """One product and one sum a layer; a product's values follow from its batch's tokens."""
        readings = []
        for layer in range(self.model.layers):
            product, total = self.model.nodes(layer, len(histories))
            data = words(4 * len(histories), "product", layer, histories) if products else None
            readings += [
                NodeReading(product, None if data is None else data[:256]),
                NodeReading(total, None),
            ]
        return readings

    def _layer(
        self, layer: int, histories: Sequence[tuple[int, ...]], classes: tuple[int, ...]
    ) -> LayerRows:
        width = self.model.embedding
        data = b"".join(words(width, layer, history, classes) for history in histories)
        return LayerRows(layer, len(histories), memoryview(data))

    def logits(self, row: int) -> memoryview:
        return memoryview(self._logits[row])

    def observation(self) -> Observation:
        taken = Observation(self._records, self._routes, self._nodes)
        self._records, self._routes, self._nodes = [], [], []
        return self.model.shown(taken)

    def forget(self, sequence: int) -> None:
        self._cells.pop(sequence, None)

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeModel:
    """A model whose bits are equal from batches of ``floor`` rows on.

    With ``experts`` each layer chooses ``used`` of them for every row. ``damage`` may change what
    the observer sees of layers, ``shown`` all that it sees; ``ends`` are the end-of-generation ids.
    """

    layers: int = 3
    embedding: int = 4
    vocabulary: int = 11
    experts: int = 0
    used: int = 2
    context_train: int = 1024
    adds_bos: bool = False
    bos: str = "<s>"
    template: str | None = None
    floor: int = 2
    ends: frozenset[int] = frozenset()
    last_layer: Literal["output rows", "every row"] = "output rows"
    damage: Callable[[Records], Records] = lambda records: records
    shown: Callable[[Observation], Observation] = lambda seen: seen
    contexts: list[FakeContext] = field(default_factory=list)
    _kept: dict[tuple[int, int], tuple[GraphNode, GraphNode]] = field(default_factory=dict)

    def nodes(self, layer: int, rows: int) -> tuple[GraphNode, GraphNode]:
        """Return the nodes of a layer: the same objects for the same shapes."""
        key = layer, rows
        if key not in self._kept:
            inputs = GraphTensor(f"in-{layer}", "NONE", "f32", (8, rows, 1, 1), 32 * rows)
            weights = GraphTensor(f"blk.{layer}.w", "NONE", "f32", (8, 4, 1, 1), 128)
            made = GraphTensor(f"out-{layer}", "MUL_MAT", "f32", (4, rows, 1, 1), 16 * rows)
            total = GraphTensor(f"sum-{layer}", "ADD", "f32", (4, rows, 1, 1), 16 * rows)
            self._kept[key] = GraphNode(made, (weights, inputs)), GraphNode(total, (made, made))
        return self._kept[key]

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> tuple[int, ...]:
        return tuple(byte % self.vocabulary for byte in text)

    def piece(self, token: int, *, special: bool) -> bytes:
        return bytes([97 + token])

    def special_piece(self, name: Literal["bos", "eos"]) -> str:
        return {"bos": self.bos, "eos": "</s>"}[name]

    def chat_template(self) -> str | None:
        return self.template

    def is_end(self, token: int) -> bool:
        return token in self.ends

    def open_context(self, spec: ContextSpec) -> FakeContext:
        return self._open(FakeContext(self, spec, None))

    def open_observed(self, spec: ContextSpec, watch: Watch) -> FakeContext:
        return self._open(FakeContext(self, spec, watch))

    def _open(self, context: FakeContext) -> FakeContext:
        self.contexts.append(context)
        return context

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
