from __future__ import annotations

import math
import struct
from collections.abc import Callable

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from tallystick.engine.suite.weights import FORMATS, near_one, negative, random_rows

_SHAPE = (64, 256)
# The reference package does not know the one, and cannot decode the other.
KNOWN = sorted(FORMATS.keys() - {"Q2_0"})
DECODABLE = sorted(FORMATS.keys() - {"Q2_0", "Q1_0"})


def _values(kind: str, raw: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    number = GGMLQuantizationType(FORMATS[kind].number)
    if kind == "F32":
        return np.frombuffer(raw, "<f4").astype(np.float64)
    if kind == "F16":
        return np.frombuffer(raw, "<f2").astype(np.float64)
    blocks = np.frombuffer(raw, np.uint8).reshape(_SHAPE[0], -1)
    return quants.dequantize(blocks, number).astype(np.float64)


@pytest.mark.parametrize("kind", KNOWN)
def test_block_sizes_are_the_format_s(kind: str) -> None:
    form = FORMATS[kind]
    sizes = GGML_QUANT_SIZES[GGMLQuantizationType(form.number)]
    assert (form.block_values, form.block_bytes) == sizes
    assert GGMLQuantizationType(form.number).name == kind


@pytest.mark.parametrize("kind", DECODABLE)
def test_values_are_finite_near_the_size_and_balanced(kind: str) -> None:
    values = _values(kind, random_rows("label", kind, _SHAPE, -3))
    assert np.isfinite(values).all()
    size = math.sqrt(float(np.mean(values**2)))
    assert 2**-4 < size < 2**-2
    # A mean near the size would make all rows of a product alike.
    assert abs(float(np.mean(values))) < 0.15 * size


@pytest.mark.parametrize("kind", sorted(FORMATS))
def test_bytes_follow_from_the_label(kind: str) -> None:
    first = random_rows("a", kind, _SHAPE, -4)
    assert first == random_rows("a", kind, _SHAPE, -4)
    assert first != random_rows("b", kind, _SHAPE, -4)
    blocks = math.prod(_SHAPE) // FORMATS[kind].block_values
    assert len(first) == blocks * FORMATS[kind].block_bytes


def test_a_row_must_be_whole_blocks() -> None:
    with pytest.raises(ValueError, match="Q4_K rows are multiples of 256, not 128"):
        random_rows("a", "Q4_K", (4, 128), 0)


@pytest.mark.parametrize(
    ("make", "low", "high"),
    [
        (lambda: near_one("n", (512,)), 0.875, 1.25),
        (lambda: near_one("n", (512,), 2), 14.0, 20.0),
        (lambda: near_one("n", (512,), -1), 0.21875, 0.3125),
        (lambda: negative("n", (512,)), -1.0, -0.124),
    ],
)
def test_vectors_stay_in_their_range(make: Callable[[], bytes], low: float, high: float) -> None:
    values = struct.unpack("<512f", make())
    assert low <= min(values) < max(values) < high
    assert len(set(values)) > 500
