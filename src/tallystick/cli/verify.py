"""``tallystick verify``: check receipts offline, without the model (docs/spec/verification.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tallystick.cli.options import (
    PATH,
    bundle_key_options,
    from_environment,
    json_option,
    key_option,
    network_of,
    network_option,
    origin_document,
    origin_lines,
    trust_policy_option,
)
from tallystick.cli.output import emit, printable
from tallystick.errors import NoTrustError, UnavailableError, UsageError
from tallystick.receipts.files import (
    Checks,
    NamedFiles,
    PathOutcome,
    VerificationRun,
    load_bundle_key,
    load_trust,
    set_directory,
    verify_all,
    verify_named,
)
from tallystick.receipts.report import (
    Restoration,
    Status,
    Step,
    TrustScope,
    VerificationReport,
    as_document,
)

if TYPE_CHECKING:
    from tallystick.bundles.check import CheckedBundle
    from tallystick.canonical.json import JSONValue
    from tallystick.contracts.request import InferenceRun

#: RFC 3339, section 5.6. A 60th second does not exist here, nor more than six digits of one.
_RFC3339: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt](?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
    r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_WORDS = {Status.PASSED: "passed", Status.FAILED: "FAILED", Status.NOT_CHECKED: "not checked"}


@click.command(name="verify")
@click.argument("paths", type=PATH, nargs=-1, metavar="[PATH...]")
@key_option
@trust_policy_option
@bundle_key_options
@click.option("--receipt", type=PATH, metavar="FILE", help="<id>.palw, with the next three.")
@click.option("--bundle", type=PATH, metavar="FILE", help="<id>.palw.bundle of that receipt.")
@click.option("--public-json", type=PATH, metavar="FILE", help="<id>.json of that receipt.")
@click.option("--state-db", type=PATH, metavar="FILE", help="palw-state.sqlite3 beside it.")
@click.option(
    "--bundle-dir",
    type=PATH,
    metavar="DIR",
    help="Dataset bundle to check and compare with what the receipts name.",
)
@click.option(
    "--declared",
    type=PATH,
    metavar="RUN.json",
    help="The run as it was declared, to compare with what was executed.",
)
@network_option
@click.option(
    "--now",
    metavar="TIME",
    help="Verify as of this time (RFC 3339), the receipt's window included.",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    paths: Sequence[Path],
    key: Sequence[Path],
    trust_policy: Path | None,
    audit_key_file: Path | None,
    bundle_key_file: Path | None,
    receipt: Path | None,
    bundle: Path | None,
    public_json: Path | None,
    state_db: Path | None,
    bundle_dir: Path | None,
    declared: Path | None,
    network: str | None,
    now: str | None,
    as_json: bool,
) -> None:
    """Check artifact sets offline: bytes, signatures and bindings, in numbered steps.

    PATH is a directory of sets, or one file of a set; or name the files of one set with --receipt,
    --bundle, --public-json and --state-db. There is no default trust: name the signer's public key
    with --key, or a --trust-policy. With the bundle's key the private half is checked too; with
    that key alone, the signer's key is taken out of the bundle (embedded_local_snapshot).

    With --bundle-dir the data that a receipt names is compared with what is on disk, and with the
    bundle's key its prompt too; with --declared, what was ordered with what was executed.

    Exit status: 0 every set holds, 1 one does not, 4 there was nothing to judge, 6 a
    state store is in use.
    """
    named = _named(receipt, bundle, public_json, state_db)
    if named is not None and paths:
        raise UsageError("name a set by its path or by its files, not both")
    opener = load_bundle_key(audit_key_file, bundle_key_file, _outside(named, paths))
    if named is not None and opener is None:
        raise UsageError(
            "a set named by its files needs the key of its bundle",
            expected="--audit-key-file or --bundle-key-file",
        )
    trust = None if opener and not key and trust_policy is None else load_trust(key, trust_policy)
    checks = Checks(
        trust, opener, moment_of(now), network_of(network), *_parties(bundle_dir, declared)
    )
    run = verify_all(paths, checks) if named is None else verify_named(named, checks)
    origin = from_environment(context)
    emit(
        {**_document(run), **origin_document(origin)},
        as_json=as_json,
        lines=[*origin_lines(origin), *_all_words(run)],
    )
    context.exit(run.exit_code)


def _parties(
    bundle_dir: Path | None, declared: Path | None
) -> tuple[CheckedBundle | None, InferenceRun | None]:
    """Return the bundle and the declaration that receipts are to be compared with."""
    bundle = run = None
    if bundle_dir is not None:
        from tallystick.bundles.check import check_bundle

        bundle = check_bundle(bundle_dir)
    if declared is not None:
        from tallystick.queues.runfile import read_run

        run = read_run(declared)
    return bundle, run


def _named(
    receipt: Path | None, bundle: Path | None, public_json: Path | None, state_db: Path | None
) -> NamedFiles | None:
    if receipt and bundle and public_json and state_db:
        return NamedFiles(receipt, bundle, public_json, state_db)
    if receipt or bundle or public_json or state_db:
        raise UsageError(
            "the files of a set are named all or not at all",
            expected="--receipt, --bundle, --public-json and --state-db",
        )
    return None


def _outside(named: NamedFiles | None, paths: Sequence[Path]) -> tuple[Path, ...]:
    """The directories of the sets: a key that lies in one would be handed out with it."""
    return tuple(map(set_directory, [named.receipt] if named is not None else paths))


def moment_of(text: str | None) -> datetime | None:
    """Return the time that ``--now`` gives, None without one. Raises UsageError."""
    if text is None:
        return None
    try:
        # The library reads more than RFC 3339: week dates, no separators, seconds in offsets.
        moment = datetime.fromisoformat(text.upper()) if _RFC3339.fullmatch(text) else None
    except ValueError:  # the 30th of February
        moment = None
    if moment is None or not 1970 <= moment.year <= 9000:
        raise UsageError(
            "--now is not a time of RFC 3339, of the years 1970 to 9000 and at most microseconds",
            expected="for example 2026-11-30T12:00:00Z, or ...T12:00:00.5+09:00",
            found=ascii(text[:80]),
        )
    return moment.astimezone(UTC)


def _document(run: VerificationRun) -> dict[str, JSONValue]:
    return {
        "verified": run.verified,
        "exit_code": run.exit_code,
        "outcomes": [_outcome(outcome) for outcome in run.outcomes],
    }


def _outcome(outcome: PathOutcome) -> JSONValue:
    path = printable(str(outcome.path))
    if outcome.report is None:
        return {"path": path, "verdict": _no_verdict(outcome), "problem": str(outcome.problem)}
    report = outcome.report
    document = as_document(report)
    assert isinstance(document, dict)
    # as_document gives a JSON value; that its "steps" are objects is known here, not to the types.
    for step, entry in zip(report.steps, document["steps"], strict=True):  # type: ignore[arg-type]
        entry["name"] = step.name  # type: ignore[index,call-overload]
    return {"path": path, "verdict": _verdict(report), "status": report.status, **document}


def _no_verdict(outcome: PathOutcome) -> str:
    if isinstance(outcome.problem, NoTrustError):
        return "no trust"
    return "not now" if isinstance(outcome.problem, UnavailableError) else "nothing to verify"


def _verdict(report: VerificationReport) -> str:
    return "verified" if report.verified else "failed"


def _all_words(run: VerificationRun) -> list[str]:
    """Return the words on every set, an empty line between two."""
    lines: list[str] = []
    for outcome in run.outcomes:
        lines += [*([""] if lines else []), *_words(outcome)]
    return lines


def _words(outcome: PathOutcome) -> list[str]:
    report, problem = outcome.report, outcome.problem
    if report is None:
        reasons = [] if problem is None else [f"  {line}" for line in problem.lines()]
        return [f"{_no_verdict(outcome)}  {outcome.path}", *reasons]
    name = report.receipt_digest or report.set_id
    lines = [f"{_verdict(report)}  {name}", *_step_lines(report.steps)]
    lines += _restoration_lines(report)
    if report.trust_scope is not None:
        lines.append(f"status={report.status} trust_scope={report.trust_scope}")
        lines += [f"  {line}" for line in _scope_words(report)]
    lines += _list("What this proves:", report.proves)
    return lines + _list("What it does not prove:", report.does_not_prove)


def _restoration_lines(report: VerificationReport) -> Iterator[str]:
    found = report.restoration
    if report.trust_scope is None and found.status is Status.NOT_CHECKED:
        return
    yield f"  state  {_WORDS[found.status]:<11}  {found.detail}"
    yield from _reasons(found)


def _scope_words(report: VerificationReport) -> Iterator[str]:
    """Explain both words of the status line."""
    if report.status == "local_restored":
        yield "local_restored: the state store beside the set accepted this very receipt."
    elif report.status == "verified":
        yield "verified: every step that could be checked holds; the state store was not compared."
    if report.trust_scope is TrustScope.EMBEDDED:
        yield "embedded_local_snapshot: the signer's key came out of the bundle itself. The set is"
        yield "the one that was sealed with your key; who made it is for --key or a policy to say."
    else:
        yield "given_keys: signed by a key that you named."


def _step_lines(steps: Sequence[Step]) -> Iterator[str]:
    """Yield a line for each step; neighbours that say the same share one."""
    for (status, detail), group in groupby(steps, key=lambda step: (step.status, step.detail)):
        run = list(group)
        first, last = run[0], run[-1]
        label = f"{first.number}" if first is last else f"{first.number}-{last.number}"
        text = detail if len(run) > 1 else f"{first.name}: {detail}"
        yield f"  {label:>5}  {_WORDS[status]:<11}  {text}"
        yield from _reasons(first)


def _reasons(found: Step | Restoration) -> Iterator[str]:
    reasons = (("expected", found.expected), ("found", found.found), ("what to do", found.hint))
    for word, value in reasons:
        if value is not None:
            yield f"{'':>22}{word}: {value}"


def _list(title: str, lines: Sequence[str]) -> list[str]:
    return [title, *(f"  - {line}" for line in lines)] if lines else []
