from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf import GGUFReader

from tallystick.contracts.residency import MAX_EXTENTS, Extent
from tallystick.errors import IncomparableError
from tallystick.models.ggml_types import TENSOR_TYPES
from tallystick.models.gguf import Header, TensorInfo
from tallystick.models.layers import extents_of, layer_extents
from tallystick.models.layers_child import read_extents


@pytest.mark.parametrize("name", ["llama-q8_0", "hybrid-small", "refused-siblings"])
def test_the_extents_hold_the_layers_and_nothing_else(
    name: str, toy_model: Callable[[str], Path]
) -> None:
    path = toy_model(name)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        found = extents_of(descriptor).extents
        assert read_extents(descriptor).extents == found
    finally:
        os.close(descriptor)
    covered = 0
    for tensor in GGUFReader(path).tensors:
        start, end = int(tensor.data_offset), int(tensor.data_offset) + int(tensor.n_bytes)
        inside = [e for e in found if e.start < end and start < e.end]
        if not tensor.name.startswith("blk."):
            assert inside == []
            continue
        (extent,) = inside
        assert extent.start <= start
        assert end <= extent.end
        assert extent.layer == int(tensor.name.split(".")[1])
        covered += end - start
    padding = sum(e.end - e.start for e in found) - covered
    assert 0 <= padding < 32 * len(GGUFReader(path).tensors)


def header_of(*names: str) -> Header:
    kind = TENSOR_TYPES[0]
    tensors = tuple(
        TensorInfo(name, (8,), 0, kind, 32 * place, 32) for place, name in enumerate(names)
    )
    return Header(3, (), tensors, 32, 4096, 4096 + 32 * len(names))


def test_neighbours_are_joined_and_strangers_are_not() -> None:
    header = header_of(
        "token_embd.weight", "blk.1.a", "blk.1.b", "blk.0.a", "blk.x.a", "v.blk.0.a", "blk.0.b",
        "blk.01.a", "blk.10000.a",
    )  # fmt: skip
    assert layer_extents(header).extents == (
        Extent(1, 4096 + 32, 4096 + 96),
        Extent(0, 4096 + 96, 4096 + 128),
        Extent(0, 4096 + 192, 4096 + 224),
    )


def test_scattered_layers_are_refused() -> None:
    names = [f"blk.{n % 2}.w{n}" for n in range(MAX_EXTENTS + 1)]
    assert len(layer_extents(header_of(*names[:-1])).extents) == MAX_EXTENTS
    with pytest.raises(IncomparableError, match="scattered"):
        layer_extents(header_of(*names))
