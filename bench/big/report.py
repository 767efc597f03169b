"""Puts the figures into rows of docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from bench.big.commands import Done
from bench.big.scenario import Outcome

_Cell = Callable[[Outcome], str]


def once_rows(seconds: Mapping[str, float]) -> Iterator[str]:
    """Yield the table of what is done once for a file or a machine."""
    yield "| once | seconds |"
    yield "|---|---|"
    for what, spent in seconds.items():
        yield f"| {what} | {spent:.1f} |"


def calibration_rows(done: Done) -> Iterator[str]:
    """Yield the rows of a calibration, which is done once too."""
    yield (
        f"| calibration: `model calibrate`; peak memory of a child: {_child(done)} "
        f"| {done.seconds:.1f} |"
    )
    for combination in done.document["combinations"]:
        row_class = combination["row_class"]
        knobs = ", ".join(f"{k['name']}={k['value']}" for k in combination["knobs"]) or "no knob"
        yield (
            f"| exact: {row_class['floor']} to {row_class['max_rows']} rows, {knobs} "
            f"| {int(combination['decode_speed']) / 1000:.1f} tokens/s generated, "
            f"{int(combination['prefill_speed']) / 1000:.1f} in a batched pass |"
        )


def case_rows(outcomes: tuple[Outcome, ...]) -> Iterator[str]:
    """Yield the table of the runs, one column each."""
    titles = (
        f"`{o.case.policy}`, {o.case.prompt_tokens} + {o.case.generated} tokens" for o in outcomes
    )
    yield f"| | {' | '.join(titles)} |"
    yield "|---" * (1 + len(outcomes)) + "|"
    for what, cell in _CELLS.items():
        yield f"| {what} | {' | '.join(map(cell, outcomes))} |"


def _parts(outcome: Outcome) -> str:
    spent = outcome.documents.receipt.observed.durations_ns
    return ", ".join(
        f"{value / 1e9:.2f} s" for value in (spent.load, spent.prefill, spent.decode, spent.seal)
    )


def _speed(outcome: Outcome) -> str:
    decode = outcome.documents.receipt.observed.durations_ns.decode / 1e9
    return f"{(outcome.case.generated - 1) / decode:.1f}"


def _replayed(outcome: Outcome) -> str:
    spent = int(outcome.replay.document["replay_ns"]) / 1e9
    return f"{outcome.replay.seconds:.1f} s, {spent:.2f} s"


def _child(done: Done) -> str:
    return f"{done.child.peak / 1e9:.2f} GB, {done.child.anonymous / 1e9:.2f} GB"


def _supervisor(done: Done) -> str:
    return f"{done.supervisor.peak / 1e6:.0f} MB"


def _figures(outcome: Outcome) -> str:
    public = outcome.documents.public_json
    evidence = outcome.documents.receipt.core.evidence
    return (
        f"{public.trace_event_count}, {public.expert_route.route_event_count}, "
        f"{evidence.state_leaves}"
    )


def _exact(outcome: Outcome) -> str:
    document = outcome.replay.document
    return f"{document['exact']} of {document['sampled']}"


_CELLS: dict[str, _Cell] = {
    "evidence": lambda o: o.case.evidence,
    "`run`, the whole command": lambda o: f"{o.run.seconds:.1f} s",
    "of it load, prompt, generation, sealing pass": _parts,
    "tokens a second after the first": _speed,
    "`verify`, the whole command": lambda o: f"{o.verify.seconds:.2f} s",
    "`replay`, the whole command; its pass": _replayed,
    "generated positions that are bit-exact": _exact,
    "trace events, expert routes, state leaves": _figures,
    "compute units": lambda o: str(o.documents.receipt.core.canonical_compute_units),
    "peak memory of the child of `run`; not mapped files": lambda o: _child(o.run),
    "the same of `replay`": lambda o: _child(o.replay),
    "peak memory of the supervisor of `run`": lambda o: _supervisor(o.run),
    "the same of `replay`; of `verify`": (
        lambda o: f"{_supervisor(o.replay)}; {_supervisor(o.verify)}"
    ),
}
