"""A child's results that are out of form: a failed run, never a verdict."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.errors import RunFailedError
from tallystick.execution import fingerprint
from tallystick.models import children, facts_child, layers_child


@pytest.mark.parametrize("body", [{}, {"architecture": 7}, {"more": 1}])
def test_malformed_facts(monkeypatch: pytest.MonkeyPatch, body: dict[str, Any]) -> None:
    monkeypatch.setattr(children, "run_child", lambda *_, **__: body)
    with pytest.raises(RunFailedError, match="facts about a model that is malformed"):
        facts_child.read_facts(3)


@pytest.mark.parametrize("body", [{}, {"extents": 7}, {"extents": [{"layer": -1}]}])
def test_malformed_layers(monkeypatch: pytest.MonkeyPatch, body: dict[str, Any]) -> None:
    monkeypatch.setattr(children, "run_child", lambda *_, **__: body)
    with pytest.raises(RunFailedError, match="where a model's layers are that is malformed"):
        layers_child.read_extents(3)


@pytest.mark.parametrize(
    "parts",
    [None, [], ["x"], [["x"]], [["X!", "sha256:" + "0" * 64]], [["x", 7]], [["x", "sha256:0"]]],
)
def test_malformed_parts_of_a_fingerprint(parts: Any) -> None:
    with pytest.raises(RunFailedError):
        fingerprint._parts("default", {"parts": parts})
