"""Writes a transcript; every line is canonical JSON and a newline.

A node's line is the same in every step but for three numbers and the sketch, so it is rendered
once, the lines of a whole step are put together once, and then both are spliced. A test holds
every line against the canonical encoder.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final

from tallystick.canonical.json import jcs
from tallystick.contracts.codec import encode
from tallystick.errors import RunFailedError
from tallystick.evidence.observer.derive import categories_of, gemm_of, layer_of, route_layer
from tallystick.evidence.observer.records import (
    KERNEL_TRACE,
    MAX_EVENTS,
    MAX_LINE,
    MAX_TRANSCRIPT,
    PRODUCT,
    Gemm,
    Result,
    SourceRecord,
    TensorRecord,
)
from tallystick.evidence.observer.sealing import AnyHeader
from tallystick.evidence.observer.sketch import SKETCH_ELEMENTS, sketch_batch

# Pieces of a node's line in a step's template: start, number, middle, step.
_PIECES: Final = 4
_ID_BYTES: Final = 4
# Digits of a sketch, and more than the numbers of an event and its phase take.
_LONGEST_SPLICES: Final = SKETCH_ELEMENTS + 96
_NO_KERNEL_TRACE: Final = jcs(encode(KERNEL_TRACE))


@dataclass(frozen=True, slots=True)
class EventTemplate:
    """A node's line without event_seq, phase, phase_step and the digits of a sketch.

    ``routes`` is the layer whose chosen experts the node holds, ``expert_used`` a row of
    ``expert_count`` there are.
    """

    start: bytes
    middle: bytes
    rest: bytes
    end: bytes
    routes: int | None
    expert_count: int
    expert_used: int


@dataclass(frozen=True, slots=True)
class Splice:
    """Where a step's text depends on what was read of its node: ``before`` and ``after`` it.

    ``at`` is the index among the pieces, ``node`` that among the nodes.
    """

    at: int
    node: int
    before: bytes
    after: bytes


@dataclass(frozen=True, slots=True)
class StepTemplate:
    """The lines of one evaluation in pieces: for each node a start, a number, a middle, a step.

    The text behind a node's step belongs to the next one's start. ``longest`` is the length of
    the longest line without its numbers.
    """

    nodes: tuple[EventTemplate, ...]
    pieces: tuple[bytes, ...]
    products: tuple[Splice, ...]
    routes: tuple[Splice, ...]
    longest: int


@dataclass(frozen=True, slots=True)
class Step:
    """One evaluation: its phase, its number in the phase, the position of its first token.

    In a sealing pass it has ``tokens`` positions and ``scratch`` rows behind them, and of the last
    layer, ``last_layer``, only the choices of the last ``due`` positions count.
    """

    phase: str
    number: int
    position: int
    tokens: int = 1
    scratch: int = 0
    due: int = 1
    last_layer: int | None = None


def template(observer: str, tensor: TensorRecord, sources: Sequence[SourceRecord]) -> EventTemplate:
    """Return the template of a node. Raises EvidenceError for a product of unfit shapes."""
    gemm = trace = sketched = tile = b""
    stage, end = b"ask_metadata", b""
    if tensor.op == PRODUCT:
        gemm = b',"gemm":' + _gemm_json(gemm_of(tensor, sources))
        if observer == "sketch":
            count = min(SKETCH_ELEMENTS, prod(tensor.shape))
            trace = b',"kernel_trace":' + _NO_KERNEL_TRACE
            sketched = b',"sketch":{"bits":256,"elements":%d,"hex":"' % count
            end = b'","scheme":"sign_bucket_256_v1"}'
            stage = b"post_compute_sketch"
            tile = (
                b',"tile":{"elements":%d,"offset":0,"variant":"graph_fallback_logical_prefix_v1"}'
            ) % count
    tail = b"".join(
        (
            b',"sources":',
            b"[" + b",".join(map(_source_json, sources)) + b"]",
            b',"stage":"' + stage + b'","tensor":',
            _tensor_json(tensor),
            tile + b"}\n",
        )
    )
    record = b',"record":"event"'
    categories = b",".join(map(_text, categories_of(tensor)))
    layer = layer_of(tensor.name)
    return EventTemplate(
        start=b'{"categories":[' + categories + b'],"event_seq":',
        middle=gemm
        + trace
        + b',"layer":'
        + (b"null" if layer is None else b"%d" % layer)
        + b',"phase":"',
        rest=record + (sketched or tail),
        end=end + tail if sketched else b"",
        routes=route_layer(tensor.name),
        expert_count=sources[0].shape[0] if sources else 0,
        expert_used=tensor.shape[0],
    )


@lru_cache(maxsize=4096)
def _text(text: str) -> bytes:
    """Return ``text`` as JSON. The few names of a graph come again and again."""
    return jcs(text)


def _numbers(numbers: Sequence[int]) -> bytes:
    return ("[" + ",".join(map(str, numbers)) + "]").encode()


def _tensor_json(tensor: TensorRecord) -> bytes:
    return b'{"n_bytes":%d,"name":%s,"op":%s,"shape":%s,"type":%s}' % (
        tensor.n_bytes,
        _text(tensor.name),
        _text(tensor.op),
        _numbers(tensor.shape),
        _text(tensor.type),
    )


def _source_json(source: SourceRecord) -> bytes:
    return b'{"name":%s,"shape":%s,"type":%s}' % (
        _text(source.name),
        _numbers(source.shape),
        _text(source.type),
    )


def _gemm_json(gemm: Gemm) -> bytes:
    return b'{"batch_shape":%s,"k":%d,"m":%d,"n":%d,"variant":%s}' % (
        _numbers(gemm.batch_shape),
        gemm.k,
        gemm.m,
        gemm.n,
        _text(gemm.variant),
    )


def step_template(nodes: Sequence[EventTemplate]) -> StepTemplate:
    """Return the template of an evaluation of ``nodes``."""
    pieces: list[bytes] = []
    products, routes = [], []
    behind = b""
    for index, node in enumerate(nodes):
        at = len(pieces)
        pieces += (behind + node.start, b"", node.middle, b"")
        behind = node.rest + node.end
        after = nodes[index + 1].start if index + 1 < len(nodes) else b""
        if node.end:
            products.append(Splice(at + _PIECES, index, node.rest, node.end + after))
        elif node.routes is not None:
            routes.append(Splice(at + _PIECES, index, node.rest, after))
    pieces.append(behind)
    return StepTemplate(
        tuple(nodes),
        tuple(pieces),
        tuple(products),
        tuple(routes),
        max((len(n.start + n.middle + n.rest + n.end) for n in nodes), default=0),
    )


class TranscriptWriter:
    """Numbers records and keeps the bounds. Raises RunFailedError when one would be passed."""

    def __init__(self) -> None:
        self.events = 0
        self.routes = 0
        self.size = 0

    def header(self, header: AnyHeader) -> bytes:
        """Return the header's line."""
        return self._record(header)

    def step(self, plan: StepTemplate, step: Step, read: Sequence[bytes | None]) -> bytes:
        """Return the lines of an evaluation; ``read`` is what was read of each of its nodes.

        Of a product it is sketched; of a node with chosen experts it gives the line of a route
        after the event's.
        """
        count = len(plan.nodes)
        if self.events + count > MAX_EVENTS:
            raise _beyond(f"{MAX_EVENTS} events")
        if plan.longest + _LONGEST_SPLICES > MAX_LINE:
            raise _beyond(f"{MAX_LINE} bytes a line")
        first = self.events + 1
        pieces = list(plan.pieces)
        pieces[1::_PIECES] = [b"%d" % number for number in range(first, first + count)]
        where = b'%s","phase_step":%d' % (step.phase.encode(), step.number)
        pieces[3::_PIECES] = [where] * count
        # Without sketches there are no products among the splices: their lines are all alike.
        found = [data for splice in plan.products if (data := read[splice.node]) is not None]
        digits = b"".join(sketch_batch(found)).hex().encode()
        for splice, at in zip(plan.products, range(0, len(digits), SKETCH_ELEMENTS), strict=True):
            sketched = digits[at : at + SKETCH_ELEMENTS]
            pieces[splice.at] = b"%s%s%s" % (splice.before, sketched, splice.after)
        for splice in plan.routes:
            data = read[splice.node]
            if data is not None:
                routes = self._routes(plan.nodes[splice.node], first + splice.node, step, data)
                pieces[splice.at] = b"%s%s%s" % (splice.before, routes, splice.after)
        self.events += count
        lines = b"".join(pieces)
        self._count(len(lines))
        return lines

    def _routes(self, node: EventTemplate, event_seq: int, step: Step, data: bytes) -> bytes:
        """Return a line for each position whose chosen experts are due."""
        width = _ID_BYTES * node.expert_used
        due = step.due if node.routes == step.last_layer else step.tokens
        # Before the rows that are due there may be more of the last layer, and padding is behind.
        start = len(data) - (step.scratch + due) * width if due else 0
        if len(data) % width or start < 0:
            raise RunFailedError(
                "a layer gave another number of rows than its batch has",
                expected=f"{step.tokens + step.scratch}",
                found=f"{len(data) / width:g}",
            )
        end = step.position + step.tokens
        return b"".join(
            self._route(node, event_seq, step, position, data[at : at + width])
            for position, at in zip(
                range(end - due, end), range(start, start + due * width, width), strict=True
            )
        )

    def _route(
        self, node: EventTemplate, event_seq: int, step: Step, position: int, data: bytes
    ) -> bytes:
        assert node.routes is not None
        self.routes += 1
        ids = struct.unpack(f"<{node.expert_used}i", data)
        line = (
            b'{"event_seq":%d,"expert_count":%d,"expert_ids":%s,"layer":%d,"phase":"%s",'
            b'"phase_step":%d,"position":%d,"record":"route","route_seq":%d}\n'
        ) % (
            event_seq,
            node.expert_count,
            _numbers(ids),
            node.routes,
            step.phase.encode(),
            step.number,
            position,
            self.routes,
        )
        if len(line) > MAX_LINE:
            raise _beyond(f"{MAX_LINE} bytes a line")
        return line

    def result(self, result: Result) -> bytes:
        """Return the result's line."""
        return self._record(result)

    def _record(self, record: AnyHeader | Result) -> bytes:
        line = jcs(encode(record)) + b"\n"
        if len(line) > MAX_LINE:
            raise _beyond(f"{MAX_LINE} bytes a line")
        self._count(len(line))
        return line

    def _count(self, size: int) -> None:
        self.size += size
        if self.size > MAX_TRANSCRIPT:
            raise _beyond(f"{MAX_TRANSCRIPT} bytes")


def _beyond(bound: str) -> RunFailedError:
    return RunFailedError(
        "the transcript would be larger than its readers accept",
        expected=f"at most {bound}",
        hint="shorten the prompt or lower --n-predict",
    )
