"""The binary codec: one fixed encoding per value (docs/spec/binary-codec.md).

Fixed order, little-endian integers of fixed width, 32-byte digests, byte strings with a u32 length
and a bound. Ours because it is small: a general serialiser would have to be pinned to the same
rules (no default, no alternative width, nothing after the end) and could not be read in a minute.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeVar

from tallystick.errors import EvidenceError, InputError

T = TypeVar("T")

DIGEST_BYTES: Final = 32
_U32_BYTES: Final = 4


class BinaryWriter:
    """Collects the encoding of one value; each method appends one field.

    Values that do not fit are refused with InputError, so that nothing is written that
    :class:`BinaryReader` would not give back.
    """

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    def u8(self, value: int) -> None:
        """Append an integer of 8 bits."""
        self._integer(value, 1)

    def u16(self, value: int) -> None:
        """Append an integer of 16 bits."""
        self._integer(value, 2)

    def u32(self, value: int) -> None:
        """Append an integer of 32 bits."""
        self._integer(value, 4)

    def u64(self, value: int) -> None:
        """Append an integer of 64 bits."""
        self._integer(value, 8)

    def digest(self, value: bytes) -> None:
        """Append the 32 bytes of a digest."""
        if len(value) != DIGEST_BYTES:
            raise InputError(
                "a digest has another length",
                expected=f"{DIGEST_BYTES} bytes",
                found=f"{len(value)} bytes",
            )
        self._data += value

    def fixed(self, value: bytes, length: int) -> None:
        """Append exactly ``length`` bytes, such as a signature or a nonce, without a length."""
        if len(value) != length:
            raise InputError(
                "a field has another length",
                expected=f"{length} bytes",
                found=f"{len(value)} bytes",
            )
        self._data += value

    def sized(self, value: bytes, *, limit: int) -> None:
        """Append a u32 length and at most ``limit`` bytes."""
        if len(value) > limit:
            raise _too_many("bytes", limit, len(value))
        self.u32(len(value))
        self._data += value

    def count(self, value: int, *, limit: int) -> None:
        """Append the u32 number of the items that follow, at most ``limit``."""
        if value > limit:
            raise _too_many("items", limit, value)
        self.u32(value)

    def integers(self, layout: struct.Struct, values: tuple[int, ...]) -> None:
        """Append several integers at once; ``layout`` is little-endian: ``<`` and B, H, I, Q."""
        try:
            self._data += layout.pack(*values)
        except struct.error as error:
            raise InputError("an integer does not fit its field", expected=layout.format) from error

    def finish(self) -> bytes:
        """Return the encoding."""
        return bytes(self._data)

    def _integer(self, value: int, width: int) -> None:
        high = (1 << (8 * width)) - 1
        if not 0 <= value <= high:
            raise InputError(
                "an integer does not fit its field",
                expected=f"0..{high}",
                found=f"an integer of {value.bit_length()} bits" if value > 0 else "below 0",
            )
        self._data += value.to_bytes(width, "little")


def _too_many(what: str, limit: int, found: int) -> InputError:
    return InputError(f"too many {what}", expected=f"at most {limit}", found=str(found))


class BinaryReader:
    """Reads the fields of one encoding in order; every refusal is an EvidenceError with its offset.

    Lengths and counts are compared with their bound and with the bytes that are left before
    anything is allocated for them.
    """

    __slots__ = ("_data", "_offset", "_where")

    def __init__(self, data: bytes, *, where: str = "encoding") -> None:
        self._data = data
        self._offset = 0
        self._where = where

    def u8(self) -> int:
        """Read an integer of 8 bits."""
        return int.from_bytes(self._take(1), "little")

    def u16(self) -> int:
        """Read an integer of 16 bits."""
        return int.from_bytes(self._take(2), "little")

    def u32(self) -> int:
        """Read an integer of 32 bits."""
        return int.from_bytes(self._take(4), "little")

    def u64(self) -> int:
        """Read an integer of 64 bits."""
        return int.from_bytes(self._take(8), "little")

    def digest(self) -> bytes:
        """Read the 32 bytes of a digest."""
        return self._take(DIGEST_BYTES)

    def fixed(self, length: int) -> bytes:
        """Read ``length`` bytes that were written without a length."""
        return self._take(length)

    def sized(self, *, limit: int) -> bytes:
        """Read a byte string of at most ``limit`` bytes."""
        length = self._bounded("bytes", limit)
        return self._take(length)

    def count(self, *, limit: int, item_bytes: int) -> int:
        """Read the number of items that follow, each of which takes at least ``item_bytes``."""
        number = self._bounded("items", limit)
        if number * item_bytes > self._left():
            raise self.refusal(
                "more items announced than the data can hold",
                expected=f"at most {self._left() // item_bytes}",
                found=str(number),
            )
        return number

    def integers(self, layout: struct.Struct) -> tuple[int, ...]:
        """Read several integers at once; ``layout`` is little-endian: ``<`` and B, H, I, Q."""
        return layout.unpack(self._take(layout.size))

    def finish(self) -> None:
        """Refuse bytes after the last field."""
        if self._left():
            raise self.refusal(
                "bytes after the end", expected="no more bytes", found=f"{self._left()} bytes"
            )

    def refusal(self, message: str, *, expected: str, found: str) -> EvidenceError:
        """Return the error for what was just read: it says where in which encoding."""
        return EvidenceError(
            f"{self._where}: {message} (at byte {self._offset})", expected=expected, found=found
        )

    def _bounded(self, what: str, limit: int) -> int:
        number = self.u32()
        if number > limit:
            self._offset -= _U32_BYTES
            raise self.refusal(f"too many {what}", expected=f"at most {limit}", found=str(number))
        return number

    def _left(self) -> int:
        return len(self._data) - self._offset

    def _take(self, length: int) -> bytes:
        if length > self._left():
            raise self.refusal(
                "the data ends early", expected=f"{length} bytes", found=f"{self._left()} bytes"
            )
        start = self._offset
        self._offset += length
        return self._data[start : self._offset]


def decode_strict(
    data: bytes, read: Callable[[BinaryReader], T], *, max_bytes: int, where: str = "encoding"
) -> T:
    """Return the value that ``read`` finds in ``data``, which must hold nothing else.

    Raises EvidenceError, starting with ``where``, for data that is longer than ``max_bytes``, ends
    early, goes on after the value, or holds a field that ``read`` refuses.
    """
    if len(data) > max_bytes:
        raise EvidenceError(
            f"{where}: too long", expected=f"at most {max_bytes} bytes", found=f"{len(data)} bytes"
        )
    reader = BinaryReader(data, where=where)
    value = read(reader)
    reader.finish()
    return value
