"""Writes a transcript, line by line; every line is canonical JSON and a newline.

A node's line is the same in every step but for three numbers and the sketch, so it is rendered
once and then spliced. A test holds every line against the canonical encoder.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

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
    Header,
    Result,
    Route,
    SourceRecord,
    TensorRecord,
    Tile,
)
from tallystick.evidence.observer.sketch import SKETCH_ELEMENTS, sketch


@dataclass(frozen=True, slots=True)
class EventTemplate:
    """A node's line without event_seq, phase, phase_step and the digits of a sketch.

    ``routes`` is the layer whose chosen experts the node holds, of ``expert_count`` there are.
    """

    start: bytes
    middle: bytes
    rest: bytes
    end: bytes
    routes: int | None
    expert_count: int


@dataclass(frozen=True, slots=True)
class Step:
    """One evaluation: its phase, its number in the phase, the position of its token."""

    phase: str
    number: int
    position: int


def template(observer: str, tensor: TensorRecord, sources: Sequence[SourceRecord]) -> EventTemplate:
    """Return the template of a node. Raises EvidenceError for a product of unfit shapes."""
    gemm = trace = sketched = tile = b""
    stage, end = b"ask_metadata", b""
    if tensor.op == PRODUCT:
        gemm = b',"gemm":' + jcs(encode(gemm_of(tensor, sources)))
        if observer == "sketch":
            count = min(SKETCH_ELEMENTS, prod(tensor.shape))
            trace = b',"kernel_trace":' + jcs(encode(KERNEL_TRACE))
            sketched = b',"sketch":{"bits":256,"elements":%d,"hex":"' % count
            end = b'","scheme":"sign_bucket_256_v1"}'
            stage = b"post_compute_sketch"
            tile = b',"tile":' + jcs(encode(Tile("graph_fallback_logical_prefix_v1", 0, count)))
    tail = b"".join(
        (
            b',"sources":',
            jcs([encode(source) for source in sources]),
            b',"stage":"' + stage + b'","tensor":',
            jcs(encode(tensor)),
            tile + b"}\n",
        )
    )
    record = b',"record":"event"'
    return EventTemplate(
        start=b'{"categories":' + jcs([*categories_of(tensor)]) + b',"event_seq":',
        middle=gemm + trace + b',"layer":' + jcs(layer_of(tensor.name)) + b',"phase":"',
        rest=record + (sketched or tail),
        end=end + tail if sketched else b"",
        routes=route_layer(tensor.name),
        expert_count=sources[0].shape[0] if sources else 0,
    )


class TranscriptWriter:
    """Numbers records and keeps the bounds. Raises RunFailedError when one would be passed."""

    def __init__(self) -> None:
        self.events = 0
        self.routes = 0
        self.size = 0

    def header(self, header: Header) -> bytes:
        """Return the header's line."""
        return self._record(header)

    def event(self, node: EventTemplate, step: Step, data: bytes | None) -> bytes:
        """Return the line of one node of ``step``; ``data``, if read, is what is sketched.

        ``data`` of a node with chosen experts gives the line of a route after the event's.
        """
        if self.events == MAX_EVENTS:
            raise _beyond(f"{MAX_EVENTS} events")
        self.events += 1
        digits = sketch(data).encode() if node.end and data is not None else b""
        line = b'%s%d%s%s","phase_step":%d%s%s%s' % (
            node.start,
            self.events,
            node.middle,
            step.phase.encode(),
            step.number,
            node.rest,
            digits,
            node.end,
        )
        self._count(line)
        if node.routes is not None and data is not None:
            return line + self._route(node, step, data)
        return line

    def _route(self, node: EventTemplate, step: Step, data: bytes) -> bytes:
        assert node.routes is not None
        self.routes += 1
        return self._record(
            Route(
                record="route",
                route_seq=self.routes,
                event_seq=self.events,
                phase=step.phase,
                phase_step=step.number,
                position=step.position,
                layer=node.routes,
                expert_count=node.expert_count,
                expert_ids=struct.unpack(f"<{len(data) // 4}i", data),
            )
        )

    def result(self, result: Result) -> bytes:
        """Return the result's line."""
        return self._record(result)

    def _record(self, record: Header | Route | Result) -> bytes:
        line = jcs(encode(record)) + b"\n"
        self._count(line)
        return line

    def _count(self, line: bytes) -> None:
        if len(line) > MAX_LINE:
            raise _beyond(f"{MAX_LINE} bytes a line")
        self.size += len(line)
        if self.size > MAX_TRANSCRIPT:
            raise _beyond(f"{MAX_TRANSCRIPT} bytes")


def _beyond(bound: str) -> RunFailedError:
    return RunFailedError(
        "the transcript would be larger than its readers accept",
        expected=f"at most {bound}",
        hint="shorten the prompt or lower --n-predict",
    )
