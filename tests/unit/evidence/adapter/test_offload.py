"""What the engine's log says of offloaded layers."""

from __future__ import annotations

import pytest

from tallystick.errors import EvidenceError
from tallystick.evidence.adapter.offload import Offload, scan_offload

LOAD = "load_tensors: loading model tensors, this can take a while... (mmap = true)\n"
DONE = "load_tensors: offloaded {}/{} layers to GPU\n"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("", Offload(0, None)),
        (LOAD, Offload(0, None)),
        (LOAD + DONE.format(0, 41), Offload(0, 41)),
        (DONE.format(0, 41) + LOAD + DONE.format(0, 41), Offload(0, 41)),
        (LOAD + DONE.format(41, 41), Offload(41, 41)),
        ("offloading 40 repeating layers to GPU\n" + DONE.format(41, 41), Offload(41, 41)),
        ("offloading output layer to GPU\n" + DONE.format(41, 41), Offload(41, 41)),
        ("offloading 0 repeating layers to GPU\n" + DONE.format(0, 31), Offload(0, 31)),
        (DONE.format(37, 37).upper(), Offload(37, 37)),
    ],
)
def test_none_or_all(log: str, expected: Offload) -> None:
    assert scan_offload(log) == expected
    assert scan_offload(log).on_processor is (expected.layers == 0)


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (DONE.format(40, 41), "a part"),
        (DONE.format(42, 41), "a part"),
        (DONE.format(0, 0), "a part"),
        (DONE.format(41, 41) + DONE.format(0, 41), "contradicts itself"),
        (DONE.format(41, 41) + DONE.format(31, 31), "contradicts itself"),
        ("offloading 40 repeating layers to GPU\n", "incomplete"),
        ("offloading output layer to GPU\n", "incomplete"),
        ("offloading 3 repeating layers to GPU\n" + DONE.format(0, 41), "contradicts itself"),
        (DONE.format("all", 41), "not understood"),
        (DONE.format(41, 41) + "offloaded 12 layers\n", "not understood"),
        ("offloaded 41/41 layers to XPU\n", "not understood"),
        (DONE.format("9" * 7, "9" * 7), "not understood"),
    ],
)
def test_anything_else_is_refused(log: str, message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        scan_offload(log)
