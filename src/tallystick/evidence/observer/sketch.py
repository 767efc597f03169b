"""``sign_bucket_256_v1``: 256 bits about the first elements of a matrix product.

Everything is decided on the bits of the float32 values, so any language gives the same sketch
(docs/spec/observer.md#sketch).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from tallystick.errors import EvidenceError, RunFailedError

SKETCH_ELEMENTS: Final = 64
SKETCH_BYTES: Final = 32
# 2^-8, 2^-4, 2^-2, 1, 4 and 16 as biased float32 exponents. All are powers of two, so a bucket is
# a range of exponents; only zero has to be told from the subnormals.
_BOUNDS: Final = (119, 123, 125, 127, 129, 131)
_BYTES: Final = 4
_WHOLE: Final = _BYTES * SKETCH_ELEMENTS


def _nibble(top: int) -> int:
    """Return the nibble of the floats whose upper 9 bits (sign and exponent) are ``top``."""
    exponent = top & 0xFF
    return (top >> 8) << 3 | 1 + sum(exponent >= bound for bound in _BOUNDS)


# A float's top byte holds all of the exponent but its last bit, and all bounds are odd: that bit
# counts only where the top byte says so, and then it adds 1. Where the top byte is zero but for
# the sign, the value is zero or tiny, and 1 is added if any other bit is set.
_EXPONENT_BITS: Final = 0x7F
_TINY, _HUGE = 0, 0x7F
_FROM_TOP: Final = bytes(_nibble(top << 1) - (top & _EXPONENT_BITS == _TINY) for top in range(256))
_IS_TINY: Final = bytes(top & _EXPONENT_BITS == _TINY for top in range(256))
_IS_HUGE: Final = bytes(top & _EXPONENT_BITS == _HUGE for top in range(256))
_LAST_BIT_COUNTS: Final = bytes(_nibble(top << 1) != _nibble(top << 1 | 1) for top in range(256))
_LAST_BIT: Final = bytes(third >> 7 for third in range(256))
_DIGITS: Final = b"0123456789abcdef".ljust(256)
_IS_SET: Final = bytes(value != 0 for value in range(256))


def sketch(data: bytes) -> str:
    """Return the 64 hex digits for 1 to 64 float32 values (little-endian), one digit a value.

    Missing values are 0. Raises RunFailedError for a value that is not finite.
    """
    return sketch_bytes(data).hex()


def sketch_bytes(data: bytes) -> bytes:
    """Return the sketch of :func:`sketch` as 32 bytes: the four lanes, each big-endian."""
    return sketch_batch((data,))[0]


def sketch_batch(batch: Sequence[bytes]) -> list[bytes]:
    """Return :func:`sketch_bytes` of each of ``batch``, much faster than one by one."""
    if any(len(data) % _BYTES or not _BYTES <= len(data) <= _WHOLE for data in batch):
        raise ValueError("a sketch is made of 1 to 64 float32 values")
    # The digit of a value that does not exist is that of zero.
    joined = b"".join([data.ljust(_WHOLE, b"\0") for data in batch])
    made = _cut(_nibbles(joined))
    doubtful = _tiny_groups(joined)
    exact = _nibbles_with_tiny(
        b"".join([joined[_WHOLE * at : _WHOLE * (at + 1)] for at in doubtful])
    )
    for at, value in zip(doubtful, _cut(exact), strict=True):
        made[at] = value
    return made


def _nibbles(data: bytes) -> bytes:
    """Return the nibble of each float32 in ``data``, one a byte; 0 or 8 where it is tiny.

    All values are worked on at once: as bytes of one large number.
    """
    top = data[3::4]
    last = _number(data[2::4].translate(_LAST_BIT))
    if _HUGE in top or _HUGE | 0x80 in top:
        _require_finite(top, last)
    added = _number(top.translate(_LAST_BIT_COUNTS)) & last
    return (_number(top.translate(_FROM_TOP)) + added).to_bytes(len(top), "big")


def _nibbles_with_tiny(data: bytes) -> bytes:
    """Return the nibble of each float32 in ``data``: a tiny one that is not zero is in bucket 1."""
    below = _number(data[2::4]) | _number(data[1::4]) | _number(data[0::4])
    some = _number(below.to_bytes(len(data) // _BYTES, "big").translate(_IS_SET))
    added = _number(data[3::4].translate(_IS_TINY)) & some
    return (_number(_nibbles(data)) + added).to_bytes(len(data) // _BYTES, "big")


def _require_finite(top: bytes, last: int) -> None:
    if _number(top.translate(_IS_HUGE)) & last:
        raise RunFailedError(
            "a matrix product gave a value that is not finite",
            hint="the weights are damaged or not a language model's",
        )


def _tiny_groups(data: bytes) -> list[int]:
    """Return which sketches have a value whose top byte is zero but for the sign."""
    tiny = data[3::4].translate(_IS_TINY)
    groups = []
    at = tiny.find(1)
    while at >= 0:
        groups.append(at // SKETCH_ELEMENTS)
        at = tiny.find(1, SKETCH_ELEMENTS * (groups[-1] + 1))
    return groups


def _cut(nibbles: bytes) -> list[bytes]:
    """Return nibbles, one a byte, as sketches."""
    packed = bytes.fromhex(nibbles.translate(_DIGITS).decode("ascii"))
    return [packed[at : at + SKETCH_BYTES] for at in range(0, len(packed), SKETCH_BYTES)]


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")


def lanes(text: str) -> tuple[int, int, int, int]:
    """Return the sketch ``text`` (64 hex digits) as four big-endian signed 64-bit integers.

    Raises EvidenceError for another text.
    """
    if len(text) != SKETCH_ELEMENTS or not set(text) <= set("0123456789abcdef"):
        raise EvidenceError(
            "not a sketch",
            expected=f"{SKETCH_ELEMENTS} lower-case hex digits",
            found=f"{len(text)} characters"
            + ("" if len(text) != SKETCH_ELEMENTS else ", not all of them such digits"),
        )
    a, b, c, d = struct.unpack(">4q", bytes.fromhex(text))
    return a, b, c, d
