"""``tallystick verify``: check receipts offline, without the model (docs/spec/verification.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli.options import PATH, json_option, key_option, trust_policy_option
from tallystick.cli.output import emit, printable
from tallystick.errors import UsageError
from tallystick.receipts.files import PathOutcome, VerificationRun, load_trust, verify_paths
from tallystick.receipts.report import Status, Step, VerificationReport, as_document

if TYPE_CHECKING:
    from tallystick.canonical.json import JSONValue

_WORDS = {Status.PASSED: "passed", Status.FAILED: "FAILED", Status.NOT_CHECKED: "not checked"}


@click.command(name="verify")
@click.argument("paths", type=PATH, nargs=-1, required=True, metavar="PATH...")
@key_option
@trust_policy_option
@click.option(
    "--now",
    metavar="TIME",
    help="Verify as of this time (RFC 3339, with a zone) instead of the current one.",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    paths: Sequence[Path],
    key: Sequence[Path],
    trust_policy: Path | None,
    now: str | None,
    as_json: bool,
) -> None:
    """Check artifact sets offline: bytes, signatures and bindings, in numbered steps.

    PATH is a directory of sets, or the <id>.geoai.json or <id>.complete of one. There is no default
    trust: name the signer's public key with --key, or a --trust-policy.

    Exit status: 0 every set holds, 1 one does not, 4 there was nothing to judge.
    """
    run = verify_paths(paths, load_trust(key, trust_policy), now=_moment(now))
    emit(_document(run), as_json=as_json, text="\n\n".join(map(_words, run.outcomes)))
    context.exit(run.exit_code)


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or not 1970 <= moment.year <= 9000:
        raise UsageError(
            "--now is not a time", expected="for example 2026-11-30T12:00:00Z", found=text[:80]
        )
    return moment.astimezone(UTC)


def _document(run: VerificationRun) -> JSONValue:
    return {
        "verified": run.verified,
        "exit_code": run.exit_code,
        "outcomes": [_outcome(outcome) for outcome in run.outcomes],
    }


def _outcome(outcome: PathOutcome) -> JSONValue:
    path = printable(str(outcome.path))
    if outcome.report is None:
        problem = printable(str(outcome.problem))
        return {"path": path, "verdict": "nothing to verify", "problem": problem}
    report = outcome.report
    document = as_document(report)
    assert isinstance(document, dict)
    # as_document gives a JSON value; that its "steps" are objects is known here, not to the types.
    for step, entry in zip(report.steps, document["steps"], strict=True):  # type: ignore[arg-type]
        entry["name"] = step.name  # type: ignore[index,call-overload]
    return {"path": path, "verdict": _verdict(report), **document}


def _verdict(report: VerificationReport) -> str:
    return "verified" if report.verified else "failed"


def _words(outcome: PathOutcome) -> str:
    if outcome.report is None:
        return f"nothing to verify  {outcome.path}\n  {outcome.problem}"
    report = outcome.report
    name = report.receipt_digest or report.set_id
    lines = [f"{_verdict(report)}  {name}", *_step_lines(report.steps)]
    lines += _list("What this proves:", report.proves)
    lines += _list("What it does not prove:", report.does_not_prove)
    return "\n".join(lines)


def _step_lines(steps: Sequence[Step]) -> Iterator[str]:
    """Yield a line for each step; neighbours that say the same share one."""
    for (status, detail), group in groupby(steps, key=lambda step: (step.status, step.detail)):
        run = list(group)
        first, last = run[0], run[-1]
        label = f"{first.number}" if first is last else f"{first.number}-{last.number}"
        text = detail if len(run) > 1 else f"{first.name}: {detail}"
        yield f"  {label:>5}  {_WORDS[status]:<11}  {text}"
        for word, value in (("expected", first.expected), ("found", first.found)):
            if value is not None:
                yield f"{'':>22}{word}: {value}"


def _list(title: str, lines: Sequence[str]) -> list[str]:
    return [title, *(f"  - {line}" for line in lines)] if lines else []
