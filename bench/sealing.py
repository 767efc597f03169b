"""What a sealing pass costs more for schedule, sketches and expert routes.

    python -m bench.sealing [--model MODEL] [--tokens N] [--rounds N]

The same pass over a finished run takes turns in one process: with states alone, with schedule and
routes as well, with everything. Prints one row of docs/benchmarks.md; the roots must be equal.
"""

from __future__ import annotations

from dataclasses import replace

from bench._engine import (
    Subject,
    alternate,
    arguments,
    in_engine_environment,
    median,
    open_subject,
    ratio,
)
from tallystick.evidence.adapter.collector import Collector
from tallystick.evidence.adapter.nodes import ModelFigures
from tallystick.evidence.routes import RouteBuilder
from tallystick.execution.evidence import Evidence, figures_of


def routes_of(subject: Subject, figures: ModelFigures) -> RouteBuilder | None:
    """Return what collects the routes of a pass, None for a dense model."""
    if not figures.experts:
        return None
    last_from = len(subject.prompt) - 1
    return RouteBuilder(figures.layers, figures.experts, figures.used, last_from=last_from)


def main() -> None:
    options = arguments(__doc__).parse_args()
    in_engine_environment(options.knob)
    subject = open_subject(options.model, options.tokens, options.threads)
    model = subject.compiled
    figures = figures_of(model.summary())
    ids, _ = subject.generation(model, options.tokens, None)
    roots: set[bytes] = set()

    def sealed(*parts: str) -> float:
        evidence = Evidence(subject.states(), routes_of(subject, figures), figures)
        if "gemm" in parts:
            evidence = replace(evidence, graph=Collector(figures, "products"), reads="products")
        elif "graph" in parts:
            evidence = replace(evidence, graph=Collector(figures, "nothing"))
        seconds = subject.replay(model, ids, evidence)
        assert evidence.tree is not None
        roots.add(evidence.tree.root())
        return seconds

    rows = alternate(options.rounds, (sealed, lambda: sealed("graph"), lambda: sealed("gemm")))
    if len(roots) != 1:
        raise SystemExit("what was watched changed bits: this must never happen")
    count = len(subject.prompt) + len(ids) - 1
    print("| sealing pass, of the same with states alone | graph | gemm | states | command |")
    print("|---|---|---|---|---|")
    print(
        f"| {options.model}, {len(subject.prompt)} + {options.tokens} tokens "
        f"| {ratio(rows, 1, 0):.3f} x | {ratio(rows, 2, 0):.3f} x "
        f"| {count / median(rows, 0):.0f} rows/s | `python -m bench.sealing` |"
    )


if __name__ == "__main__":
    main()
