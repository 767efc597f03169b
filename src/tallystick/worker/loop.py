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
from pathlib import Path
from typing import Final, Literal

from tallystick.contracts.layout import MARKER
from tallystick.contracts.request import InferenceRun
from tallystick.errors import (
    InputError,
    InterruptedRunError,
    LostLeaseError,
    ModelNotHereError,
    RunFailedError,
    TallystickError,
    UnavailableError,
)
from tallystick.execution.templates import Templates
from tallystick.queues.port import JobResult, JobState, Lease, Queue
from tallystick.queues.spool import collect
from tallystick.store.artifacts import prepare_under, remove_set
from tallystick.store.pending import sweep
from tallystick.telemetry.rss import resident_bytes
from tallystick.worker.declared import check_declared
from tallystick.worker.execute import Show
from tallystick.worker.heartbeat import Heartbeat
from tallystick.worker.keys import SignerChoice
from tallystick.worker.publishing import COMPLETE, Planned, Publication, Settled, settle
from tallystick.worker.reporting import Reporter
from tallystick.worker.run import Guard, Place, RunResult, require_keys, run_declared
from tallystick.worker.settings import WorkerSettings
from tallystick.worker.stopping import StopSwitch
from tallystick.worker.supply import MissingModels, find_model
from tallystick.worker.turns import Listener, Outcome, Turn, as_failure, words

_AGAIN_SECONDS: Final = 5.0
_LONGEST_PAUSE: Final = 60.0
_IDLE: Final = "idle"

