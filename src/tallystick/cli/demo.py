"""``tallystick demo``: a small model answers, and the answer is verified and replayed."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import click

from tallystick.cli.extras import require_engine
from tallystick.cli.options import threads_option
from tallystick.cli.output import note
from tallystick.cli.progress import WorkProgress
from tallystick.cli.run import Stream
from tallystick.errors import EvidenceError

MODEL = "smollm2-135m-instruct"
PROMPT = "What is a tally stick, and why was it split in two? Answer in three sentences."


@dataclass(slots=True)
class _Clock:
    """Seconds spent on each part, for the closing lines."""

    started: float

    def lap(self) -> str:
        now = time.monotonic()
        spent, self.started = now - self.started, now
        return f"{spent:6.2f} s"


@click.command(name="demo")
@click.option("--prompt", default=PROMPT, help="What to ask.  [default: about tally sticks]")
@click.option(
    "-n", "--n-predict", type=int, default=96, show_default=True, help="Most tokens to generate."
)
@threads_option
def command(prompt: str, n_predict: int, threads: int | None) -> None:
    """Pull a 98 MB model, run it, verify the receipt in a second process, replay it exactly.

    The verification is given your own public key in the open: there is no default trust.
    """
    require_engine()
    from tallystick.attest.keyfiles import default_key_path, public_key_path
    from tallystick.audit.replay import replay
    from tallystick.models.pull import pull
    from tallystick.receipts.files import load_trust
    from tallystick.store.home import home
    from tallystick.worker.request import RunOptions
    from tallystick.worker.run import run

    clock = _Clock(time.monotonic())
    with WorkProgress() as progress:
        note(f"model     {MODEL}")
        pull(MODEL, home(), progress=progress.update)
        pulled = clock.lap()
        note(f"prompt    {prompt}\n")
        stream = Stream(progress, live=True)
        result = run(
            MODEL,
            RunOptions(prompt=prompt, chat="template", max_tokens=n_predict, threads=threads),
            on_text=stream.write,
            on_progress=progress.update,
        )
        stream.end()
        ran = clock.lap()
        if result.default_key_created:
            note(f"\nmade a signing key, because there was none: {result.signer}")
        key = public_key_path(default_key_path(home()))
        _verify(result.directory, key)
        verified = clock.lap()
        report = replay(
            result.directory,
            MODEL,
            trust=load_trust([key], None),
            threads=threads,
            on_progress=progress.update,
        )
        replayed = clock.lap()
    if not report.verified:
        raise EvidenceError("the replay differs", found=str(report.difference))
    click.echo(f"""
receipt   {result.receipt_digest}
          in {result.directory}
verified  by a second process, with the key {key}
replayed: {report.exact} of {report.sampled} positions bit-exact

{pulled}  model ready
{ran}  run and sign (first time: with fingerprint and calibration)
{verified}  verify, a process of its own
{replayed}  replay, {report.rows} rows in one batched pass of {report.replay_ns / 1e9:.2f} s

A receipt proves what ran and what came out, not that the answer is right.
Look at it:  tallystick inspect {result.directory}""")


def _verify(directory: Path, key: Path) -> None:
    """Verify as a stranger would: another process, the public key named on its command line."""
    done = subprocess.run(
        [sys.executable, "-m", "tallystick", "verify", str(directory), "--key", str(key)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise EvidenceError("the second process did not verify the receipt", found=done.stdout)
