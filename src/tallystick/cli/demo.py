"""``tallystick demo``: a small model answers, and the answer is verified and replayed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tallystick.cli.extras import require_engine
from tallystick.cli.options import json_option, threads_option
from tallystick.cli.output import emit, note, note_new_key
from tallystick.cli.passphrase import passphrase_options, passphrase_source
from tallystick.cli.progress import WorkProgress
from tallystick.cli.run import Stream
from tallystick.errors import (
    EvidenceError,
    InputError,
    RunFailedError,
    TallystickError,
)

if TYPE_CHECKING:
    from tallystick.attest.keyfiles import PassphraseSource
    from tallystick.audit.replay import ReplayReport
    from tallystick.canonical.json import JSONValue
    from tallystick.worker.run import RunResult

MODEL: Final = "smollm2-135m-instruct"
PROMPT: Final = "What is a tally stick, and why was it split in two? Answer in three sentences."
# What another exit code of the second process becomes is an unforeseen end of it: 7.
_VERIFY_ERRORS: Final = {kind.exit_code: kind for kind in (EvidenceError, InputError)}


@dataclass(slots=True)
class _Clock:
    """Seconds spent on each part."""

    started: float = field(default_factory=time.monotonic)
    seconds: dict[str, float] = field(default_factory=dict)

    def lap(self, part: str) -> None:
        now = time.monotonic()
        self.seconds[part] = round(now - self.started, 3)
        self.started = now


@dataclass(frozen=True, slots=True)
class _Demo:
    """What the demo did; ``seconds`` has the keys model, run, verify, replay."""

    result: RunResult
    key: Path
    report: ReplayReport
    seconds: dict[str, float]


@click.command(name="demo")
@click.option("--prompt", default=PROMPT, help="What to ask.  [default: about tally sticks]")
@click.option(
    "-n", "--n-predict", type=int, default=96, show_default=True, help="Most tokens to generate."
)
@passphrase_options
@threads_option
@json_option
def command(
    prompt: str,
    n_predict: int,
    passphrase_prompt: bool,
    passphrase_file: Path | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Pull a 98 MB model, run it, verify the receipt in a second process, replay it exactly.

    The verification is given your own public key in the open: there is no default trust.
    """
    require_engine()
    passphrase = passphrase_source(prompt=passphrase_prompt, file=passphrase_file)
    with WorkProgress() as progress:
        stream = Stream(progress, live=not as_json)
        demo = _perform(prompt, n_predict, passphrase, threads, stream, progress)
    emit(_document(demo), as_json=as_json, lines=_words(demo))


def _perform(
    prompt: str,
    n_predict: int,
    passphrase: PassphraseSource | None,
    threads: int | None,
    stream: Stream,
    progress: WorkProgress,
) -> _Demo:
    from tallystick.audit.replay import replay
    from tallystick.models.pull import pull
    from tallystick.receipts.files import load_trust
    from tallystick.store.home import home
    from tallystick.worker.keys import SignerChoice, show_key
    from tallystick.worker.request import RunOptions
    from tallystick.worker.run import run

    clock = _Clock()
    note(f"model     {MODEL}")
    pull(MODEL, home(), progress=progress.update)
    clock.lap("model")
    note(f"prompt    {prompt}")
    note("")
    result = run(
        MODEL,
        RunOptions(prompt=prompt, chat="template", max_tokens=n_predict, threads=threads),
        signer=SignerChoice(passphrase=passphrase),
        on_text=stream.write,
        on_progress=progress.update,
    )
    stream.end()
    clock.lap("run")
    if result.default_key_created:
        note("")
        note_new_key(result.signer)
    if result.default_audit_key_created:
        note("made an audit key, because there was none: keep it, it opens your receipts")
    key = show_key().public_key_file
    _verify(result.directory, key)
    clock.lap("verify")
    trust = load_trust([key], None)
    report = replay(
        result.directory, MODEL, trust=trust, threads=threads, on_progress=progress.update
    )
    clock.lap("replay")
    if not report.verified:
        raise EvidenceError("the replay differs", found=str(report.difference))
    return _Demo(result, key, report, clock.seconds)


def _document(demo: _Demo) -> JSONValue:
    return {
        "receipt_digest": demo.result.receipt_digest,
        "core_digest": demo.result.core_digest,
        "directory": str(demo.result.directory),
        "text": demo.result.text,
        "verified": demo.report.verified,
        "exact": demo.report.exact,
        "sampled": demo.report.sampled,
        "seconds": dict(demo.seconds),
    }


def _words(demo: _Demo) -> list[str]:
    report, directory = demo.report, demo.result.directory
    seconds = report.replay_ns / 1e9
    model, ran, verified, replayed = (
        f"{demo.seconds[part]:6.2f} s" for part in ("model", "run", "verify", "replay")
    )
    return [
        "",
        f"receipt   {demo.result.receipt_digest}",
        f"          in {directory}",
        f"verified  by a second process, with the key {demo.key}",
        f"replayed: {report.exact} of {report.sampled} positions bit-exact",
        "",
        f"{model}  model ready",
        f"{ran}  run and sign (first time: with fingerprint and calibration)",
        f"{verified}  verify, a process of its own",
        f"{replayed}  replay, {report.rows} rows in one batched pass of {seconds:.2f} s",
        "",
        (
            "The signature shows who says so, the replay that it is so;"
            " neither, that the answer is right."
        ),
        f"Look at it:  {_program()} inspect {shlex.quote(str(directory))}",
    ]


def _program() -> str:
    """Return what the user types for this program: a path where its name alone is not found."""
    beside = Path(sys.executable).with_name("tallystick")
    found = shutil.which("tallystick")
    return "tallystick" if found or not beside.exists() else shlex.quote(str(beside))


def _verify(directory: Path, key: Path) -> None:
    """Verify as a stranger would: another process, the public key named on its command line."""
    done = subprocess.run(
        [sys.executable, "-m", "tallystick", "verify", str(directory), "--key", str(key)],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr).splitlines()
        kind: type[TallystickError] = _VERIFY_ERRORS.get(done.returncode, RunFailedError)
        raise kind(
            "the second process did not verify the receipt",
            expected="exit code 0",
            found=" | ".join([f"exit code {done.returncode}", *said]),
        )
