"""What the engine benchmarks share: models, a loaded engine in this process, alternating rounds.

A benchmark that loads the engine is a process of its own (bench/__main__.py starts each so), since
the library ends its process when it asserts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tallystick.contracts.runtime import ROW_CLASS, RowClass
from tallystick.engine.compiled import ensure_observer
from tallystick.engine.libllama.adapter import LlamaModel, open_model
from tallystick.engine.libllama.compiled_tap import open_taps
from tallystick.engine.libllama.library import Library
from tallystick.engine.libllama.locate import library_path
from tallystick.evidence.state_tree import StateTree
from tallystick.execution.evidence import Evidence
from tallystick.execution.launch import ENGINE_ENVIRONMENT, usable_cores
from tallystick.execution.schedule import context_cells
from tallystick.execution.session import Execution, Plan, Sampler, generate, re_execute
from tallystick.models.registry import resolve
from tallystick.store.home import home

ROWS = RowClass(2, 512)
PROMPT = (
    "The quick brown fox jumps over the lazy dog near the river bank. " * 4
    + "The capital of France is"
)
_MARK = "TALLYSTICK_BENCH_ENVIRONMENT"


@dataclass(frozen=True, slots=True)
class Subject:
    """A model with the compiled and with the Python observer, and a prompt."""

    compiled: LlamaModel
    python: LlamaModel
    prompt: tuple[int, ...]
    plan: Plan

    def states(self) -> StateTree:
        """Return an empty state tree for the prompt, bound to a worker as that of a run is."""
        layers, worker = self.compiled.layers, bytes(32)
        return StateTree(bytes(32), layers, len(self.prompt), credential_id=worker)

    def generation(
        self,
        model: LlamaModel,
        count: int,
        tree: StateTree | None,
        tell: Callable[[int], None] = lambda _index: None,
    ) -> tuple[tuple[int, ...], float]:
        """Return the sampled ids and the seconds from the first token to the last.

        ``tell`` is called with the number of each token.
        """
        marks: list[float] = []

        def on_token(index: int, _token: int) -> None:
            marks.append(time.perf_counter())
            tell(index)

        execution = Execution(model, self.plan, len(self.prompt), Evidence(tree))
        ids = generate(
            execution,
            lambda _token: False,  # every round has the same length
            self.plan,
            self.prompt,
            count,
            Sampler(0, None),
            on_token,
            lambda _done, _total: None,
        )
        execution.close()
        return ids, marks[-1] - marks[0]

    def replay(self, model: LlamaModel, ids: Sequence[int], evidence: Evidence) -> float:
        """Return the seconds of one batched pass over prompt and ``ids``, sampling included."""
        execution = Execution(model, self.plan, len(self.prompt), evidence)
        begin = time.perf_counter()
        re_execute(
            execution, self.plan, self.prompt, ids, Sampler(0, None), lambda _done, _total: None
        )
        evidence.finish()
        spent = time.perf_counter() - begin
        execution.close()
        return spent


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every engine benchmark has."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct", help="name or GGUF file")
    parser.add_argument("--tokens", type=int, default=256, help="tokens to generate")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--knob", default="", help="NAME=VALUE for the engine's environment")
    return parser


def in_engine_environment(knob: str) -> None:
    """Restart this process with the environment that engine children get."""
    if os.environ.get(_MARK) == "1":
        return
    environment = {**os.environ, **ENGINE_ENVIRONMENT, _MARK: "1"}
    if knob:
        name, _, value = knob.partition("=")
        environment[name] = value
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def open_subject(model: str, tokens: int, threads: int) -> Subject:
    """Load ``model`` twice: once for each observer (the weights are mapped, so shared)."""
    path = resolve(model, home()).path
    library = Library(library_path())
    observer = ensure_observer(Path(tempfile.gettempdir()) / f"tallystick-bench-{os.getuid()}")
    descriptor = os.open(path, os.O_RDONLY)
    compiled = open_model(library, descriptor, open_taps(library, observer))
    python = open_model(library, descriptor, open_taps(library, None))
    prompt = compiled.tokenize(PROMPT.encode(), add_special=True, parse_special=False)
    cells = context_cells(len(prompt), tokens, ROWS)
    return Subject(compiled, python, prompt, Plan(ROW_CLASS, ROWS, cells, threads))


def alternate(
    rounds: int, measures: Sequence[Callable[[], float]]
) -> tuple[tuple[float, ...], ...]:
    """Run the measures in turn, ``rounds`` times, after one round that does not count."""
    for measure in measures:
        measure()
    return tuple(tuple(measure() for measure in measures) for _ in range(rounds))


def ratio(rows: Sequence[Sequence[float]], above: int, below: int) -> float:
    """Return the median over rounds of one column divided by another."""
    return statistics.median(row[above] / row[below] for row in rows)


def median(rows: Sequence[Sequence[float]], column: int) -> float:
    """Return the median of one column."""
    return statistics.median(row[column] for row in rows)
