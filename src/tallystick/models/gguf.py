"""A bounded reader of GGUF headers, versions 2 and 3, little-endian (docs/spec/models.md).

It reads through a descriptor in windows, allocates nothing that a count in the file asks for before
that count was compared with the bytes that are there, and keeps values on disk until somebody asks
for one. It is meant to run in a child process (:mod:`tallystick.models.facts_child`): the
supervisor never parses a model file. Every refusal is an InputError.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tallystick.engine.gguf_writer import ValueType
from tallystick.errors import InputError
from tallystick.models.ggml_types import TENSOR_TYPES, TensorType
from tallystick.models.gguf_cursor import (
    FORMATS,
    INTEGER_FORMATS,
    SIZES,
    WINDOW,
    Cursor,
    hostile,
    read_at,
    shown,
    truncated,
)

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
MAX_ENTRIES: Final = 65_536
MAX_TENSORS: Final = 131_072
MAX_ITEMS: Final = 1 << 24
MAX_KEY: Final = 65_535
MAX_KEYS_TOTAL: Final = 16 * 1024 * 1024
MAX_NAME: Final = 63  # ggml keeps names in 64 bytes with a final zero
MAX_ALIGNMENT: Final = 1 << 20
MAX_DIMENSIONS: Final = 4
_MAX_ELEMENTS: Final = 2**63 - 1
_SMALLEST_ENTRY: Final = 8 + 1 + 4 + 1
_SMALLEST_TENSOR: Final = 8 + 4 + 4 + 8


@dataclass(frozen=True, slots=True)
class Entry:
    """One metadata entry, its value left in the file.

    ``item_type`` equals ``type`` unless the value is an array; ``count`` is then its number of
    items, else 1. ``start`` is the file offset of the key's length field, ``value_start`` that of
    the value type field, ``end`` that of the first byte after the value.
    """

    key: str
    type: ValueType
    item_type: ValueType
    count: int
    start: int
    value_start: int
    end: int


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: ``offset`` is relative to the data section, ``size`` in bytes without padding."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    type: TensorType
    offset: int
    size: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        product = 1
        for length in self.shape:
            product *= length
        return product


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the tensor data. Offsets and sizes are in bytes."""

    version: int
    entries: tuple[Entry, ...]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_offset: int
    file_size: int

    def find(self, key: str) -> Entry | None:
        """Return the entry named ``key``, if there is one."""
        return next((entry for entry in self.entries if entry.key == key), None)


