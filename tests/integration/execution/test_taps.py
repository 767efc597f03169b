"""The compiled and the Python observer: equal rows, routes, nodes and readings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tallystick.engine.compiled import ensure_observer
from tallystick.models.registry import resolve
from tests.support.runs import EngineHome

ROOT = Path(__file__).resolve().parents[3]
Counts = dict[tuple[str, str, str], tuple[int, ...]]


@pytest.fixture(scope="module")
def compiled_observer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = ensure_observer(tmp_path_factory.mktemp("observer"))
    if path is None:
        pytest.skip("there is no C compiler")
    return path


def compared(model: Path, observer: Path) -> Counts:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.both_taps", model, observer],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    words = [line.split() for line in done.stdout.splitlines()]
    return {(line[0], line[1], line[2]): tuple(map(int, line[3:])) for line in words}


@pytest.mark.parametrize("name", ["hybrid-q8", "moe", "kquant"])
def test_both_see_the_same(name: str, toy_model: Any, compiled_observer: Path) -> None:
    seen = compared(toy_model(name), compiled_observer)
    assert len(seen) == 12
    layers, routes, nodes, readings = seen["layers", "experts", "products"]
    assert layers > 0
    assert nodes > readings > layers
    assert (routes == layers) == (name != "kquant")
    for (watches_rows, watches_routes, graph), found in seen.items():
        assert found == (
            layers * (watches_rows == "layers"),
            routes * (watches_routes == "experts"),
            nodes * (graph != "none"),
            readings * (graph == "products"),
        )


def test_the_census_of_a_step(toy_hybrid_q8: Path, compiled_observer: Path) -> None:
    seen = compared(toy_hybrid_q8, compiled_observer)
    layers, routes, nodes, readings = seen["layers", "experts", "products"]
    assert (layers, routes, readings) == (40, 40, 411 + 40)
    assert nodes == 3599


def test_both_see_the_same_of_a_real_model(
    smollm2: str, engine_home: EngineHome, compiled_observer: Path
) -> None:
    seen = compared(resolve(smollm2, engine_home.path).path, compiled_observer)
    assert seen["layers", "experts", "products"][0] == 30
