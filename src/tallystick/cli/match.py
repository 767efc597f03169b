"""``tallystick match``: are two receipts the two replicas of one job? (docs/spec/match.md)"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.audit.match import MatchReport, match_sets
from tallystick.cli.options import (
    PATH,
    from_environment,
    json_option,
    key_option,
    network_of,
    network_option,
    origin_document,
    origin_lines,
    trust_policy_option,
)
from tallystick.cli.output import emit
from tallystick.receipts.files import load_bundle_key, load_trust, set_directory
from tallystick.receipts.report import as_document
from tallystick.receipts.verify import VerifyContext
from tallystick.store.sets import read_set

if TYPE_CHECKING:
    from tallystick.canonical.json import JSONValue


@click.command(name="match")
@click.argument("left", type=PATH, metavar="A")
@click.argument("right", type=PATH, metavar="B")
@key_option
@trust_policy_option
@click.option(
    "--bundle-key-a",
    type=PATH,
    metavar="FILE",
    help="32 raw bytes that open the bundle of A, as handed to an auditor.",
)
@click.option(
    "--bundle-key-b", type=PATH, metavar="FILE", help="The same for B; with both all is checked."
)
@network_option
@json_option
@click.pass_context
def command(
    context: click.Context,
    left: Path,
    right: Path,
    key: Sequence[Path],
    trust_policy: Path | None,
    bundle_key_a: Path | None,
    bundle_key_b: Path | None,
    network: str | None,
    as_json: bool,
) -> None:
    """Hold the replica rule against the sets at A and B: one job, two workers, equal cores.

    Public files are enough; what they leave unchecked, the scheduler's signatures first of all, is
    named. There is no default trust: name both workers' public keys with --key, or a
    --trust-policy.

    Exit status: 0 they match, 1 they do not (the first rule that fails is named), 4 there was
    nothing to judge.
    """
    checks = VerifyContext(
        load_trust(key, trust_policy), datetime.now(UTC), network_id=network_of(network)
    )
    outside = (set_directory(left), set_directory(right))
    keys = (
        load_bundle_key(None, bundle_key_a, outside),
        load_bundle_key(None, bundle_key_b, outside),
    )
    report = match_sets(read_set(left).files, read_set(right).files, checks, keys=keys)
    origin = from_environment(context)
    emit(
        {**_document(report), **origin_document(origin)},
        as_json=as_json,
        lines=[*origin_lines(origin), *_words(report)],
    )
    context.exit(report.exit_code)


def _document(report: MatchReport) -> dict[str, JSONValue]:
    document = as_document(report)
    assert isinstance(document, dict)
    return {**document, "matched": report.matched, "exit_code": report.exit_code}


def _words(report: MatchReport) -> list[str]:
    lines = [
        "match" if report.matched else "NO MATCH",
        f"  A  {report.left}",
        f"  B  {report.right}",
    ]
    for rule in report.rules:
        lines.append(f"  {'holds ' if rule.holds else 'FAILED'}  {rule.name}")
        if not rule.holds:
            lines += [f"          A: {rule.left}", f"          B: {rule.right}"]
    return [*lines, *report.notes]
