"""Random tensors as raw bytes, from integers only.

Every byte comes from SHAKE-256 of a label. The bytes that carry exponents and block scales are
then confined by translation tables, so that all values are finite and near a chosen size. No
floating point is involved: the same label gives the same bytes on every machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import prod
from types import MappingProxyType
from typing import Final

# A rule maps a scale exponent to the table through which one byte of each block is translated.
_Table = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A ggml tensor type: ``block_values`` values take ``block_bytes`` bytes.

    ``number`` is ggml's type number. ``rules`` confine bytes of each block, as (offset in the
    block, table). ``unit`` is how far the root mean square of confined random values lies above
    the scale, as a rounded binary logarithm.
    """

    number: int
    block_values: int
    block_bytes: int
    unit: int
    rules: tuple[tuple[int, _Table], ...]


def _table(value: Callable[[int], int]) -> bytes:
    return bytes(map(value, range(256)))


def _half_scale(offset: int) -> tuple[int, _Table]:
    """Confine a binary16 scale of either sign to the octave of 2**exponent.

    Both signs, because many types have quants whose mean is not zero: with one sign the
    constant direction would grow from product to product until all rows are alike.
    """

    def table(exponent: int) -> bytes:
        biased = min(max(exponent + 15, 1), 30)
        return _table(lambda r: r & 0x80 | biased << 2 | r & 3)

    return offset + 1, table


def _fixed_high(offset: int, shift: int, top: int) -> tuple[int, _Table]:
    """Fix sign and leading mantissa bits of a binary16 scale with k = exponent + shift.

    For types with a scale and a minimum: the two must cancel in the mean, or rows of random
    blocks are almost constant.
    """

    def table(exponent: int) -> bytes:
        biased = min(max(exponent + shift + 15, 1), 30)
        return bytes([top | biased << 2]) * 256

    return offset + 1, table


def _low_half(_exponent: int) -> bytes:
    """Clear the next mantissa bit of a binary16 scale."""
    return _table(lambda r: r & 0x7F)


def _scale_and_minimum(offset: int, shift: int, sign: int) -> tuple[tuple[int, _Table], ...]:
    """A scale near 1.125 * 2**k, then a minimum near 1.0625 * 2**(k + shift)."""
    return (
        _fixed_high(offset, 0, 0),
        _fixed_high(offset + 2, shift, sign),
        (offset + 2, _low_half),
    )


def _half_value(exponent: int) -> bytes:
    """High byte of binary16 values of both signs, in four octaves."""
    biased = min(max(exponent + 15, 4), 30)
    return _table(lambda r: r & 0x80 | (biased - (r >> 2 & 3)) << 2 | r & 3)


def _single_high(exponent: int) -> bytes:
    """Top byte of binary32 values of both signs, in two octaves (4 apart)."""
    return _table(lambda r: r & 0x80 | ((exponent + 127) >> 1) - (r & 1))


def _single_low(exponent: int) -> bytes:
    """Second byte of binary32 values: the exponent's last bit, then the mantissa."""
    return _table(lambda r: ((exponent + 127) & 1) << 7 | r & 0x7F)


def _upper_half_nibbles(_exponent: int) -> bytes:
    """Two 4-bit sub-block values from 8 to 15: a scale and a minimum."""
    return _table(lambda r: r | 0x88)


def _upper_half_scales(_exponent: int) -> bytes:
    """A 6-bit sub-block value from 32 to 47, and the same upper bits for another one."""
    return _table(lambda r: r & 0x0F | 0xA0)


def _small_signed(_exponent: int) -> bytes:
    """Signed 8-bit sub-block scales from -32 to 31."""
    return _table(lambda r: (r & 0x3F) - 32 & 0xFF)


def _split_scale_top(exponent: int) -> bytes:
    """Upper nibble of a split binary16 scale's high byte (IQ1_M keeps one nibble per word)."""
    biased = min(max(exponent + 15, 1), 30)
    return _table(lambda r: biased >> 2 << 4 | r & 0x0F)


def _split_scale_low(exponent: int) -> bytes:
    """Lower nibble of a split binary16 scale's high byte."""
    biased = min(max(exponent + 15, 1), 30)
    return _table(lambda r: (biased & 3) << 6 | r & 0x3F)


def _power_scale(exponent: int) -> bytes:
    """A scale that is a power of two with bias 127, in two octaves."""
    return _table(lambda r: exponent + 127 - (r & 1))


def _mini_scale(exponent: int) -> bytes:
    """A positive 8-bit float scale with 4 exponent bits of bias 7 and 3 mantissa bits."""
    biased = min(max(exponent + 7, 1), 14)
    return _table(lambda r: biased << 3 | r & 7)


_Q2_K_RULES = (
    *((offset, _upper_half_nibbles) for offset in range(16)),
    _fixed_high(80, 0, 0),
    _fixed_high(82, 0, 2),
)
_Q4_K_SCALES = tuple((offset, _upper_half_scales) for offset in range(4, 12))
_Q6_K_SCALES = tuple((offset, _small_signed) for offset in range(192, 208))
_NEGATIVE = 0x80

