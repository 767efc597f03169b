"""The worker: fetch a run, execute it in a child of its own, seal it, again and for ever.

Loading a model is starting a child, and unloading it is the child's end: nothing of one run can
reach the next (docs/spec/worker.md). Every run that is fetched ends in the queue as done, failed,
waiting again, or released.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tallystick.contracts.layout import MARKER
from tallystick.contracts.request import InferenceRun
from tallystick.errors import (
    InterruptedRunError,
    LostLeaseError,
    RunFailedError,
    TallystickError,
    UnavailableError,
)
from tallystick.queues.port import JobResult, JobState, Lease, Queue
from tallystick.queues.spool import CollectedFiles, collect
from tallystick.store.artifacts import prepare_under, remove_set
from tallystick.store.pending import sweep
from tallystick.worker.declared import check_declared
from tallystick.worker.heartbeat import Heartbeat
from tallystick.worker.keys import SignerChoice
from tallystick.worker.reporting import Reporter
from tallystick.worker.run import Guard, Place, RunResult, run_declared
from tallystick.worker.settings import WorkerSettings
from tallystick.worker.stopping import StopSwitch
from tallystick.worker.supply import find_model

_REASON: Final = 500  # characters that a queue keeps
_AGAIN_SECONDS: Final = 5.0
_LONGEST_PAUSE: Final = 60.0
_IDLE: Final = "idle"

Outcome = Literal["done", "failed", "dead", "again", "released", "lost"]


@dataclass(frozen=True, slots=True)
class Turn:
    """What became of one fetched run. ``reason`` says why it is not done; nothing private in it.

    ``done``: its set is at ``place``. ``failed`` and ``dead`` are the queue's states. ``again``: it
    waits for another attempt. ``released``: it waits, and this was no attempt. ``lost``: the lease
    is another's or ran out, or the queue could not be told.
    """

    job_id: str
    outcome: Outcome
    receipt_digest: str | None
    place: Path | None
    reason: str | None
    seconds: float


Execute = Callable[[InferenceRun, Guard], RunResult]


@dataclass(frozen=True, slots=True)
class Listener:
    """Who is told what a worker does: each turn, each look at the spool that found something, and
    each time something cannot be used and is tried again later.
    """

    on_turn: Callable[[Turn], None] = lambda _turn: None
    on_collected: Callable[[CollectedFiles], None] = lambda _files: None
    on_trouble: Callable[[UnavailableError], None] = lambda _error: None


class Worker:
    """Works off a queue with the models and keys of one data folder."""

    def __init__(
        self,
        queue: Queue,
        settings: WorkerSettings,
        home: Path,
        stop: StopSwitch,
        *,
        worker_id: str | None = None,
        reporter: Reporter | None = None,
        listener: Listener | None = None,
        execute: Execute | None = None,
    ) -> None:
        self._queue = queue
        self._settings = settings
        self._home = home
        self._stop = stop
        self._listener = listener or Listener()
        self._execute = execute or self._run
        self.worker_id = worker_id or new_worker_id()
        self._reporter = reporter or Reporter(self.worker_id, None, None)
        self._receipts = _path(settings.receipts) or home / "receipts"

    def work(self, *, until: Literal["stopped", "empty"] = "stopped") -> int:
        """Work until told to stop, or (``empty``) until nothing waits; return the number of turns.

        What cannot be used for a while is tried again, but not with ``empty``: then
        UnavailableError is raised. It is also raised when the place of receipts or the health file
        cannot be used from the start.
        """
        sweep(self._receipts)
        self._reporter.begin()
        turns, pause = 0, _AGAIN_SECONDS
        try:
            while not self._stop.asked:
                try:
                    lease = self._fetch()
                    if lease is None:
                        if until == "empty" and not self._waiting():
                            break
                        self._stop.wait(self._settings.idle_milliseconds / 1000)
                        continue
                    turns += 1
                    self._take(lease)
                    pause = _AGAIN_SECONDS
                except UnavailableError as error:
                    if until == "empty":
                        raise
                    self._listener.on_trouble(error)
                    self._reporter.doing(_IDLE)
                    self._stop.wait(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            self._reporter.end()
        return turns

    def _fetch(self) -> Lease | None:
        """Look into the spool folder, and take the run whose turn it is."""
        self._reporter.doing(_IDLE)
        if self._settings.spool is not None:
            found = collect(Path(self._settings.spool), self._queue)
            if found.accepted or found.refused:
                self._listener.on_collected(found)
        return self._queue.claim(self.worker_id, lease_seconds=float(self._settings.lease_seconds))

    def _waiting(self) -> bool:
        """Say whether runs wait, if only for a delay to be over."""
        return dict(self._queue.counts())[JobState.PENDING] > 0

    def _take(self, lease: Lease) -> None:
        """Execute one run and tell what became of it.

        Raises UnavailableError, after that, when the next run would fare alike.
        """
        self._reporter.doing(lease.job_id)
        started = time.monotonic()
        trouble: UnavailableError | None = None
        result: RunResult | None = None
        outcome: Outcome = "done"
        reason: str | None = None
        try:
            result = self._perform(lease)
        except UnavailableError as error:
            outcome, reason, trouble = self._interpret(lease, error)
        except TallystickError as error:
            outcome, reason = self._give_up(lease, error)
        except KeyboardInterrupt:
            self._release(lease)
            raise
        except Exception as error:  # a defect, or a system that fails: no reason to stop working
            outcome, reason = self._give_up(lease, _as_failure(error))
        self._listener.on_turn(
            Turn(
                job_id=lease.job_id,
                outcome=outcome,
                receipt_digest=None if result is None else result.receipt_digest,
                place=None if result is None else result.directory,
                reason=reason,
                seconds=time.monotonic() - started,
            )
        )
        if trouble is not None:
            raise trouble

    def _perform(self, lease: Lease) -> RunResult:
        check_declared(lease.run)  # before a model is looked for
        self._stop.begin(self._settings.run_seconds)
        try:
            with Heartbeat(self._queue, lease, self._stop.abort) as beat:
                result = self._execute(lease.run, lambda: beat.require(self._stop.check))
                self._complete(lease, result)
        finally:
            self._stop.end()
        return result

    def _complete(self, lease: Lease, result: RunResult) -> None:
        """Say that the run is done, again where the queue does not answer.

        A set whose run is another's by now is removed.
        """
        place = os.fspath(result.directory)
        end = time.monotonic() + lease.seconds
        while True:
            try:
                return self._queue.complete(
                    lease, JobResult(result.receipt_digest, "complete", place)
                )
            except LostLeaseError:
                remove_set(result.directory, MARKER.name(result.receipt_id))
                raise
            except UnavailableError:
                # It may have arrived all the same, so the set stays.
                if self._stop.overdue or time.monotonic() >= end:
                    raise
                time.sleep(0.5)

    def _interpret(
        self, lease: Lease, error: UnavailableError
    ) -> tuple[Outcome, str, UnavailableError | None]:
        """Tell a run that cannot be written from a place that cannot be written to."""
        if isinstance(error, LostLeaseError):
            return "lost", _words(error), None
        try:
            with prepare_under(self._receipts):
                pass
            self._queue.heartbeat(lease)
        except LostLeaseError as lost:
            return "lost", _words(lost), None
        except UnavailableError:
            return self._release(lease), _words(error), error
        return (*self._give_up(lease, error), None)

    def _give_up(self, lease: Lease, error: TallystickError) -> tuple[Outcome, str]:
        """A run that failed may fare better another time; one that cannot be run never does."""
        reason = _words(error)
        if isinstance(error, InterruptedRunError):
            return self._release(lease), reason
        again = isinstance(error, RunFailedError | UnavailableError)
        try:
            state = self._queue.fail(
                lease,
                reason,
                retry="again" if again else "never",
                delay_seconds=_AGAIN_SECONDS if again else 0,
            )
        except UnavailableError:  # lost, or it runs out
            return "lost", reason
        if state is JobState.PENDING:
            return "again", reason
        return ("dead" if state is JobState.DEAD else "failed"), reason

    def _release(self, lease: Lease) -> Literal["released", "lost"]:
        """Hand a run back, as far as the queue listens: a lease that cannot be ended runs out."""
        try:
            self._queue.release(lease)
        except UnavailableError:
            return "lost"
        return "released"

    def _run(self, run: InferenceRun, guard: Guard) -> RunResult:
        settings = self._settings
        place = Place(
            receipts=self._receipts,
            signer=SignerChoice(_path(settings.key)),
            audit_key=_path(settings.audit_key),
            home=self._home,
        )

        def look(_what: str, _done: int, _total: int) -> None:
            self._stop.check()

        model = find_model(run.model_digest, settings.models, self._home, look)
        return run_declared(
            model, run, threads=settings.threads, place=place, guard=guard, on_progress=look
        )


def new_worker_id() -> str:
    """Return a name that no other worker has: containers share host names and process ids."""
    return f"{os.uname().nodename[:80]}:{os.getpid()}:{secrets.token_hex(4)}"


def _as_failure(error: Exception) -> TallystickError:
    """Return what an unforeseen exception means; its own text may be private."""
    kind = type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        return RunFailedError(f"the system refused something ({kind})", found=error.strerror)
    return RunFailedError(f"internal error ({kind})")


def _words(error: TallystickError) -> str:
    """Return an error as one line for the queue: what happened, and in short what was found."""
    found = (error.found or "").partition(";")[0].partition("\n")[0]
    text = f"{error.message}: {found}" if found else error.message
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return plain.strip()[:_REASON] or type(error).__name__


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
