"""What observing costs: of the engine's own speed, and of a whole `tallystick observe`.

    python -m bench.observe [--model MODEL] [--tokens N] [--rounds N]

Under the policy `sequential`, in turn: unobserved, `graph` (every node), `sketch` (every node, and
the beginning of every product). First in this process, where each step's observation is taken as
live evidence takes it; then the whole command, its transcript to /dev/null. Prints rows of
docs/benchmarks.md; the sampled ids must be equal.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from bench._engine import (
    Subject,
    alternate,
    arguments,
    in_engine_environment,
    median,
    open_subject,
    ratio,
)
from tallystick.contracts.runtime import SEQUENTIAL, RowClass
from tallystick.engine.port import Context, ObservedContext, Rows, Watch
from tallystick.execution import sampling
from tallystick.execution.session import Plan

_SPEC = Plan(SEQUENTIAL, RowClass(1, 1), 4096, 1).context_spec()
_WATCHES = (None, Watch(graph="nodes"), Watch(graph="products"))
_PROMPT = "The quick brown fox"


def live(subject: Subject, count: int, watch: Watch | None, seen: set[tuple[int, ...]]) -> float:
    """Return the seconds of ``count`` steps; ``seen`` gets the sampled ids."""
    context: Context
    observed: ObservedContext | None = None
    if watch is None:
        context = subject.compiled.open_context(_SPEC)
    else:
        context = observed = subject.compiled.open_observed(_SPEC, watch)
    token, ids, begin = subject.prompt[0], [], 0.0
    for position in range(count + 1):
        if position == 1:  # the first step describes every node, once for a run
            begin = time.perf_counter()
        context.evaluate(Rows((token,), (position,), (0,), (True,)))
        if observed is not None:
            nodes = observed.observation().nodes
            assert sum(reading.data is not None for reading in nodes) >= 0
        token = sampling.greedy(context.logits(0))
        ids.append(token)
    spent = time.perf_counter() - begin
    context.close()
    seen.add(tuple(ids))
    return spent


def command(model: str, count: int, observer: str) -> float:
    """Return the seconds of one whole observed run."""
    words = [sys.executable, "-m", "tallystick", "observe", "--model", model, "--prompt-stdin"]
    begin = time.perf_counter()
    subprocess.run(
        [*words, "--observer", observer, "-n", str(count)],
        input=_PROMPT.encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
        # What this process was restarted with is for the engine in here.
        env={name: value for name, value in os.environ.items() if not name.startswith("GGML_")},
    )
    return time.perf_counter() - begin


def report(what: str, model: str, count: int, rows: tuple[tuple[float, ...], ...]) -> None:
    """Print one row."""
    print(
        f"| {what}, {model}, {count} tokens | {ratio(rows, 0, 1):.3f} | {ratio(rows, 0, 2):.3f} "
        f"| {count / median(rows, 0):.0f} tok/s | `python -m bench.observe` |"
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(tokens=64)
    options = parser.parse_args()
    in_engine_environment(options.knob)
    subject = open_subject(options.model, options.tokens, 1)
    seen: set[tuple[int, ...]] = set()
    count = options.tokens
    in_process: list[Callable[[], float]] = [
        partial(live, subject, count, watch, seen) for watch in _WATCHES
    ]
    whole: list[Callable[[], float]] = [
        partial(command, options.model, count, observer) for observer in ("off", "graph", "sketch")
    ]
    print("| sequential, of unobserved | graph | sketch | unobserved | command |")
    print("|---|---|---|---|---|")
    report("live evidence", options.model, count, alternate(options.rounds, in_process))
    if len(seen) != 1:
        raise SystemExit("the observer changed the sampled ids: this must never happen")
    report("`tallystick observe`", options.model, count, alternate(options.rounds, whole))


if __name__ == "__main__":
    main()
