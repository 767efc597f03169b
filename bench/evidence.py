"""What committing to every state costs during a generation.

    python -m bench.evidence [--model MODEL] [--tokens N] [--rounds N]

Three generations take turns in one process: unobserved, with the compiled observer, with the
Python one. Prints one row of docs/benchmarks.md; the roots of both observers must be equal.
"""

from __future__ import annotations

from bench._engine import alternate, arguments, in_engine_environment, median, open_subject, ratio


def main() -> None:
    options = arguments(__doc__).parse_args()
    in_engine_environment(options.knob)
    subject = open_subject(options.model, options.tokens, options.threads)
    roots: set[bytes] = set()
    sampled: set[tuple[int, ...]] = set()

    def unobserved() -> float:
        ids, seconds = subject.generation(subject.compiled, options.tokens, None)
        sampled.add(ids)
        return seconds

    def observed(python: bool) -> float:
        tree = subject.states()
        model = subject.python if python else subject.compiled
        ids, seconds = subject.generation(model, options.tokens, tree)
        sampled.add(ids)
        roots.add(tree.root())
        return seconds

    rows = alternate(options.rounds, (unobserved, lambda: observed(False), lambda: observed(True)))
    if len(roots) != 1 or len(sampled) != 1:
        raise SystemExit("the observers changed bits: this must never happen")
    speed = (options.tokens - 1) / median(rows, 0)
    print("| generation with states, of unobserved | compiled | Python | unobserved | command |")
    print("|---|---|---|---|---|")
    print(
        f"| {options.model}, {options.tokens} tokens | {ratio(rows, 0, 1):.3f} "
        f"| {ratio(rows, 0, 2):.3f} | {speed:.0f} tok/s | `python -m bench.evidence` |"
    )


if __name__ == "__main__":
    main()
