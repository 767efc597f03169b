"""Bounded sequential reads of a GGUF header, and the refusals they can end in."""

from __future__ import annotations

import os
import struct
from typing import Final

from tallystick.engine.gguf_writer import ValueType
from tallystick.errors import InputError

MAX_HEADER: Final = 512 * 1024 * 1024
WINDOW: Final = 1 << 20
_U64: Final = struct.Struct("<Q")


FORMATS: Final = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
INTEGER_FORMATS: Final = frozenset("BbHhIiQq")
SIZES: Final = {kind: struct.calcsize("<" + text) for kind, text in FORMATS.items()}


def shown(raw: bytes) -> str:
    """Return ``raw`` as printable ASCII, cut to 80 bytes."""
    text = ascii(raw[:80].decode("utf-8", "replace"))
    return text if len(raw) <= 80 else text + "..."


def hostile(message: str, *, expected: str, found: str) -> InputError:
    """Return the refusal of a header that no honest writer makes."""
    return InputError(
        message,
        expected=expected,
        found=found,
        hint="the file is damaged or was made to harm a reader; get it again from its source",
    )


def truncated(expected: str, size: int) -> InputError:
    """Return the refusal of a file that ends too early."""
    return InputError(
        "the GGUF file is truncated",
        expected=expected,
        found=f"{size} bytes",
        hint="copy or download the file again",
    )


class Cursor:
    """Sequential, bounded reads of the header through one window of the file."""

    def __init__(self, descriptor: int, file_size: int) -> None:
        self._descriptor = descriptor
        self._file_size = file_size
        self._window = b""
        self._base = 0
        self.position = 0

    def _require(self, length: int) -> None:
        end = self.position + length
        if end > self._file_size:
            raise truncated(f"at least {end} bytes", self._file_size)
        if end > MAX_HEADER:
            raise hostile(
                "the GGUF header is too large",
                expected=f"at most {MAX_HEADER} bytes",
                found=f"at least {end} bytes",
            )

    def _fill(self, length: int) -> int:
        """Make the next ``length`` bytes present; return their index in the window."""
        self._require(length)
        index = self.position - self._base
        if index < 0 or index + length > len(self._window):
            want = min(max(length, WINDOW), self._file_size - self.position)
            self._window = read_at(self._descriptor, self.position, want)
            self._base = self.position
            index = 0
        return index

    def take(self, length: int) -> bytes:
        """Return the next ``length`` bytes."""
        index = self._fill(length)
        self.position += length
        return self._window[index : index + length]

    def skip(self, length: int) -> None:
        """Pass over ``length`` bytes, which must exist."""
        self._require(length)
        self.position += length

    def number(self, kind: ValueType) -> int:
        """Return the next unsigned integer of the width of ``kind``."""
        raw = self.take(SIZES[kind])
        return int.from_bytes(raw, "little")

    def u32(self) -> int:
        """Return the next unsigned 32-bit integer."""
        return self.number(ValueType.UINT32)

    def u64(self) -> int:
        """Return the next unsigned 64-bit integer."""
        return self.number(ValueType.UINT64)

    def string(self, limit: int, what: str) -> bytes:
        """Return the next length-prefixed string; ``what`` names it in the refusal."""
        length = self.u64()
        if length > limit:
            raise hostile(
                f"a {what} is too long",
                expected=f"at most {limit} bytes",
                found=f"{length} bytes",
            )
        return self.take(length)

    def skip_strings(self, count: int) -> None:
        """Skip ``count`` length-prefixed strings. A loop over the window: vocabularies are long."""
        unpack = _U64.unpack_from
        while count:
            index = self._fill(8)
            window, size, base = self._window, len(self._window), self._base
            while count and index + 8 <= size:
                index += 8 + unpack(window, index)[0]
                count -= 1
            self.position = base
            self.skip(index)

    def remaining(self) -> int:
        """Return how many bytes of the file follow."""
        return self._file_size - self.position


def read_at(descriptor: int, offset: int, length: int) -> bytes:
    """Return exactly ``length`` bytes at ``offset``. InputError when the file ends before."""
    pieces: list[bytes] = []
    while length:
        piece = os.pread(descriptor, length, offset)
        if not piece:
            raise InputError("the model file became shorter while it was read")
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
