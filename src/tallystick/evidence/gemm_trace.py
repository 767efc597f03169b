"""The trace of a run's matrix products: a sketch of each, bound to its place in the schedule.

A sketch depends on the text, so a trace is private and its root is blinded
(docs/spec/evidence.md#gemm-trace).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from tallystick.canonical.codec import BinaryReader, BinaryWriter, decode_strict
from tallystick.canonical.hashing import domain_hash
from tallystick.compute.operations import Gemm
from tallystick.errors import EvidenceError
from tallystick.evidence.observer.records import MAX_EVENTS
from tallystick.evidence.observer.sketch import SKETCH_ELEMENTS
from tallystick.evidence.schedule import OperationSchedule

LANES_BYTES: Final = 32
GROUP_BYTES: Final = 4 + LANES_BYTES
MAX_TRACE_BYTES: Final = 32 + 4 + MAX_EVENTS * GROUP_BYTES
_GROUP: Final = struct.Struct(f"<I{LANES_BYTES}s")
_WHERE: Final = "trace of matrix products"

_LIVE: Final = b"sign_bucket_256_v1;prefix=64;lanes=4*i64be;steps=live,one token each"
_SEALING: Final = b"sign_bucket_256_v1;prefix=64;lanes=4*i64be;steps=sealing pass,chunks"
#: The scheme of a trace that was taken while the run was generated, step by step.
TRACE_SCHEME_LIVE: Final = domain_hash("palw.trace-scheme", 1, [_LIVE])
#: The scheme of a trace that a sealing pass took over prompt and output, chunk by chunk.
TRACE_SCHEME_SEALING: Final = domain_hash("palw.trace-scheme", 1, [_SEALING])
TRACE_SCHEMES: Final = (TRACE_SCHEME_LIVE, TRACE_SCHEME_SEALING)


def trace_scheme(schedule: OperationSchedule) -> bytes:
    """Return the id of the scheme by which the products of ``schedule`` are traced."""
    return TRACE_SCHEME_SEALING if schedule.sealing else TRACE_SCHEME_LIVE


@dataclass(frozen=True, slots=True)
class GemmTrace:
    """Sketches of all matrix products of a schedule, in its order. Private.

    ``groups`` are 36 bytes each: the product's place among the operations of the whole schedule,
    u32 little-endian, and its sketch as 32 bytes (four big-endian signed 64-bit lanes). The places
    ascend. Raises EvidenceError for an unknown scheme and for groups that are not like this.
    """

    scheme: bytes
    groups: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Check what a trace by itself can be checked for."""
        if self.scheme not in TRACE_SCHEMES:
            raise EvidenceError(
                "a trace of an unknown scheme",
                expected=" or ".join(sorted(scheme.hex() for scheme in TRACE_SCHEMES)),
                found=self.scheme.hex(),
            )
        count, rest = divmod(len(self.groups), GROUP_BYTES)
        if rest or count > MAX_EVENTS:
            raise EvidenceError(
                "a trace does not consist of whole groups",
                expected=f"at most {MAX_EVENTS} groups of {GROUP_BYTES} bytes",
                found=f"{len(self.groups)} bytes",
            )
        places = self.places()
        if any(a >= b for a, b in zip(places, islice(places, 1, None), strict=False)):
            raise EvidenceError("the groups of a trace are out of order")

    @property
    def events(self) -> int:
        """Number of products."""
        return len(self.groups) // GROUP_BYTES

    def places(self) -> tuple[int, ...]:
        """Return the products' places among the operations of the schedule."""
        return tuple(place for place, _ in _GROUP.iter_unpack(self.groups))

    def lanes(self, group: int) -> tuple[int, int, int, int]:
        """Return the sketch of one product as four big-endian signed 64-bit integers."""
        a, b, c, d = struct.unpack_from(">4q", self.groups, group * GROUP_BYTES + 4)
        return a, b, c, d


