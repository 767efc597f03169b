"""``sign_bucket_256_v1``: 256 bits about the first elements of a matrix product.

Everything is decided on the bits of the float32 values, so any language gives the same sketch
(docs/spec/observer.md#sketch).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from tallystick.errors import EvidenceError, RunFailedError

SKETCH_ELEMENTS: Final = 64
SKETCH_BYTES: Final = 32
# 2^-8, 2^-4, 2^-2, 1, 4 and 16 as biased float32 exponents. All are powers of two, so a bucket is
# a range of exponents; only zero has to be told from the subnormals.
_BOUNDS: Final = (119, 123, 125, 127, 129, 131)
_EXPONENT: Final = 0x7F800000
_BYTES: Final = 4
_WHOLE: Final = _BYTES * SKETCH_ELEMENTS


def _nibble(top: int) -> int:
    """Return the nibble of the floats whose upper 9 bits (sign and exponent) are ``top``."""
    exponent = top & 0xFF
    return (top >> 8) << 3 | 1 + sum(exponent >= bound for bound in _BOUNDS)


_DIGITS: Final = "".join(f"{_nibble(top):x}" for top in range(512))

# The quick way. A float's top byte holds all of the exponent but its last bit, and all bounds are
# odd: that bit counts only where the top byte says so, and then it adds 1. Top bytes of values that
# may be zero, subnormal or not finite are left to the plain rule.
_PLAIN: Final = 0xFF
_FROM_TOP: Final = bytes(
    _PLAIN if top & 0x7F in (0, 0x7F) else _nibble(top << 1) for top in range(256)
)
_LAST_BIT_COUNTS: Final = bytes(_nibble(top << 1) != _nibble(top << 1 | 1) for top in range(256))
_LAST_BIT: Final = bytes(third >> 7 for third in range(256))


def sketch(data: bytes) -> str:
    """Return the 64 hex digits for 1 to 64 float32 values (little-endian), one digit a value.

    Missing values are 0. Raises RunFailedError for a value that is not finite.
    """
    return sketch_bytes(data).hex()


def sketch_bytes(data: bytes) -> bytes:
    """Return the sketch of :func:`sketch` as 32 bytes: the four lanes, each big-endian."""
    if len(data) % _BYTES or not _BYTES <= len(data) <= _WHOLE:
        raise ValueError("a sketch is made of 1 to 64 float32 values")
    nibbles = data[3::4].translate(_FROM_TOP)
    if _PLAIN in nibbles:
        values = struct.unpack(f"<{len(nibbles)}I", data)
        return bytes.fromhex("".join(_digits(values)).ljust(SKETCH_ELEMENTS, "0"))
    return _packed(_with_last_bits(data, nibbles).ljust(SKETCH_ELEMENTS, b"\0"))


def sketch_batch(batch: Sequence[bytes]) -> list[bytes]:
    """Return :func:`sketch_bytes` of each of ``batch``, much faster than one by one."""
    whole = [place for place, data in enumerate(batch) if len(data) == _WHOLE]
    made = [b"" if len(data) == _WHOLE else sketch_bytes(data) for data in batch]
    joined = b"".join([batch[place] for place in whole])
    nibbles = joined[3::4].translate(_FROM_TOP)
    packed = _packed(_with_last_bits(joined, nibbles.replace(b"\xff", b"\0")))
    for group, place in enumerate(whole):
        made[place] = packed[SKETCH_BYTES * group : SKETCH_BYTES * (group + 1)]
    at = nibbles.find(_PLAIN)
    while at >= 0:
        group = at // SKETCH_ELEMENTS
        made[whole[group]] = sketch_bytes(batch[whole[group]])
        at = nibbles.find(_PLAIN, SKETCH_ELEMENTS * (group + 1))
    return made


def _with_last_bits(data: bytes, nibbles: bytes) -> bytes:
    """Return the nibbles of ``data``, given those of its top bytes: one more where it counts."""
    counts = int.from_bytes(data[3::4].translate(_LAST_BIT_COUNTS), "big")
    added = counts & int.from_bytes(data[2::4].translate(_LAST_BIT), "big")
    return (int.from_bytes(nibbles, "big") + added).to_bytes(len(nibbles), "big")


def _packed(nibbles: bytes) -> bytes:
    """Return an even number of nibbles, one a byte, as half as many bytes."""
    high, low = int.from_bytes(nibbles[::2], "big"), int.from_bytes(nibbles[1::2], "big")
    return (high << 4 | low).to_bytes(len(nibbles) // 2, "big")


def _digits(values: tuple[int, ...]) -> Iterator[str]:
    for bits in values:
        exponent = bits & _EXPONENT
        if exponent == _EXPONENT:
            raise RunFailedError(
                "a matrix product gave a value that is not finite",
                hint="the weights are damaged or not a language model's",
            )
        if exponent or bits & 0x7FFFFFFF:
            yield _DIGITS[bits >> 23]
        else:
            yield "8" if bits else "0"


def lanes(text: str) -> tuple[int, int, int, int]:
    """Return the sketch ``text`` (64 hex digits) as four big-endian signed 64-bit integers.

    Raises EvidenceError for another text.
    """
    if len(text) != SKETCH_ELEMENTS or not set(text) <= set("0123456789abcdef"):
        raise EvidenceError("not a sketch", expected="64 lower-case hex digits")
    a, b, c, d = struct.unpack(">4q", bytes.fromhex(text))
    return a, b, c, d
