"""``tallystick replay``: execute a receipt again and compare every bit (docs/spec/replay.md)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
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
    ring_depth_option,
    sandbox_option,
    threads_option,
    trust_policy_option,
)
from tallystick.cli.output import emit
from tallystick.cli.progress import WorkProgress
from tallystick.errors import UnavailableError, UsageError

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
@ring_depth_option
@click.option(
    "--transcript",
    type=PATH,
    metavar="FILE",
    help="Write what the pass computes to the new file FILE, as `observe` does. Private.",
)
@click.option(
    "--observer",
    type=click.Choice(["graph", "sketch"]),
    help="What --transcript holds; see `observe`. Default: sketch.",
)
@sandbox_option
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
    transcript: Path | None,
    observer: str | None,
    sandbox: str,
    ring_depth: int,
    as_json: bool,
) -> None:
    """Execute the receipt at PATH again on MODEL and compare every token and state.

    Needs the sealed bundle beside the receipt and the key that opens it; without one of the key
    options your own audit key is tried. The signature is held against --key or --trust-policy when
    they are given, else against the key in the bundle.

    With --transcript the pass also writes what its graphs compute: the lines are private, the last
    one holds the prompt's and the answer's token ids. `observe --check` reads them again.

    Exit status: 0 every bit is equal, 1 something differs (and where), 2 the transcript would be
    too large, 3 this machine cannot execute the receipt's runtime class, so nothing is said, 5 the
    sandbox cannot be enforced, 6 the transcript cannot be written.
    """
    require_engine()
    from tallystick.audit.replay import TranscriptRequest, replay
    from tallystick.receipts.files import load_bundle_key, load_trust, set_directory
    from tallystick.sandbox.profiles import strictly

    trust = load_trust(key, trust_policy) if key or trust_policy else None
    opener = load_bundle_key(audit_key_file, bundle_key_file, (set_directory(path),))
    if observer is not None and transcript is None:
        raise UsageError("--observer is for a transcript", expected="--transcript FILE with it")
    with WorkProgress() as progress, _new_file(transcript) as write:
        wanted = None if transcript is None else TranscriptRequest(observer or "sketch", write)
        report = replay(
            path,
            model,
            trust=trust,
            key=opener,
            network_id=network_of(network),
            threads=threads,
            transcript=wanted,
            sandbox=strictly(sandbox),
            ring_depth=ring_depth,
            on_progress=progress.update,
        )
    origin = from_environment(context)
    emit(
        {**_document(report), **origin_document(origin)},
        as_json=as_json,
        lines=[*origin_lines(origin), *words(report)],
    )
    context.exit(report.exit_code)


@contextlib.contextmanager
def _new_file(path: Path | None) -> Iterator[Callable[[bytes], None]]:
    """Yield what writes lines to the new, private file ``path``; after an error it is not left."""
    if path is None:
        yield lambda line: None
        return
    from tallystick.store.home import unavailable

    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise UnavailableError(
            f"cannot write the transcript {path}",
            expected="the name of a new file",
            found=error.strerror,
            hint="choose another place: nothing is ever overwritten",
        ) from error

    def write(line: bytes) -> None:
        left = memoryview(line)
        try:
            while left:
                left = left[os.write(descriptor, left) :]
        except OSError as error:
            raise unavailable(path, error) from error

    try:
        yield write
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


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