def make_trace(schedule: OperationSchedule, lanes: Sequence[bytes]) -> GemmTrace:
    """Return the trace of ``schedule`` whose products, in order, have the sketches ``lanes``.

    Each is of 32 bytes. Raises EvidenceError when there are more or fewer than products.
    """
    places = tuple(schedule.gemm_events())
    if len(places) != len(lanes) or any(len(sketch) != LANES_BYTES for sketch in lanes):
        raise EvidenceError(
            "not every matrix product has one sketch",
            expected=f"{len(places)} sketches of {LANES_BYTES} bytes",
            found=str(len(lanes)),
        )
    pack = _GROUP.pack
    groups = b"".join([pack(place, sketch) for place, sketch in zip(places, lanes, strict=True)])
    return GemmTrace(trace_scheme(schedule), groups)


def gemm_root(blind: bytes, trace: GemmTrace) -> bytes:
    """Return the 32-byte commitment to ``trace`` under the run's blind."""
    return domain_hash("palw.gemm-trace", 1, [blind, trace.scheme, trace.groups])


def check_trace(trace: GemmTrace, schedule: OperationSchedule) -> None:
    """Require one group for each matrix product of ``schedule``, in its order and of its scheme.

    A sketch has no digits for elements that its product does not have. Raises EvidenceError.
    """
    if trace.scheme != trace_scheme(schedule):
        raise EvidenceError(
            "a trace's scheme is not that of its schedule's steps",
            expected=trace_scheme(schedule).hex(),
            found=trace.scheme.hex(),
        )
    places = tuple(schedule.gemm_events())
    if len(places) != trace.events:
        raise EvidenceError(
            "a trace has another number of groups than its schedule has matrix products",
            expected=str(len(places)),
            found=str(trace.events),
        )
    found = trace.places()
    if found != places:
        group = next(
            at for at, pair in enumerate(zip(found, places, strict=True)) if len({*pair}) > 1
        )
        raise EvidenceError(
            "a group of a trace is bound to another operation",
            expected=f"group {group} at operation {places[group]}",
            found=f"operation {found[group]}",
        )
    _check_unused_digits(trace, schedule)


def _check_unused_digits(trace: GemmTrace, schedule: OperationSchedule) -> None:
    elements = {
        index: scheduled.operation.m * scheduled.operation.n * scheduled.operation.batch
        for index, scheduled in enumerate(schedule.operations)
        if isinstance(scheduled.operation, Gemm)
    }
    if all(count >= SKETCH_ELEMENTS for count in elements.values()):
        return
    group = 0
    for step in schedule.steps:
        for index in step.indexes():
            count = elements.get(index)
            if count is None:
                continue
            if count < SKETCH_ELEMENTS:
                start = group * GROUP_BYTES + 4
                digits = trace.groups[start : start + LANES_BYTES].hex()
                if digits[count:].strip("0"):
                    raise EvidenceError(
                        "a sketch has digits for elements that do not exist",
                        expected=f"{count} digits in group {group}",
                    )
            group += 1


def write_trace(writer: BinaryWriter, trace: GemmTrace) -> None:
    """Append the encoding of ``trace``."""
    writer.digest(trace.scheme)
    writer.count(trace.events, limit=MAX_EVENTS)
    writer.fixed(trace.groups, len(trace.groups))


def read_trace(reader: BinaryReader) -> GemmTrace:
    """Read one trace. Raises EvidenceError for what no trace encodes to."""
    scheme = reader.digest()
    count = reader.count(limit=MAX_EVENTS, item_bytes=GROUP_BYTES)
    return GemmTrace(scheme, reader.fixed(count * GROUP_BYTES))


def encode_trace(trace: GemmTrace) -> bytes:
    """Return the one encoding of ``trace``."""
    writer = BinaryWriter()
    write_trace(writer, trace)
    return writer.finish()


def decode_trace(data: bytes) -> GemmTrace:
    """Return the trace that ``data`` encodes. Raises EvidenceError for anything else."""
    return decode_strict(data, read_trace, max_bytes=MAX_TRACE_BYTES, where=_WHERE)
