"""Sets of real runs pass the independent checker, which shares no code with the program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.golden.independent.check_set import check_set
from tests.support.runs import EngineHome
from tests.support.sets import AUDIT_KEY, SIGNER

PROMPT = "the quick brown fox quick"
RUNS = {
    "moe": ("row-class", ("states", "graph", "gemm")),
    "hybrid-small": ("sequential", ("gemm",)),
    "gemma3": ("row-class", ("graph",)),
    "llama-q8_0": ("row-class", ("states",)),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_real_set_holds(
    name: str, engine_home: EngineHome, toy_model: Callable[[str], Path]
) -> None:
    policy, parts = RUNS[name]
    evidence = ",".join(parts)
    words = ("run", "--model", toy_model(name), "--policy", policy, "--evidence", evidence)
    done = engine_home.cli(*words, "-n", "3", "--prompt-stdin", stdin=PROMPT)
    assert done.returncode == 0, done.stderr
    folder = next(line.split()[1] for line in done.stderr.splitlines() if line.startswith("files "))
    files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}

    found = check_set(files, AUDIT_KEY.raw, SIGNER.public.raw)

    assert found["receipt"]["core"]["runtime_class"]["policy"] == policy
    assert found["opening"]["run"]["evidence"] == [*parts]
