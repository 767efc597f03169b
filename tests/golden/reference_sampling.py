"""A second implementation of docs/spec/sampling.md: integers and fractions, no code shared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from hashlib import sha256

from tests.golden.reference import framed

_BITS = 256  # far more than the tables need: every step below rounds down by less than 2^-250


def _root_of_half(doublings: int) -> int:
    """2^(-1 / 2^doublings) as an integer of 2^-256."""
    value = 1 << (_BITS - 1)
    for _ in range(doublings):
        value = math.isqrt(value << _BITS)
    return value


def power_table(step_bits: int) -> list[int]:
    """round(2^(30 - i / 2^step_bits)) for i in 0..255."""
    step = _root_of_half(step_bits)
    value, table = 1 << _BITS, []
    for _ in range(256):
        scaled, rest = divmod(value << 30, 1 << _BITS)
        half = 1 << (_BITS - 1)
        assert abs(rest - half) > 1 << 32, "too near to a half to be sure"
        table.append(scaled + (rest > half))
        value = value * step >> _BITS
    return table


def log2_e() -> int:
    """round(2^32 / ln 2), with ln 2 as the sum of 1 / (k * 2^k)."""
    ln2 = sum((Fraction(1, k << k) for k in range(1, 120)), Fraction(0))
    return round(Fraction(1 << 32) / ln2)


COARSE = power_table(8)
FINE = power_table(16)
LOG2_E = log2_e()


def real(bits: int) -> Fraction | None:
    """The value of a binary32 pattern, None when it is not finite."""
    sign, exponent, mantissa = bits >> 31, bits >> 23 & 0xFF, bits & 0x7FFFFF
    if exponent == 0xFF:
        return None
    if exponent:
        mantissa += 1 << 23
    magnitude = Fraction(mantissa) * Fraction(2) ** (max(exponent, 1) - 150)
    return -magnitude if sign else magnitude


def fixed(value: Fraction) -> int:
    return math.floor(value * 65536)


def row(bits: Sequence[int]) -> list[Fraction] | None:
    values = [value for value in map(real, bits) if value is not None]
    return values if len(values) == len(bits) else None


def greedy(bits: Sequence[int]) -> int | None:
    """The token, None when the row is refused."""
    values = row(bits)
    return None if values is None else values.index(max(values))


def weights(values: Sequence[Fraction], temperature: str) -> list[int]:
    unit = int(Decimal(temperature) * 10000)
    levels = [fixed(max(value, Fraction(-32768))) for value in values]
    return [weight((max(levels) - level) * 10000 // unit) for level in levels]


def weight(distance: int) -> int:
    if distance >= 64 * 65536:
        return 0
    binary = distance * LOG2_E // 2**32
    whole, rest = divmod(binary, 65536)
    return COARSE[rest // 256] * FINE[rest % 256] // 2**30 >> whole


def threshold(total: int, seed: int, position: int) -> int:
    parts = [seed.to_bytes(8, "little"), position.to_bytes(8, "little")]
    u = int.from_bytes(sha256(framed("tallystick.sample", 1, parts)).digest()[:8], "big")
    return u * total // 2**64


def seeded(bits: Sequence[int], temperature: str, seed: int, position: int) -> int | None:
    """The token, None when the row is refused."""
    values = row(bits)
    if values is None or abs(max(values)) >= 16384:
        return None
    masses = weights(values, temperature)
    bound, running = threshold(sum(masses), seed, position), 0
    for token, mass in enumerate(masses):
        running += mass
        if running > bound:
            return token
    raise AssertionError("the bound is below the sum")
