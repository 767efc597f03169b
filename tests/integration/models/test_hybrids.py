"""The three refused kinds as a qwen35moe model, and the regular model that each becomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.models.add import add, add_normalised
from tallystick.models.check import describe
from tests.support.models import write_model


@pytest.fixture(scope="module")
def regular(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("regular") / "m.gguf"
    write_model("hybrid-small", path)
    return path.read_bytes()


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        ("refused-sections", 1),
        ("refused-time-step", 1),
        ("refused-siblings", 2),
        ("refused-all", 4),
    ],
)
def test_each_kind_becomes_the_regular_model(
    name: str, reasons: int, regular: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    write_model(name, path)
    assert len(describe(str(path), tmp_path / "home").facts.needs_normalising) == reasons
    pin = add_normalised(path, tmp_path / "home")
    assert (tmp_path / "home" / "models" / "m.gguf").read_bytes() == regular
    assert pin.facts.architecture == "qwen35moe"
    assert pin.facts.layers == 4


def test_the_regular_model_is_added_as_it_is(regular: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(regular)
    pin = add(path, tmp_path / "home")
    assert pin.facts.needs_normalising == ()
    assert (pin.facts.experts, pin.facts.experts_used) == (8, 2)