FORMATS: Final = MappingProxyType(
    {
        "F32": BlockFormat(0, 1, 4, 0, ((3, _single_high), (2, _single_low))),
        "F16": BlockFormat(1, 1, 2, 0, ((1, _half_value),)),
        "BF16": BlockFormat(30, 1, 2, 0, ((1, _single_high), (0, _single_low))),
        "Q4_0": BlockFormat(2, 32, 18, 3, (_half_scale(0),)),
        "Q4_1": BlockFormat(3, 32, 20, 2, _scale_and_minimum(0, 3, _NEGATIVE)),
        "Q5_0": BlockFormat(6, 32, 22, 4, (_half_scale(0),)),
        "Q5_1": BlockFormat(7, 32, 24, 3, _scale_and_minimum(0, 4, _NEGATIVE)),
        "Q8_0": BlockFormat(8, 32, 34, 7, (_half_scale(0),)),
        "Q2_K": BlockFormat(10, 256, 84, 4, _Q2_K_RULES),
        "Q3_K": BlockFormat(11, 256, 110, 6, (_half_scale(108),)),
        "Q4_K": BlockFormat(12, 256, 144, 8, (*_scale_and_minimum(0, 3, 0), *_Q4_K_SCALES)),
        "Q5_K": BlockFormat(13, 256, 176, 9, (*_scale_and_minimum(0, 4, 0), *_Q4_K_SCALES)),
        "Q6_K": BlockFormat(14, 256, 210, 9, (_half_scale(208), *_Q6_K_SCALES)),
        "IQ2_XXS": BlockFormat(16, 256, 66, 6, (_half_scale(0),)),
        "IQ2_XS": BlockFormat(17, 256, 74, 6, (_half_scale(0),)),
        "IQ3_XXS": BlockFormat(18, 256, 98, 8, (_half_scale(0),)),
        "IQ1_S": BlockFormat(19, 256, 50, 3, (_half_scale(0),)),
        "IQ4_NL": BlockFormat(20, 32, 18, 7, (_half_scale(0),)),
        "IQ3_S": BlockFormat(21, 256, 110, 8, (_half_scale(0),)),
        "IQ2_S": BlockFormat(22, 256, 82, 6, (_half_scale(0),)),
        "IQ4_XS": BlockFormat(23, 256, 136, 11, (_half_scale(0),)),
        "IQ1_M": BlockFormat(29, 256, 56, 3, ((55, _split_scale_top), (53, _split_scale_low))),
        "TQ1_0": BlockFormat(34, 256, 54, 0, (_half_scale(52),)),
        "TQ2_0": BlockFormat(35, 256, 66, 1, (_half_scale(64),)),
        "MXFP4": BlockFormat(39, 32, 17, 1, ((0, _power_scale),)),
        "NVFP4": BlockFormat(40, 64, 36, 2, tuple((offset, _mini_scale) for offset in range(4))),
        "Q1_0": BlockFormat(41, 128, 18, 1, (_half_scale(0),)),
        "Q2_0": BlockFormat(42, 64, 18, 1, (_half_scale(0),)),
    }
)


@cache
def _translation(table: _Table, exponent: int) -> bytes:
    return table(exponent)


def random_rows(label: str, kind: str, shape: tuple[int, ...], size: int) -> bytes:
    """Return the raw bytes of a tensor of random values with root mean square near 2**size.

    ``shape`` has the outermost dimension first; its last dimension must be a whole number of
    blocks of ``kind``. Raises ValueError when it is not, KeyError for an unknown kind.
    """
    form = FORMATS[kind]
    if shape[-1] % form.block_values:
        raise ValueError(f"{kind} rows are multiples of {form.block_values}, not {shape[-1]}")
    count = prod(shape) // form.block_values
    blocks = bytearray(hashlib.shake_256(label.encode()).digest(count * form.block_bytes))
    for offset, table in form.rules:
        place = slice(offset, None, form.block_bytes)
        blocks[place] = blocks[place].translate(_translation(table, size - form.unit))
    return bytes(blocks)


def _singles(label: str, shape: tuple[int, ...], top: bytes, second: bytes) -> bytes:
    raw = bytearray(hashlib.shake_256(label.encode()).digest(prod(shape) * 4))
    raw[3::4] = raw[3::4].translate(top)
    raw[2::4] = raw[2::4].translate(second)
    return bytes(raw)


def near_one(label: str, shape: tuple[int, ...], size: int = 0) -> bytes:
    """Return binary32 values in [0.875, 1.25) times 2**(2 * size): norm weights."""
    top, second = bytes([0x3F + size]) * 256, _table(lambda r: 0x60 + (r & 0x3F))
    return _singles(label, shape, top, second)


def negative(label: str, shape: tuple[int, ...]) -> bytes:
    """Return binary32 values in (-1, -0.125]: decay rates of recurrent layers."""
    top, second = _table(lambda r: 0xBE + (r & 1)), _table(lambda r: r & 0x7F)
    return _singles(label, shape, top, second)
