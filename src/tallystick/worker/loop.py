"""The worker: fetch a run, execute it in a child of its own, seal it, again and for ever.

Loading a model is starting a child, and unloading it is the child's end: nothing of one run can
reach the next (docs/spec/worker.md). Every run that is fetched ends in the queue as done, failed,
waiting again, or released.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from tallystick.contracts.request import InferenceRun
from tallystick.errors import (
    InputError,
    InterruptedRunError,
    LostLeaseError,
    RunFailedError,
    TallystickError,
    UnavailableError,
)
from tallystick.models.listing import list_models
from tallystick.queues.port import JobResult, Lease, Queue
from tallystick.worker.heartbeat import Heartbeat
from tallystick.worker.keys import SignerChoice
from tallystick.worker.run import Place, RunResult, run_declared
from tallystick.worker.settings import WorkerSettings
from tallystick.worker.stopping import StopSwitch

_REASON: Final = 500  # characters that a queue keeps
_AGAIN_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Turn:
    """What became of one fetched run. ``reason`` says why it is not done; nothing private in it."""

    job_id: str
    outcome: Literal["done", "failed", "again", "released", "lost"]
    receipt_digest: str | None
    place: Path | None
    reason: str | None
    seconds: float


OnTurn = Callable[[Turn], None]
Execute = Callable[[InferenceRun, Callable[[], None]], RunResult]


def no_turn(_turn: Turn) -> None:
    """Tell nobody."""


class Worker:
    """Works off a queue with the models and keys of one data folder."""

    def __init__(
        self,
        queue: Queue,
        settings: WorkerSettings,
        home: Path,
        stop: StopSwitch,
        *,
        on_turn: OnTurn = no_turn,
        execute: Execute | None = None,
    ) -> None:
        self._queue = queue
        self._settings = settings
        self._home = home
        self._stop = stop
        self._on_turn = on_turn
        self._execute = execute or self._run
        self.worker_id = f"{os.uname().nodename}:{os.getpid()}"[:120]

    def work(self, *, until: Literal["stopped", "empty"] = "stopped") -> int:
        """Work until told to stop, or (``empty``) until nothing waits; return the number of turns.

        Raises UnavailableError when the queue itself cannot be used.
        """
        turns = 0
        while not self._stop.asked:
            self._tell_health("idle")
            lease = self._queue.claim(
                self.worker_id, lease_seconds=float(self._settings.lease_seconds)
            )
            if lease is None:
                if until == "empty":
                    break
                self._stop.wait(self._settings.idle_milliseconds / 1000)
                continue
            self._tell_health(lease.job_id)
            turns += 1
            self._on_turn(self._turn(lease))
        return turns

    def _turn(self, lease: Lease) -> Turn:
        """Execute one run and say to the queue what became of it."""
        started = time.monotonic()

        def turn(outcome: Literal["failed", "again", "released", "lost"], reason: str) -> Turn:
            return Turn(lease.job_id, outcome, None, None, reason, time.monotonic() - started)

        try:
            result = self._perform(lease)
        except LostLeaseError as error:
            return turn("lost", error.message)
        except (InterruptedRunError, KeyboardInterrupt) as error:
            self._say(lambda: self._queue.release(lease))
            return turn("released", str(error) or "interrupted")
        except UnavailableError as error:
            self._say(lambda: self._queue.release(lease))
            self._stop.wait(_AGAIN_SECONDS)
            return turn("released", error.message)
        except TallystickError as error:
            return turn(*self._give_up(lease, error))
        return Turn(
            lease.job_id,
            "done",
            result.receipt_digest,
            result.directory,
            None,
            time.monotonic() - started,
        )

    def _perform(self, lease: Lease) -> RunResult:
        run = lease.run
        _require_sound(run)
        with Heartbeat(self._queue, lease) as beat:
            self._stop.begin(self._settings.run_seconds)
            try:
                result = self._execute(run, beat.require)
            finally:
                self._stop.end()
            self._queue.complete(
                lease, JobResult(result.receipt_digest, "complete", os.fspath(result.directory))
            )
        return result

    def _give_up(
        self, lease: Lease, error: TallystickError
    ) -> tuple[Literal["failed", "again", "lost"], str]:
        """A run that failed in the engine may be tried again; one that cannot be run never."""
        retry: Literal["again", "never"] = "again" if isinstance(error, RunFailedError) else "never"
        reason = error.message[:_REASON]
        try:
            self._queue.fail(lease, reason, retry=retry, delay_seconds=_AGAIN_SECONDS)
        except LostLeaseError as lost:
            return "lost", lost.message
        return ("again" if retry == "again" else "failed"), reason

    def _say(self, call: Callable[[], None]) -> None:
        """Tell the queue, as far as it listens: a lease that cannot be ended runs out."""
        try:
            call()
        except UnavailableError:
            return

    def _run(self, run: InferenceRun, guard: Callable[[], None]) -> RunResult:
        settings = self._settings
        place = Place(
            receipts=_path(settings.receipts),
            signer=SignerChoice(_path(settings.key)),
            audit_key=_path(settings.audit_key),
            home=self._home,
        )
        model = find_model(run.model_digest, settings.models, self._home)
        return run_declared(model, run, threads=settings.threads, place=place, guard=guard)

    def _tell_health(self, doing: str) -> None:
        """Rewrite the health file, if there is one: who watches it looks at its time."""
        path = _path(self._settings.health)
        if path is None:
            return
        text = f"{int(time.time())} {self.worker_id} {doing}\n"
        temporary = path.with_name(path.name + ".new")
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            raise UnavailableError(
                f"the health file {path} cannot be written", found=error.strerror
            ) from None


def _require_sound(run: InferenceRun) -> None:
    """What can be refused before a model is looked for. Raises InputError."""
    if run.expires_at is not None and datetime.fromisoformat(run.expires_at) <= datetime.now(UTC):
        raise InputError("the run has expired", expected=f"before {run.expires_at}")
    if run.model_digest != run.model.expectedDigest:
        raise InputError(
            "the run declares two models",
            expected=run.model.expectedDigest,
            found=run.model_digest,
        )


def find_model(digest: str, names: tuple[str, ...] | None, home: Path) -> str:
    """Return the name or path of the model with this digest; ``names`` None: any named one.

    Raises InputError when there is none: no model file is opened for a digest that no pin has.
    """
    known = {item.name: item.pin.digest for item in list_models(home) if item.pin is not None}
    for name in known if names is None else names:
        if known.get(name) == digest:
            return name
    for name in names or ():
        if name not in known and _digest_of(Path(name), home) == digest:
            return name
    raise InputError(
        "this worker does not have the run's model",
        expected=digest,
        found=f"{len(known)} named models",
        hint="pull or add the model, or name it in the worker's settings",
    )


def _digest_of(path: Path, home: Path) -> str | None:
    from tallystick.execution.launch import no_progress
    from tallystick.models.add import hash_file

    return hash_file(path, home, no_progress).digest if path.is_file() else None


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
