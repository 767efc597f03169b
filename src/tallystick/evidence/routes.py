"""Which experts each layer chose for each token.

Rows stand position-major, within a position by ascending layer; a row is the ids as the model
gives them. They depend on the text, so they are private and their root is blinded
(docs/spec/evidence.md#expert-routes).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tallystick.canonical.codec import BinaryReader, BinaryWriter, decode_strict
from tallystick.canonical.hashing import domain_hash, u32le, u64le
from tallystick.compute.architecture import MAX_LAYERS
from tallystick.contracts.runtime import SEQUENTIAL
from tallystick.errors import EvidenceError

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_EXPERTS: Final = 65_536
MAX_ROUTE_IDS_BYTES: Final = 48 * 1024 * 1024
ROUTE_ID_BYTES: Final = 4
_HEAD_BYTES: Final = 4 + 4 + 4 + 8
_WHERE: Final = "expert routes"


@dataclass(frozen=True, slots=True)
class ExpertRoutes:
    """``rows`` rows of ``used`` different ids below ``experts``, u32 little-endian. Private.

    Raises EvidenceError for numbers that contradict each other and ids that are out of range or
    stand in a row twice.
    """

    layers: int
    experts: int
    used: int
    rows: int
    ids: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Check everything that routes by themselves can be checked for."""
        _check_numbers(self.layers, self.experts, self.used)
        size = self.rows * self.used * ROUTE_ID_BYTES
        if self.rows < 1 or size > MAX_ROUTE_IDS_BYTES or len(self.ids) != size:
            raise EvidenceError(
                "expert routes of an impossible size",
                expected=f"1 row or more, {size} bytes, at most {MAX_ROUTE_IDS_BYTES}",
                found=f"{self.rows} rows, {len(self.ids)} bytes",
            )
        _check_ids(self.ids, self.experts, self.used)

    def root(self, blind: bytes) -> bytes:
        """Return the 32-byte commitment to these routes under the run's blind."""
        numbers = [u32le(self.layers), u32le(self.experts), u32le(self.used), u64le(self.rows)]
        return domain_hash("palw.expert-routes", 1, [blind, *numbers, self.ids])


def last_layer_from(policy: str, prompt_tokens: int) -> int:
    """Return the first position at which the last layer is evaluated.

    ``sequential`` evaluates it everywhere, ``row-class`` only where an output is needed
    (docs/spec/execution.md#batches).
    """
    return 0 if policy == SEQUENTIAL else prompt_tokens - 1


def route_rows(layers: int, prefill: int, generated: int, *, last_from: int) -> int:
    """Return how many rows a run has: each layer at each evaluated position.

    The last layer's rows begin at position ``last_from`` (:func:`last_layer_from`).
    """
    positions = prefill + generated - 1
    return (layers - 1) * positions + positions - last_from


def check_routes(
    routes: ExpertRoutes, layers: int, prefill: int, generated: int, *, last_from: int
) -> None:
    """Require the layers and the number of rows of a run. Raises EvidenceError."""
    expected = (layers, route_rows(layers, prefill, generated, last_from=last_from))
    found = (routes.layers, routes.rows)
    if expected != found:
        raise EvidenceError(
            "the expert routes are not those of all layers and positions",
            expected="{} layers, {} rows".format(*expected),
            found="{} layers, {} rows".format(*found),
        )


