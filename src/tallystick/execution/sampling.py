"""Choosing a token from logits: greedy, or seeded with integers only (docs/spec/sampling.md).

After the logits no floating-point operation takes part, so a verifier with the same logits draws
the same token on any machine. A logit is read as the integer floor(logit * 2^16) straight from its
bits; weights come from a printed table of powers of two.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from typing import Final

import numpy as np
import numpy.typing as npt

from tallystick.canonical.hashing import domain_hash, u64le
from tallystick.errors import RunFailedError

FRACTION_BITS: Final = 16
# The largest logit of a row lies within: far beyond any model, and the integers stay small.
_LIMIT: Final = 2.0**14
# Logits below are read as this; 2^14 under the largest at least, they have no weight.
_LOWEST: Final = np.float32(-(2.0**15))
TEMPERATURE_UNIT: Final = 10_000
# log2(e) * 2^32, rounded; turns a natural exponent into a binary one.
LOG2_E: Final = 6196328019
_STEP_BITS: Final = 8
_TABLE_BITS: Final = 30
# Weights are 0 from 2^-31 on; the cut keeps the products within 63 bits.
_MAX_DISTANCE: Final = 64 << FRACTION_BITS


def _powers(step_bits: int) -> npt.NDArray[np.int64]:
    """Return round(2^(30 - i / 2^step_bits)) for i in 0..255, by exact decimal arithmetic.

    The same 512 numbers are printed in docs/spec/vectors/sampling.json; a test compares them.
    """
    with localcontext() as context:
        context.prec = 40
        one = Decimal(2).ln() / (1 << step_bits)
        values = [
            int(
                (Decimal(1 << _TABLE_BITS) * (-one * i).exp()).quantize(1, rounding=ROUND_HALF_EVEN)
            )
            for i in range(1 << _STEP_BITS)
        ]
    return np.array(values, np.int64)


COARSE: Final = _powers(_STEP_BITS)
FINE: Final = _powers(2 * _STEP_BITS)


def fixed_point(values: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Return floor(x * 2^16) of every finite float32 of magnitude below 2^16, from its bits."""
    bits = values.view(np.uint32).astype(np.int64)
    exponent = ((bits >> 23) & 0xFF) - 127
    mantissa = (bits & 0x7FFFFF) | np.where(exponent > -127, 1 << 23, 0)
    signed = np.where(bits >> 31, -mantissa, mantissa)
    # value = mantissa * 2^(exponent - 23); subnormals are far below one unit and floor the same.
    shift = exponent - 23 + FRACTION_BITS
    left = np.maximum(shift, 0)
    right = np.minimum(np.maximum(-shift, 0), 62)
    return np.asarray((signed << left) >> right, np.int64)


def greedy(logits: memoryview) -> int:
    """Return the lowest index among the largest logits.

    Raises RunFailedError if one is not finite.
    """
    values = np.frombuffer(logits, np.float32)
    _finite_top(values)
    return int(values.argmax())


def weights(values: npt.NDArray[np.float32], temperature: int) -> npt.NDArray[np.int64]:
    """Return the integer weight of every logit of a row that `seeded` accepts.

    ``temperature`` is in units of 1/10000, >= 1.
    """
    fixed = fixed_point(np.maximum(values, _LOWEST))
    distance = (fixed.max() - fixed) * TEMPERATURE_UNIT // temperature
    alive = distance < _MAX_DISTANCE
    binary = (np.where(alive, distance, 0) * LOG2_E) >> 32
    whole, rest = binary >> FRACTION_BITS, binary & 0xFFFF
    scaled = (COARSE[rest >> _STEP_BITS] * FINE[rest & 0xFF]) >> _TABLE_BITS
    return np.where(alive, scaled >> np.minimum(whole, 62), 0)


def seeded(logits: memoryview, temperature: int, seed: int, position: int) -> int:
    """Return the token drawn for the logits row at ``position`` of the sequence.

    u = the first 8 bytes, big-endian, of H("tallystick.sample", 1, [seed, position]); the token is
    the first whose running sum of weights exceeds floor(u * sum / 2^64). Raises RunFailedError if
    a logit is not finite or the largest is not within 2^14.
    """
    values = np.frombuffer(logits, np.float32)
    top = _finite_top(values)
    if abs(top) >= _LIMIT:
        raise RunFailedError(
            "the model's logits are beyond any language model's",
            expected=f"a largest logit within {_LIMIT:.0f}",
            hint="the weights are damaged or not a language model's",
        )
    near = candidates(values, top, temperature)
    mass = np.cumsum(weights(values[near], temperature))
    draw = domain_hash("tallystick.sample", 1, [u64le(seed), u64le(position)])
    threshold = int.from_bytes(draw[:8], "big") * int(mass[-1]) >> 64
    return int(near[np.searchsorted(mass, threshold, side="right")])


def candidates(
    values: npt.NDArray[np.float32], top: float, temperature: int
) -> npt.NDArray[np.int64]:
    """Return the ids whose weight may be more than 0: a coarse filter that decides nothing.

    A weight is 0 beyond 30 * ln 2 = 20.8 temperatures below the largest logit ``top``; the
    filter's bound is 24 and one unit more, so its rounding cannot matter.
    """
    cut = top - 24.0 * temperature / TEMPERATURE_UNIT - 1.0
    return np.flatnonzero(values >= np.float32(cut))


def _finite_top(values: npt.NDArray[np.float32]) -> float:
    """Return the largest value. By comparisons only: both ends are NaN when any value is."""
    top = float(values.max())
    if not np.isfinite(top) or not np.isfinite(values.min()):
        raise RunFailedError(
            "the model gave a logit that is not finite",
            hint="the weights are damaged or not a language model's",
        )
    return top


def parse_temperature(text: str) -> int:
    """Return a temperature text as a whole number of 1/10000 (0 is greedy)."""
    return int(Decimal(text) * TEMPERATURE_UNIT)
