"""The engine's own log has to agree that it runs on the processor."""

from __future__ import annotations

import pytest

from tallystick.errors import IncomparableError
from tallystick.execution.child_engine import require_processor


@pytest.mark.parametrize("log", ["", "load_tensors: offloaded 0/41 layers to GPU"])
def test_a_log_that_says_nothing_or_none_is_fine(log: str) -> None:
    require_processor(log)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("load_tensors: offloaded 41/41 layers to GPU", "put layers on a GPU"),
        ("load_tensors: offloaded 3/41 layers to GPU", "a part of the layers"),
        ("load_tensors: offloaded some layers", "not understood"),
    ],
)
def test_a_log_that_says_anything_else_is_incomparable(log: str, words: str) -> None:
    with pytest.raises(IncomparableError, match=words):
        require_processor(log)
