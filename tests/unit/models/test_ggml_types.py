"""The table of tensor types agrees with the one that llama.cpp publishes for Python."""

from __future__ import annotations

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from tallystick.models.ggml_types import TENSOR_TYPES

# The published table says 40 bytes: two floats, as the type once was. ggml itself says 36.
KNOWN_DIFFERENCE = {"Q8_1"}


def test_every_published_type_is_known_and_equal() -> None:
    published = {int(kind): (kind.name, *GGML_QUANT_SIZES[kind]) for kind in GGMLQuantizationType}
    ours = {number: (kind.name, kind.block, kind.size) for number, kind in TENSOR_TYPES.items()}
    assert published.keys() <= ours.keys()
    differences = {
        published[number][0] for number in published if published[number] != ours[number]
    }
    assert differences <= KNOWN_DIFFERENCE


def test_names_are_unique_and_sizes_positive() -> None:
    assert len({kind.name for kind in TENSOR_TYPES.values()}) == len(TENSOR_TYPES)
    assert all(kind.block > 0 and kind.size > 0 for kind in TENSOR_TYPES.values())
