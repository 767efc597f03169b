"""Records of fixed width: every field an integer or 32 bytes (docs/spec/binary-codec.md).

A record is a frozen dataclass whose field types come from here, or are an enumeration marked with
its width. Its encoding is the fields in their order, little-endian, without padding; so it has one
length, and one encoding per value.
"""

from __future__ import annotations

import struct
from dataclasses import fields
from enum import IntEnum
from operator import attrgetter
from typing import Annotated, Any, Final, Generic, TypeVar, get_args, get_type_hints

from tallystick.errors import EvidenceError, InputError

U8 = Annotated[int, "B"]
U16 = Annotated[int, "H"]
U32 = Annotated[int, "I"]
U64 = Annotated[int, "Q"]
Hash = Annotated[bytes, "32s"]

HASH_BYTES: Final = 32
ZERO: Final = bytes(HASH_BYTES)

T = TypeVar("T")


class FixedLayout(Generic[T]):
    """The encoding of one kind of record. Raises TypeError for a field type that is not fixed."""

    def __init__(self, kind: type[T], name: str) -> None:
        hints = get_type_hints(kind, include_extras=True)
        # Its callers pass data classes, which no type variable can be bound to.
        names = tuple(field.name for field in fields(kind))  # type: ignore[arg-type]
        codes = tuple(_code(hints[field]) for field in names)
        self._kind = kind
        self._name = name
        self._names = names
        self._codes = codes
        self._struct = struct.Struct("<" + "".join(codes))
        self._values = attrgetter(*names)
        self._enums = tuple(
            (index, enum)
            for index, field in enumerate(names)
            if issubclass(enum := get_args(hints[field])[0], IntEnum)
        )
        self._hashes = tuple(index for index, code in enumerate(codes) if code == "32s")

    @property
    def size(self) -> int:
        """Length of every encoding in bytes."""
        return self._struct.size

    @property
    def hash_fields(self) -> tuple[str, ...]:
        """Names of the fields of 32 bytes, in order."""
        return tuple(self._names[index] for index in self._hashes)

    def encode(self, value: T) -> bytes:
        """Return the encoding. Raises InputError, naming the field, for a value that does not fit.

        The error never holds the value itself.
        """
        values = self._values(value)
        for index in self._hashes:  # packing would pad or cut them without a word
            if len(values[index]) != HASH_BYTES:
                raise InputError(
                    f"{self._name}.{self._names[index]} has another length",
                    expected=f"{HASH_BYTES} bytes",
                    found=f"{len(values[index])} bytes",
                )
        try:
            return self._struct.pack(*values)
        except struct.error:
            raise self._misfit(values) from None

    def decode(self, data: bytes) -> T:
        """Return the record whose encoding is ``data``, which holds nothing else.

        Raises EvidenceError for another length, and for a number that names no kind.
        """
        if len(data) != self._struct.size:
            raise EvidenceError(
                f"{self._name}: another length",
                expected=f"{self._struct.size} bytes",
                found=f"{len(data)} bytes",
            )
        values: list[Any] = list(self._struct.unpack(data))
        for index, enum in self._enums:
            try:
                values[index] = enum(values[index])
            except ValueError:
                raise EvidenceError(
                    f"{self._name}.{self._names[index]} is no known kind",
                    expected=", ".join(f"{item.value} ({item.name.lower()})" for item in enum),
                    found=str(values[index]),
                ) from None
        return self._kind(*values)

    def _misfit(self, values: tuple[int, ...]) -> InputError:
        for name, code, value in zip(self._names, self._codes, values, strict=True):
            if code == "32s":
                continue
            bits = 8 * struct.calcsize("<" + code)
            if not 0 <= value < 1 << bits:
                return InputError(
                    f"{self._name}.{name} does not fit its field",
                    expected=f"an integer of {bits} bits",
                    found="below 0" if value < 0 else f"{value.bit_length()} bits",
                )
        raise AssertionError("packing refuses what the widths take")


def _code(hint: object) -> str:
    arguments = get_args(hint)
    if len(arguments) != 2 or not isinstance(arguments[1], str):
        raise TypeError(f"{hint!r} is not the type of a field of fixed width")
    return arguments[1]
