"""A minimal GGUF version 3 writer: the same arguments give the same bytes, always.

Only what our own generated models need: no alignment choice, no endianness choice, no
splitting, and no dependency. Model files of others are never rewritten with it in place;
the format is described in the GGUF specification of the ggml project.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import IO, Final

MAGIC: Final = b"GGUF"
VERSION: Final = 3
ALIGNMENT: Final = 32


class ValueType(IntEnum):
    """Type numbers of metadata values, as the format defines them."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


@dataclass(frozen=True, slots=True)
class Entry:
    """One metadata entry whose value is already in its wire form."""

    key: str
    kind: ValueType
    payload: bytes


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: ``shape`` has the outermost dimension first, ``data`` is the raw ggml rows."""

    name: str
    type_number: int
    shape: tuple[int, ...]
    data: bytes

    @property
    def place(self) -> TensorPlace:
        """What the header says of the tensor."""
        return TensorPlace(self.name, self.type_number, self.shape, len(self.data))


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor as the header names it; ``size`` is the number of its bytes."""

    name: str
    type_number: int
    shape: tuple[int, ...]
    size: int


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _array(kind: ValueType, count: int, payload: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + payload


def u32(key: str, value: int) -> Entry:
    """Return an unsigned 32-bit entry."""
    return Entry(key, ValueType.UINT32, struct.pack("<I", value))


def f32(key: str, value: float) -> Entry:
    """Return a binary32 entry; ``value`` is rounded to the nearest binary32."""
    return Entry(key, ValueType.FLOAT32, struct.pack("<f", value))


def boolean(key: str, value: bool) -> Entry:
    """Return a boolean entry."""
    return Entry(key, ValueType.BOOL, b"\x01" if value else b"\x00")


def text(key: str, value: str) -> Entry:
    """Return a UTF-8 string entry."""
    return Entry(key, ValueType.STRING, _string(value))


def i32_array(key: str, values: Sequence[int]) -> Entry:
    """Return an entry holding an array of signed 32-bit integers."""
    payload = struct.pack(f"<{len(values)}i", *values)
    return Entry(key, ValueType.ARRAY, _array(ValueType.INT32, len(values), payload))


def text_array(key: str, values: Sequence[str]) -> Entry:
    """Return an entry holding an array of UTF-8 strings."""
    payload = b"".join(map(_string, values))
    return Entry(key, ValueType.ARRAY, _array(ValueType.STRING, len(values), payload))


def _padding(size: int) -> bytes:
    return bytes(-size % ALIGNMENT)


def _header(metadata: Sequence[Entry], places: Sequence[TensorPlace]) -> bytes:
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(places), len(metadata))]
    for entry in metadata:
        parts += [_string(entry.key), struct.pack("<I", entry.kind), entry.payload]
    offset = 0
    for place in places:
        dimensions = place.shape[::-1]  # the format puts the innermost dimension first
        parts.append(_string(place.name))
        parts.append(struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions))
        parts.append(struct.pack("<IQ", place.type_number, offset))
        offset += place.size + len(_padding(place.size))
    return b"".join(parts)


def write_header(
    stream: IO[bytes], metadata: Sequence[Entry], places: Sequence[TensorPlace]
) -> None:
    """Write all that comes before the tensors' bytes; these follow by :func:`write_data`, in order.

    Raises ValueError when a name occurs twice: readers disagree about such files.
    """
    for kind, names in (
        ("key", [entry.key for entry in metadata]),
        ("tensor", [place.name for place in places]),
    ):
        if len(set(names)) != len(names):
            raise ValueError(f"a {kind} name occurs twice")
    header = _header(metadata, places)
    stream.write(header + _padding(len(header)))


def write_data(stream: IO[bytes], *pieces: bytes | memoryview) -> None:
    """Write the bytes of the next tensor, given in one or more pieces."""
    for piece in pieces:
        stream.write(piece)
    stream.write(_padding(sum(map(len, pieces))))


def write_gguf(stream: IO[bytes], metadata: Sequence[Entry], tensors: Sequence[Tensor]) -> None:
    """Write one file to ``stream``, entries and tensors in the given order.

    Raises ValueError when a name occurs twice: readers disagree about such files.
    """
    write_header(stream, metadata, [tensor.place for tensor in tensors])
    for tensor in tensors:
        write_data(stream, tensor.data)