class RouteBuilder:
    """Collects rows while batches arrive in position order; never leaves one out unnoticed.

    After one error every method raises EvidenceError.
    """

    __slots__ = (
        "_experts",
        "_ids",
        "_last_from",
        "_layers",
        "_next",
        "_poisoned",
        "_rows",
        "_used",
    )

    def __init__(self, layers: int, experts: int, used: int, *, last_from: int) -> None:
        _check_numbers(layers, experts, used)
        self._layers, self._experts, self._used = layers, experts, used
        self._last_from = last_from
        self._ids = bytearray()
        self._next = self._rows = 0
        self._poisoned = False

    @property
    def rows(self) -> int:
        """Number of rows so far."""
        return self._rows

    def rows_due(self, first_position: int, positions: int) -> int:
        """Return how many of these consecutive positions also have a row of the last layer."""
        return max(0, first_position + positions - max(first_position, self._last_from))

    def push(self, first_position: int, positions: int, layers: Sequence[Buffer]) -> None:
        """Add the rows of ``positions`` consecutive positions.

        ``layers`` holds one block of ids (32-bit little-endian) for each layer in order:
        ``positions`` rows, in the last one only those that are due (see :meth:`rows_due`), of
        positions up to the last. Raises EvidenceError for a gap, an overlap, a layer or a row too
        few or too many, and ids that cannot be.
        """
        if self._poisoned:
            raise EvidenceError(
                "the expert routes were refused before: no more rows are taken",
                expected="a builder without an error",
            )
        try:
            self._push(first_position, positions, layers)
        except BaseException:
            self._poisoned = True
            self._ids.clear()
            raise

    def _push(self, first_position: int, positions: int, layers: Sequence[Buffer]) -> None:
        if first_position != self._next or positions < 1:
            raise EvidenceError(
                "a batch of expert routes is out of order",
                expected=f"position {self._next} and at least one row",
                found=f"position {first_position} and {positions} rows",
            )
        if len(layers) != self._layers:
            raise EvidenceError(
                "a batch of expert routes has another number of layers",
                expected=str(self._layers),
                found=str(len(layers)),
            )
        due = self.rows_due(first_position, positions)
        width = self._used * ROUTE_ID_BYTES
        blocks = [bytes(block) for block in layers]
        for layer, block in enumerate(blocks):
            rows = due if layer == self._layers - 1 else positions
            if len(block) != rows * width:
                raise EvidenceError(
                    "a layer's expert routes do not cover a batch",
                    expected=f"{rows} rows of {self._used} ids in layer {layer}",
                    found=f"{len(block)} bytes",
                )
        joined = _interleaved(blocks, positions, due, width)
        if len(self._ids) + len(joined) > MAX_ROUTE_IDS_BYTES:
            raise EvidenceError(
                "too many expert routes",
                expected=f"at most {MAX_ROUTE_IDS_BYTES} bytes",
                found=f"{len(self._ids) + len(joined)} bytes",
            )
        if joined:
            _check_ids(joined, self._experts, self._used)
        self._ids += joined
        self._next += positions
        self._rows += len(joined) // width

    def finish(self) -> ExpertRoutes:
        """Return all rows. Raises EvidenceError when there is none."""
        if self._poisoned:
            raise EvidenceError(
                "the expert routes were refused before: there is nothing to return",
                expected="a builder without an error",
            )
        return ExpertRoutes(self._layers, self._experts, self._used, self._rows, bytes(self._ids))


def _interleaved(blocks: Sequence[bytes], positions: int, due: int, width: int) -> bytes:
    """Return the rows of blocks, one a layer, position by position."""
    rows: list[bytes] = []
    without = positions - due
    for position in range(positions):
        start = position * width
        rows += [block[start : start + width] for block in blocks[:-1]]
        if position >= without:
            start = (position - without) * width
            rows.append(blocks[-1][start : start + width])
    return b"".join(rows)


def _check_numbers(layers: int, experts: int, used: int) -> None:
    if not (1 <= layers <= MAX_LAYERS and 1 <= used <= experts <= MAX_EXPERTS):
        raise EvidenceError(
            "expert routes of impossible numbers",
            expected=f"1..{MAX_LAYERS} layers, 1 or more of at most {MAX_EXPERTS} experts used",
            found=f"{layers} layers, {used} of {experts}",
        )


def _check_ids(ids: bytes, experts: int, used: int) -> None:
    values = struct.unpack(f"<{len(ids) // ROUTE_ID_BYTES}I", ids)
    if max(values) >= experts:
        at = next(at for at, value in enumerate(values) if value >= experts)
        raise EvidenceError(
            "a route names an expert that does not exist",
            expected=f"ids below {experts}",
            found=f"a larger one in row {at // used}",
        )
    columns = iter(values)
    rows = zip(*[columns] * used, strict=True)
    if (
        twice := next((at for at, row in enumerate(rows) if len({*row}) != used), None)
    ) is not None:
        raise EvidenceError(
            "a route names an expert twice",
            expected=f"{used} different ids in each row",
            found=f"fewer in row {twice}",
        )


def write_routes(writer: BinaryWriter, routes: ExpertRoutes) -> None:
    """Append the encoding of ``routes``."""
    for number in (routes.layers, routes.experts, routes.used):
        writer.u32(number)
    writer.u64(routes.rows)
    writer.fixed(routes.ids, len(routes.ids))


def read_routes(reader: BinaryReader) -> ExpertRoutes:
    """Read routes. Raises EvidenceError for what no routes encode to."""
    layers, experts, used = reader.u32(), reader.u32(), reader.u32()
    rows = reader.u64()
    _check_numbers(layers, experts, used)
    size = rows * used * ROUTE_ID_BYTES
    if size > MAX_ROUTE_IDS_BYTES:
        raise reader.refusal(
            "too many rows",
            expected=f"at most {MAX_ROUTE_IDS_BYTES} bytes of ids",
            found=f"{size} bytes",
        )
    return ExpertRoutes(layers, experts, used, rows, reader.fixed(size))


def encode_routes(routes: ExpertRoutes) -> bytes:
    """Return the one encoding of ``routes``."""
    writer = BinaryWriter()
    write_routes(writer, routes)
    return writer.finish()


def decode_routes(data: bytes) -> ExpertRoutes:
    """Return the routes that ``data`` encodes. Raises EvidenceError for anything else."""
    limit = _HEAD_BYTES + MAX_ROUTE_IDS_BYTES
    return decode_strict(data, read_routes, max_bytes=limit, where=_WHERE)