def align(offset: int, alignment: int) -> int:
    """Return the first multiple of ``alignment`` that is not below ``offset``."""
    return -(-offset // alignment) * alignment


def read_header(descriptor: int) -> Header:
    """Read and check the header of the regular file behind ``descriptor``.

    The tensors must lie one after another, in order, each at the next multiple of the alignment,
    and the file must hold all of them and nothing more than the last one's padding.
    Raises InputError: empty, not a GGUF, unsupported version or byte order, truncated, hostile.
    """
    size = os.fstat(descriptor).st_size
    cursor = Cursor(descriptor, size)
    version = _read_version(cursor, size)
    tensor_count = _count(cursor, "tensors", MAX_TENSORS)
    entry_count = _count(cursor, "metadata entries", MAX_ENTRIES)
    _room(cursor, tensor_count * _SMALLEST_TENSOR + entry_count * _SMALLEST_ENTRY, size)
    entries = _read_entries(cursor, entry_count)
    alignment = _alignment(descriptor, entries)
    tensors = _read_tensors(cursor, tensor_count, alignment)
    data_offset = align(cursor.position, alignment)
    header = Header(version, entries, tensors, alignment, data_offset, size)
    _check_size(header)
    return header


def _read_version(cursor: Cursor, size: int) -> int:
    if size == 0:
        raise InputError("empty file", hint="copy or download the file again")
    magic = cursor.take(min(size, 4))
    if magic != MAGIC[: len(magic)]:
        raise InputError(
            "not a GGUF file",
            expected=repr(MAGIC),
            found=repr(magic),
            hint="give a .gguf model",
        )
    if size < 24:
        raise truncated("at least 24 bytes", size)
    version = cursor.u32()
    if version and version & 0xFFFF == 0:
        raise InputError(
            "a big-endian GGUF file",
            expected="little-endian",
            hint="convert the file first",
        )
    if version not in VERSIONS:
        raise InputError(
            "unsupported GGUF version",
            expected="version 2 or 3",
            found=f"version {version}",
            hint="convert the file with a current tool",
        )
    return version


def _count(cursor: Cursor, what: str, limit: int) -> int:
    value = cursor.u64()
    if value > limit:
        raise hostile(f"too many {what}", expected=f"at most {limit}", found=str(value))
    return value


def _room(cursor: Cursor, needed: int, size: int) -> None:
    if needed > cursor.remaining():
        raise truncated(f"at least {cursor.position + needed} bytes", size)


def _read_entries(cursor: Cursor, count: int) -> tuple[Entry, ...]:
    entries: list[Entry] = []
    seen: set[str] = set()
    total = 0
    for _ in range(count):
        entry = _read_entry(cursor)
        total += len(entry.key)
        if entry.key in seen:
            raise hostile(
                "a metadata key appears twice",
                expected="unique keys",
                found=ascii(entry.key[:80]),
            )
        if total > MAX_KEYS_TOTAL:
            raise hostile(
                "the metadata keys are too long",
                expected=f"at most {MAX_KEYS_TOTAL} characters together",
                found="more",
            )
        seen.add(entry.key)
        entries.append(entry)
    return tuple(entries)


def _read_entry(cursor: Cursor) -> Entry:
    start = cursor.position
    key = _text(cursor.string(MAX_KEY, "metadata key"), "metadata key")
    value_start = cursor.position
    kind = _value_type(cursor.u32(), key)
    item, count = kind, 1
    if kind is ValueType.ARRAY:
        item = _value_type(cursor.u32(), key)
        if item is ValueType.ARRAY:
            raise hostile(
                f"the metadata entry {key[:80]!a} is an array of arrays",
                expected="an array of plain values",
                found="a nested array",
            )
        count = _count(cursor, f"items in {key[:80]!a}", MAX_ITEMS)
    if item is ValueType.STRING:
        cursor.skip_strings(count)
    else:
        cursor.skip(count * SIZES[item])
    return Entry(key, kind, item, count, start, value_start, cursor.position)


def _text(raw: bytes, what: str) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if not text or "\0" in text:
        raise hostile(
            f"a {what} is not usable",
            expected="non-empty UTF-8 without zero",
            found=shown(raw),
        )
    return text


def _value_type(number: int, key: str) -> ValueType:
    try:
        return ValueType(number)
    except ValueError:
        raise hostile(
            f"the metadata entry {key[:80]!a} has an unknown type",
            expected="0..12",
            found=str(number),
        ) from None


def _alignment(descriptor: int, entries: tuple[Entry, ...]) -> int:
    entry = next((entry for entry in entries if entry.key == "general.alignment"), None)
    if entry is None:
        return DEFAULT_ALIGNMENT
    value = read_value(descriptor, entry) if entry.type is ValueType.UINT32 else None
    good = isinstance(value, int) and 0 < value <= MAX_ALIGNMENT and value & (value - 1) == 0
    if not good or not isinstance(value, int):
        raise hostile(
            "the alignment is not usable",
            expected=f"a 32-bit power of two, at most {MAX_ALIGNMENT}",
            found=str(value) if value is not None else f"a value of type {entry.type.name}",
        )
    return value


def _read_tensors(cursor: Cursor, count: int, alignment: int) -> tuple[TensorInfo, ...]:
    tensors: list[TensorInfo] = []
    seen: set[str] = set()
    expected = 0
    for _ in range(count):
        tensor = _read_tensor(cursor)
        if tensor.name in seen:
            raise hostile(
                "a tensor name appears twice",
                expected="unique names",
                found=ascii(tensor.name),
            )
        if tensor.offset != expected:
            raise hostile(
                f"the tensor {tensor.name!a} does not start where the one before it ends",
                expected=f"offset {expected}",
                found=f"offset {tensor.offset}",
            )
        seen.add(tensor.name)
        tensors.append(tensor)
        expected = align(tensor.offset + tensor.size, alignment)
    return tuple(tensors)


def _read_tensor(cursor: Cursor) -> TensorInfo:
    name = _text(cursor.string(MAX_NAME, "tensor name"), "tensor name")
    dimensions = cursor.u32()
    if dimensions > MAX_DIMENSIONS:
        raise hostile(
            f"the tensor {name!a} has too many dimensions",
            expected=f"at most {MAX_DIMENSIONS}",
            found=str(dimensions),
        )
    shape = tuple(cursor.u64() for _ in range(dimensions))
    type_id = cursor.u32()
    offset = cursor.u64()
    kind = TENSOR_TYPES.get(type_id)
    if kind is None:
        raise InputError(
            f"the tensor {name!a} has a type that this version does not know",
            expected="one of " + ", ".join(known.name for known in TENSOR_TYPES.values()),
            found=f"type {type_id}",
            hint="convert the file with a current tool",
        )
    return TensorInfo(name, shape, type_id, kind, offset, _tensor_size(name, shape, kind))


def _tensor_size(name: str, shape: tuple[int, ...], kind: TensorType) -> int:
    elements = 1
    for length in shape:
        # Checked one by one: a zero further right must not hide an absurd length.
        elements *= max(length, 1)
        if elements > _MAX_ELEMENTS:
            raise hostile(
                f"the tensor {name!a} is too large",
                expected=f"at most {_MAX_ELEMENTS} elements",
                found=f"shape {shape}",
            )
    row = shape[0] if shape else 1
    if row % kind.block:
        raise hostile(
            f"the rows of the tensor {name!a} are no whole blocks",
            expected=f"a multiple of {kind.block} elements ({kind.name})",
            found=str(row),
        )
    return 0 if 0 in shape else elements // kind.block * kind.size


def _check_size(header: Header) -> None:
    if not header.tensors:
        return
    last = header.tensors[-1]
    end = header.data_offset + last.offset + last.size
    if header.file_size < end:
        raise truncated(f"{end} bytes", header.file_size)
    padded = align(end, header.alignment)
    if header.file_size > padded:
        raise InputError(
            "the file goes on after its last tensor",
            expected=f"{end} bytes, or {padded} with padding",
            found=f"{header.file_size} bytes",
            hint="the header does not describe this file; get it again from its source",
        )


Scalar = int | float | bool


def read_value(descriptor: int, entry: Entry) -> Scalar | None:
    """Return the number that a non-array, non-string entry holds, else None."""
    if entry.type not in FORMATS:
        return None
    text = "<" + FORMATS[entry.type]
    raw = read_at(descriptor, entry.value_start + 4, struct.calcsize(text))
    value: Scalar = struct.unpack(text, raw)[0]
    return value


def read_integers(descriptor: int, entry: Entry, *, limit: int) -> tuple[int, ...] | None:
    """Return the items of an array of integers of at most ``limit`` items, None for all else."""
    text = FORMATS.get(entry.item_type, "")
    if entry.type is not ValueType.ARRAY or entry.count > limit or text not in INTEGER_FORMATS:
        return None
    layout = struct.Struct(f"<{entry.count}{text}")
    return layout.unpack(read_at(descriptor, entry.end - layout.size, layout.size))


def read_string(descriptor: int, entry: Entry, *, limit: int) -> bytes | None:
    """Return the bytes of a string entry, None for other types. InputError beyond ``limit``."""
    if entry.type is not ValueType.STRING:
        return None
    length = entry.end - entry.value_start - 12
    if length > limit:
        raise hostile(
            f"the metadata entry {entry.key[:80]!a} is too long",
            expected=f"at most {limit} bytes",
            found=f"{length} bytes",
        )
    return read_at(descriptor, entry.value_start + 12, length) if length else b""


def encoded_value(descriptor: int, entry: Entry) -> Iterator[bytes]:
    """Yield, in pieces, the value as the file encodes it: type field first."""
    position = entry.value_start
    while position < entry.end:
        piece = read_at(descriptor, position, min(WINDOW, entry.end - position))
        position += len(piece)
        yield piece
