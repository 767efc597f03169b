"""How fast a replay is: beside the engine's own prefill, and beside the generation.

    python -m bench.replay [--model MODEL] [--tokens N] [--rounds N]

Four things take turns in one process: the generation (states live), the replay (states, sampling,
comparison data), the same batches unobserved and unread, and a plain prefill that asks for the
last row's logits only. Prints one row of docs/benchmarks.md.
"""

from __future__ import annotations

import time

from bench._engine import (
    Subject,
    alternate,
    arguments,
    in_engine_environment,
    median,
    open_subject,
    ratio,
)
from tallystick.engine.port import Rows
from tallystick.execution.evidence import Evidence
from tallystick.execution.schedule import batch, chunks


def engine_pass(subject: Subject, ids: tuple[int, ...], outputs_from: int) -> float:
    """Return the seconds that the engine alone takes for the replay's batches."""
    tokens = (*subject.prompt, *ids[:-1])
    context = subject.compiled.open_context(subject.plan.context_spec())
    work: list[Rows] = [
        batch(tokens[chunk.first : chunk.end], chunk, outputs_from, subject.plan.row_class)
        for chunk in chunks(len(tokens), subject.plan.row_class)
    ]
    begin = time.perf_counter()
    for rows in work:
        context.evaluate(rows)
    spent = time.perf_counter() - begin
    context.close()
    return spent


def main() -> None:
    options = arguments(__doc__).parse_args()
    in_engine_environment(options.knob)
    subject = open_subject(options.model, options.tokens, options.threads)
    model = subject.compiled
    ids, _ = subject.generation(model, options.tokens, None)
    first = len(subject.prompt) - 1
    rows = alternate(
        options.rounds,
        (
            lambda: subject.generation(model, options.tokens, subject.states())[1],
            lambda: subject.replay(model, ids, Evidence(subject.states())),
            lambda: engine_pass(subject, ids, first),
            lambda: engine_pass(subject, ids, first + len(ids) - 1),
        ),
    )
    count = len(subject.prompt) + len(ids) - 1
    print(
        "| replay | of the same batches, unread | of a plain prefill | faster than generating |",
        end="",
    )
    print(" replay | command |\n|---|---|---|---|---|---|")
    print(
        f"| {options.model}, {len(subject.prompt)} + {options.tokens} tokens "
        f"| {ratio(rows, 2, 1):.3f} | {ratio(rows, 3, 1):.3f} | {ratio(rows, 0, 1):.2f} x "
        f"| {count / median(rows, 1):.0f} rows/s | `python -m bench.replay` |"
    )


if __name__ == "__main__":
    main()
