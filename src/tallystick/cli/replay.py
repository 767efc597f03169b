"""``tallystick replay``: execute a receipt again and compare every bit (docs/spec/replay.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli.extras import require_engine
from tallystick.cli.options import (
    PATH,
    bundle_key_options,
    from_environment,
    json_option,
    key_option,
    model_option,
    network_of,
    network_option,
    origin_document,
    origin_lines,
    threads_option,
    trust_policy_option,
)
from tallystick.cli.output import emit
from tallystick.cli.progress import WorkProgress

if TYPE_CHECKING:
    from tallystick.audit.replay import ReplayReport
    from tallystick.canonical.json import JSONValue


@click.command(name="replay")
@click.argument("path", type=PATH, metavar="PATH")
@model_option
@key_option
@trust_policy_option
@bundle_key_options
@network_option
@threads_option
@json_option
@click.pass_context
def command(
    context: click.Context,
    path: Path,
    model: str,
    key: Sequence[Path],
    trust_policy: Path | None,
    audit_key_file: Path | None,
    bundle_key_file: Path | None,
    network: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Execute the receipt at PATH again on MODEL and compare every token and state.

    Needs the sealed bundle beside the receipt and the key that opens it; without one of the key
    options your own audit key is tried. The signature is held against --key or --trust-policy when
    they are given, else against the key in the bundle.

    Exit status: 0 every bit is equal, 1 something differs (and where), 3 this machine cannot
    execute the receipt's runtime class, so nothing is said.
    """
    require_engine()
    from tallystick.audit.replay import replay
    from tallystick.receipts.files import load_bundle_key, load_trust, set_directory

    trust = load_trust(key, trust_policy) if key or trust_policy else None
    opener = load_bundle_key(audit_key_file, bundle_key_file, (set_directory(path),))
    with WorkProgress() as progress:
        report = replay(
            path,
            model,
            trust=trust,
            key=opener,
            network_id=network_of(network),
            threads=threads,
            on_progress=progress.update,
        )
    origin = from_environment(context)
    emit(
        {**_document(report), **origin_document(origin)},
        as_json=as_json,
        lines=[*origin_lines(origin), *words(report)],
    )
    context.exit(report.exit_code)


def _document(report: ReplayReport) -> dict[str, JSONValue]:
    from tallystick.receipts.report import as_document

    document = as_document(report)
    assert isinstance(document, dict)
    return {
        **document,
        "replay_ns": str(report.replay_ns),
        "verified": report.verified,
        "exit_code": report.exit_code,
    }


def words(report: ReplayReport) -> list[str]:
    """Return a report in words."""
    verdict = "replayed" if report.verified else "FAILED"
    what = "positions bit-exact" if report.states != "not_committed" else "tokens follow again"
    lines = [f"{verdict}: {report.exact} of {report.sampled} {what}  {report.receipt_digest}"]
    if report.difference is not None:
        lines.append(f"  first difference: {report.difference.what}")
    parts = (
        ("states", report.states),
        ("the worker's own root", report.worker_states),
        ("expert routes", report.routes),
        ("schedule", report.schedule),
        ("sketches of products", report.products),
    )
    compared = [name for name, found in parts if found != "not_committed"]
    lines.append(f"  compared: {', '.join(['tokens', *compared, 'output'])}")
    if report.signature == "not_checked":
        lines.append("  signature: by the key in the bundle; --key or --trust-policy says whose")
    seconds = report.replay_ns / 1e9
    lines.append(f"  {report.rows} rows in {seconds:.2f} s")
    return lines