Execute = Callable[[InferenceRun, Guard], RunResult]


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
        self._turns = 0
        self._missing = MissingModels(settings.models, home)
        self._templates = Templates()
        self._place = Place(
            receipts=self._receipts,
            signer=SignerChoice(_path(settings.key)),
            audit_key=_path(settings.audit_key),
            home=home,
            templates=self._templates,
            bundles=tuple(map(Path, settings.bundles or ())),
        )

    def work(self, *, until: Literal["stopped", "empty"] = "stopped") -> int:
        """Work until told to stop, or (``empty``) until nothing waits; return the number of turns.

        What cannot be used for a while is tried again, but not with ``empty``: then
        UnavailableError is raised. It is also raised when the place of receipts or the health file
        cannot be used from the start; InputError when a key cannot.
        """
        require_keys(self._place)
        sweep(self._receipts)
        self._reporter.begin()
        self._turns, pause = 0, _AGAIN_SECONDS
        try:
            while not self._stop.asked:
                try:
                    if not self._turn(until):
                        break
                    pause = _AGAIN_SECONDS
                except UnavailableError as error:
                    if until == "empty":
                        raise
                    self._listener.on_trouble(error)
                    self._reporter.doing(_IDLE)
                    self._stop.wait(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            self._templates.close()
            self._reporter.end()
        return self._turns

    def _turn(self, until: Literal["stopped", "empty"]) -> bool:
        """Do what is next; say whether there may be more to do."""
        self._reporter.doing(_IDLE)
        self._settle()
        lease = self._fetch()
        if lease is None:
            if until == "empty" and not self._queue.waits(self._missing.digests()):
                return False
            self._stop.wait(self._settings.idle_milliseconds / 1000)
        # An earlier worker may have left the set just before it was claimed.
        elif lease.lease_epoch == 1 or not self._settle(lease):
            self._take(lease)
        return True

    def _settle(self, claimed: Lease | None = None) -> bool:
        """Tell the queue of sets whose workers could not; say whether that was so of ``claimed``.

        A worker that was killed left them, or this one while the queue did not answer.
        """
        done = False
        for settled in settle(self._receipts, self._queue, claimed):
            done = done or settled.place is not None
            self._tell(_turn_of(settled))
        return done

    def _fetch(self) -> Lease | None:
        """Look into the spool folder, and take the run whose turn it is."""
        if self._settings.spool is not None:
            found = collect(Path(self._settings.spool), self._queue)
            if found.accepted or found.refused:
                self._listener.on_collected(found)
        return self._queue.claim(
            self.worker_id,
            lease_seconds=float(self._settings.lease_seconds),
            without_models=self._missing.digests(),
        )

    def _tell(self, turn: Turn) -> None:
        self._turns += 1
        self._listener.on_turn(turn)

    def _take(self, lease: Lease) -> None:
        """Execute one run and tell what became of it.

        Raises UnavailableError, after that, when the next run would fare alike.
        """
        self._reporter.doing(lease.job_id)
        self._listener.on_begin(lease.job_id)
        started, resident = time.monotonic(), resident_bytes()
        trouble: UnavailableError | None = None
        result: RunResult | None = None
        outcome: Outcome = "done"
        reason: str | None = None
        publication = Publication(self._receipts, lease)
        try:
            result = self._perform(lease, publication)
        except KeyboardInterrupt:
            if not publication.named:
                self._release(lease)
            raise
        except Exception as error:  # a defect, or a system that fails: no reason to stop working
            known = error if isinstance(error, TallystickError) else as_failure(error)
            outcome, reason, trouble = self._become(lease, known, publication)
        finally:
            publication.leave()
        self._tell(
            Turn(
                job_id=lease.job_id,
                outcome=outcome,
                receipt_digest=None if result is None else result.receipt_digest,
                place=None if result is None else result.directory,
                reason=reason,
                seconds=time.monotonic() - started,
                memory=None if result is None else result.receipt.observed.rss,
                kept=max(0, resident_bytes() - resident),
            )
        )
        if trouble is not None:
            raise trouble

    def _perform(self, lease: Lease, publication: Publication) -> RunResult:
        self._require_keys()
        check_declared(lease.run)  # before a model is looked for
        self._stop.begin(self._settings.run_seconds)
        try:
            with Heartbeat(self._queue, lease, self._stop.abort) as beat:

                def guard(planned: Planned) -> None:
                    beat.require(self._stop.check)
                    publication.announce(planned)

                try:
                    result = self._execute(lease.run, guard)
                except BaseException:
                    publication.withdraw()  # there is no set
                    raise
                publication.named = True
                self._complete(lease, result, publication)
        finally:
            self._stop.end()
        return result

    def _complete(self, lease: Lease, result: RunResult, publication: Publication) -> None:
        """Say that the run is done, again where the queue does not answer.

        A set whose run is another's by now is removed.
        """
        place = os.fspath(result.directory)
        end = time.monotonic() + lease.seconds
        while True:
            try:
                self._queue.complete(lease, JobResult(result.receipt_digest, COMPLETE, place))
            except LostLeaseError:
                remove_set(result.directory, MARKER.name(result.receipt_id))
                publication.withdraw()
                raise
            except UnavailableError:
                # It may have arrived all the same, so the set stays, and its note.
                if self._stop.overdue or time.monotonic() >= end:
                    raise
                time.sleep(0.5)
            else:
                return publication.withdraw()

    def _become(
        self, lease: Lease, error: TallystickError, publication: Publication
    ) -> tuple[Outcome, str, UnavailableError | None]:
        """Write down what becomes of a run that ended in ``error``; return what the loop meets."""
        if publication.named:  # the set is there: all that is left is to tell the queue
            return "lost", words(error), error if isinstance(error, UnavailableError) else None
        if isinstance(error, UnavailableError):
            return self._interpret(lease, error)
        return (*self._give_up(lease, error), None)

    def _interpret(
        self, lease: Lease, error: UnavailableError
    ) -> tuple[Outcome, str, UnavailableError | None]:
        """Tell a run that cannot be written from a place that cannot be written to."""
        if isinstance(error, LostLeaseError):
            return "lost", words(error), None
        try:
            with prepare_under(self._receipts):
                self._require_keys()
            self._queue.heartbeat(lease)
        except LostLeaseError as lost:
            return "lost", words(lost), None
        except UnavailableError:
            return self._release(lease), words(error), error
        return (*self._give_up(lease, error), None)

    def _give_up(self, lease: Lease, error: TallystickError) -> tuple[Outcome, str]:
        """A run that failed may fare better another time; one that cannot be run never does."""
        reason = words(error)
        if isinstance(error, InterruptedRunError):
            return self._release(lease), reason
        if isinstance(error, ModelNotHereError):
            self._missing.add(lease.run.model_digest)
            return self._release(lease, reason), reason
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

    def _release(self, lease: Lease, reason: str | None = None) -> Literal["released", "lost"]:
        """Hand a run back, as far as the queue listens: a lease that cannot be ended runs out."""
        try:
            self._queue.release(lease, reason)
        except UnavailableError:
            return "lost"
        return "released"

    def _require_keys(self) -> None:
        """Raise UnavailableError for a key that was lost since the start: no fault of a run."""
        try:
            require_keys(self._place)
        except InputError as error:
            raise UnavailableError.of(error) from None

    def _run(self, run: InferenceRun, guard: Guard) -> RunResult:
        settings = self._settings

        def look(what: str, done: int, total: int) -> None:
            self._stop.check()
            self._listener.on_progress(what, done, total)

        model = find_model(run.model_digest, settings.models, self._home, look)
        return run_declared(
            model,
            run,
            threads=settings.threads,
            ring_depth=settings.ring_depth,
            place=self._place,
            guard=guard,
            show=Show(on_progress=look, bus=self._listener.bus),
        )


def _turn_of(settled: Settled) -> Turn:
    return Turn(
        job_id=settled.job_id,
        outcome="lost" if settled.place is None else "done",
        receipt_digest=None if settled.place is None else settled.receipt_digest,
        place=settled.place,
        reason=settled.reason,
        seconds=0.0,
    )


def new_worker_id() -> str:
    """Return a name that no other worker has: containers share host names and process ids."""
    return f"{os.uname().nodename[:80]}:{os.getpid()}:{secrets.token_hex(4)}"


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
