"""What observing costs: of the engine's own speed, and of a whole `tallystick observe`.

    python -m bench.observe [--model MODEL] [--tokens N] [--rounds N]

Under the policy `sequential`: unobserved, `graph` (every node), `sketch` (every node, and the
beginning of every product). First in this process, the three in turn at every step, each step's
observation taken as live evidence takes it; then the whole command, its transcript to /dev/null.
Prints rows of docs/benchmarks.md; the sampled ids must be equal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from bench._engine import (
    Subject,
    arguments,
    in_engine_environment,
    median,
    open_subject,
    ratio,
)
from tallystick.contracts.runtime import SEQUENTIAL, RowClass
from tallystick.engine.libllama.adapter import LlamaModel
from tallystick.engine.port import Context, ObservedContext, Rows, Watch
from tallystick.execution import sampling
from tallystick.execution.session import Plan

_SPEC = Plan(SEQUENTIAL, RowClass(1, 1), 4096, 1).context_spec()
_WATCHES = (None, Watch(graph="nodes"), Watch(graph="products"))
_PROMPT = "The quick brown fox"


class Live:
    """One generation in this process, step by step."""

    def __init__(self, model: LlamaModel, first: int, watch: Watch | None) -> None:
        self._context: Context
        self._observed: ObservedContext | None = None
        if watch is None:
            self._context = model.open_context(_SPEC)
        else:
            self._context = self._observed = model.open_observed(_SPEC, watch)
        self.ids = [first]

    def step(self) -> float:
        """Evaluate and sample one token; return the seconds that took."""
        begin = time.perf_counter()
        rows = Rows((self.ids[-1],), (len(self.ids) - 1,), (0,), (True,))
        self._context.evaluate(rows)
        if self._observed is not None:
            nodes = self._observed.observation().nodes
            assert [reading.data for reading in nodes]
        self.ids.append(sampling.greedy(self._context.logits(0)))
        return time.perf_counter() - begin

    def close(self) -> None:
        self._context.close()


def live(subject: Subject, count: int, rounds: int) -> tuple[tuple[float, ...], ...]:
    """Return the seconds of every step of ``rounds`` generations, unobserved and observed."""
    taken: list[tuple[float, ...]] = []
    for _ in range(rounds):
        runs = [Live(subject.compiled, subject.prompt[0], watch) for watch in _WATCHES]
        for each in runs:
            each.step()  # the first describes every node, once for a run
        taken += [tuple(each.step() for each in runs) for _ in range(count)]
        for each in runs:
            each.close()
        if any(each.ids != runs[0].ids for each in runs):
            raise SystemExit("the observer changed the sampled ids: this must never happen")
    return tuple(taken)


def command(model: str, count: int, observer: str) -> tuple[float, float]:
    """Return the seconds of one whole observed run: by the clock, and of processors, both
    processes together."""
    words = [sys.executable, "-m", "tallystick", "observe", "--model", model, "--prompt-stdin"]
    begin, before = time.perf_counter(), os.times()
    subprocess.run(
        [*words, "--observer", observer, "-n", str(count)],
        input=_PROMPT.encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    after = os.times()
    used = after.children_user + after.children_system
    return time.perf_counter() - begin, used - before.children_user - before.children_system


def whole(model: str, count: int, rounds: int) -> list[list[tuple[float, float]]]:
    """Return clock and processor seconds of ``rounds`` runs in each mode, in turn."""
    modes = ("off", "graph", "sketch")
    command(model, count, "off")  # does not count
    return [[command(model, count, mode) for mode in modes] for _ in range(rounds)]


def report(what: str, model: str, tokens: int, rows: Sequence[Sequence[float]]) -> None:
    """Print one row; ``tokens`` took the seconds of one row of ``rows``."""
    print(
        f"| {what}, {model} | {ratio(rows, 0, 1):.3f} | {ratio(rows, 0, 2):.3f} "
        f"| {tokens / median(rows, 0):.0f} tok/s | `python -m bench.observe` |",
        flush=True,
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(tokens=64)
    options = parser.parse_args()
    in_engine_environment(options.knob)
    subject = open_subject(options.model, options.tokens, 1)
    model, count = options.model, options.tokens
    print("| sequential, of unobserved | graph | sketch | unobserved | command |")
    print("|---|---|---|---|---|")
    report("live evidence", model, 1, live(subject, count, options.rounds))
    rows = whole(model, count, options.rounds)
    name = f"`tallystick observe -n {count}`"
    report(name, model, count, [[clock for clock, _ in row] for row in rows])
    report(f"{name}, processor time", model, count, [[used for _, used in row] for row in rows])


if __name__ == "__main__":
    main()
