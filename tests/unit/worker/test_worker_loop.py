"""The worker's loop: what becomes of each run in the queue, in its turn, and on the disk."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tallystick.attest.keyfiles import write_key
from tallystick.attest.keys import SigningKey
from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.digests import run_digest
from tallystick.contracts.request import ExpectedDigest, InferenceRun
from tallystick.errors import (
    EvidenceError,
    IncomparableError,
    InputError,
    LostLeaseError,
    ModelNotHereError,
    RunFailedError,
    SandboxError,
    TallystickError,
    UnavailableError,
    UsageError,
)
from tallystick.queues.port import JobState, LeaseEnd
from tallystick.worker import loop, supply
from tallystick.worker.loop import Worker
from tallystick.worker.run import Guard, RunResult
from tallystick.worker.stopping import StopSwitch
from tallystick.worker.turns import Listener, Turn
from tests.support import workers
from tests.support.documents import digest_of
from tests.support.workers import SET_ID, Bench, FaultyQueue, fast_settings, plain_run, take, wait


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_AGAIN_SECONDS", 0.02)


def raising(error: BaseException) -> Callable[[Guard], None]:
    def execute(_guard: Guard) -> None:
        raise error

    return execute


def ends(bench: Bench) -> list[LeaseEnd | None]:
    return [lease.ended for lease in bench.queue.leases(bench.job().job_id)]


def test_a_run_is_done_once(bench: Bench) -> None:
    bench.submit(0)
    assert bench.work() == 1
    (turn,) = bench.turns
    assert (turn.outcome, turn.reason, turn.place) == ("done", None, bench.receipts / SET_ID)
    job = bench.job()
    assert job.state is JobState.DONE
    assert job.result is not None
    assert job.result.receipt_digest == turn.receipt_digest
    assert job.result.place == str(turn.place)
    assert bench.work() == 0
    assert bench.ran == 1


@pytest.mark.parametrize(
    ("error", "attempts", "state", "last"),
    [
        (RunFailedError("the child died"), 3, JobState.DEAD, "dead"),
        (ZeroDivisionError("the secret of the prompt"), 3, JobState.DEAD, "dead"),
        (OSError(28, "No space left on device"), 3, JobState.DEAD, "dead"),
        (MemoryError(), 3, JobState.DEAD, "dead"),
        (UnavailableError("this run's name is taken"), 3, JobState.DEAD, "dead"),
        (InputError("a bad prompt"), 1, JobState.FAILED, "failed"),
        (UsageError("too long"), 1, JobState.FAILED, "failed"),
        (IncomparableError("no exact policy"), 1, JobState.FAILED, "failed"),
        (SandboxError("not enforced"), 1, JobState.FAILED, "failed"),
        (EvidenceError("it does not hold"), 1, JobState.FAILED, "failed"),
        (TallystickError("of no kind"), 1, JobState.FAILED, "failed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_each_failure_has_its_end(
    bench: Bench, error: Exception, attempts: int, state: JobState, last: str
) -> None:
    bench.submit(0)
    assert bench.work(raising(error)) == attempts
    assert [turn.outcome for turn in bench.turns] == ["again"] * (attempts - 1) + [last]
    job = bench.job()
    assert (job.state, job.attempts) == (state, attempts)
    assert job.reason == bench.turns[-1].reason
    assert job.reason
    assert "secret" not in job.reason
    assert ends(bench) == [LeaseEnd.FAILED] * attempts
    assert bench.sets() == []


def test_a_failed_run_stops_no_other(bench: Bench) -> None:
    bench.submit(0, 1, 2)
    failing = iter([RunFailedError("once")])

    def execute(_guard: Guard) -> None:
        for error in failing:
            raise error

    def distinct(guard: Guard) -> None:
        execute(guard)
        for path in bench.receipts.glob(SET_ID):  # the next set has the same made-up name
            path.rename(path.with_name(f"set-{bench.ran}"))

    assert bench.work(distinct) == 4
    assert sorted(turn.outcome for turn in bench.turns) == ["again", "done", "done", "done"]


@pytest.mark.parametrize("text", ["two\nlines", "", "x" * 3000, "bell\a"])
def test_any_words_of_an_error_can_be_written_down(bench: Bench, text: str) -> None:
    bench.submit(0)
    bench.work(raising(InputError(text, found="more; than this\nand that")))
    assert bench.job().state is JobState.FAILED
    reason = bench.job().reason
    assert reason
    assert reason.isprintable()
    assert "than this" not in reason


def test_a_reason_says_what_was_expected(bench: Bench) -> None:
    bench.submit(0, 1, 2)
    errors = iter(
        [
            InputError("another model", expected="sha256:aa", found="sha256:bb; private words"),
            InputError("too large", expected="at most 3 B"),
            InputError("no model", found="2 models"),
        ]
    )

    def execute(_guard: Guard) -> None:
        raise next(errors)

    bench.work(execute)
    assert [turn.reason for turn in bench.turns] == [
        "another model: expected sha256:aa, found sha256:bb",
        "too large: expected at most 3 B",
        "no model: 2 models",
    ]


def test_what_is_refused_before_a_model_is_looked_for(bench: Bench) -> None:
    runs = {
        "expired": plain_run(1),
        "two models": plain_run(2, model_digest=digest_of("another")),
        "no seed": plain_run(3, seed=None),
        "bundle": plain_run(4, dataset=replace(plain_run().dataset, expectedDigest=digest_of("b"))),
    }
    runs["expired"] = replace(runs["expired"], expires_at="2026-01-01T00:00:00.000Z")
    for run in runs.values():
        bench.queue.submit(run)
    assert bench.work() == len(runs)
    assert bench.ran == 0
    assert {turn.outcome for turn in bench.turns} == {"failed"}
    reasons = " ".join(turn.reason or "" for turn in bench.turns)
    for words in ("has expired", "two models", "seed", "a bundle without a task"):
        assert words in reasons


def test_an_unknown_model_digest_opens_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a model was looked at")

    monkeypatch.setattr(loop, "run_declared", never)
    bench.submit(0)
    Worker(bench.queue, fast_settings(), bench.home, bench.stop).work(until="empty")
    assert "does not have the run's model" in (bench.job().reason or "")


def model_run(number: int, label: str) -> InferenceRun:
    digest = digest_of(label)
    return plain_run(number, model_digest=digest, model=ExpectedDigest(digest))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> dict[str, list[str]]:
    """Let a worker with the setting ``key`` NAME have the models of that name; note each look."""
    looks: dict[str, list[str]] = {"first": [], "second": []}
    owned = {"first": ["a", "b"], "second": ["b", "c"]}

    def find(digest: str, names: tuple[str, ...], *_: object) -> str:
        looks[names[0]].append(digest)
        for label in owned[names[0]]:
            if digest == digest_of(label):
                return label
        raise ModelNotHereError("this worker does not have the run's model")

    def run(_model: str, _run: InferenceRun, guard: Guard, **_: object) -> RunResult:
        result = workers.leave_set(bench.receipts, guard)
        result.directory.rename(bench.receipts / str(len(bench.sets())))
        return result

    monkeypatch.setattr(loop, "find_model", find)
    monkeypatch.setattr(supply, "find_model", find)
    monkeypatch.setattr(loop, "run_declared", run)
    looks["owned"] = owned["first"]
    return looks


def work_as(bench: Bench, name: str) -> int:
    listener = Listener(on_turn=bench.turns.append)
    settings = fast_settings(models=(name,))
    return Worker(bench.queue, settings, bench.home, bench.stop, listener=listener).work(
        until="empty"
    )


def test_a_run_whose_model_is_elsewhere_waits_for_another_worker(
    bench: Bench, here: dict[str, list[str]]
) -> None:
    for number, label in enumerate("cacbcc"):
        bench.queue.submit(model_run(number, label), max_attempts=1)
    # Looked for once, whatever the number of its runs, and the rest is done.
    assert work_as(bench, "first") == 3
    assert [turn.outcome for turn in bench.turns] == ["released", "done", "done"]
    assert here["first"].count(digest_of("c")) == 1
    assert dict(bench.queue.counts())[JobState.PENDING] == 4
    waiting = bench.queue.jobs([JobState.PENDING])
    assert {job.attempts for job in waiting} == {0}
    assert [job.reason for job in waiting].count("this worker does not have the run's model") == 1
    assert work_as(bench, "second") == 4
    assert dict(bench.queue.counts())[JobState.DONE] == 6


def test_a_model_that_was_added_since_is_found(
    bench: Bench, here: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.queue.submit(model_run(0, "c"))
    bench.queue.submit(model_run(1, "a"))
    monkeypatch.setattr(supply, "_LOOK_AGAIN_SECONDS", 0.05)

    def tell(turn: Turn) -> None:
        bench.turns.append(turn)
        if turn.job_id == run_digest(model_run(1, "a")):
            threading.Timer(0.3, here["owned"].append, ["c"]).start()
        elif turn.outcome == "done":
            bench.stop.ask()

    listener = Listener(on_turn=tell)
    settings = fast_settings(models=("first",))
    Worker(bench.queue, settings, bench.home, bench.stop, listener=listener).work()
    assert [turn.outcome for turn in bench.turns] == ["released", "done", "done"]
    # It was looked for again and again, but claimed only when it was there.
    assert here["first"].count(digest_of("c")) > 3
    assert [lease.ended for lease in bench.queue.leases(run_digest(model_run(0, "c")))] == [
        LeaseEnd.RELEASED,
        LeaseEnd.COMPLETED,
    ]


def test_a_run_that_was_cancelled_leaves_no_set(bench: Bench) -> None:
    bench.submit(0)

    def execute(_guard: Guard) -> None:
        bench.queue.cancel(bench.job().job_id)

    bench.work(execute)
    assert [turn.outcome for turn in bench.turns] == ["lost"]
    assert bench.job().state is JobState.CANCELLED
    assert bench.sets() == []


def test_a_run_that_is_cancelled_while_it_goes_on_is_given_up(bench: Bench) -> None:
    bench.submit(0)

    def execute(_guard: Guard) -> None:
        bench.queue.cancel(bench.job().job_id)
        wait()

    with bench.stop:
        bench.work(execute, lease_seconds=1)
    assert [turn.outcome for turn in bench.turns] == ["lost"]
    assert bench.turns[0].seconds < workers.LONG / 2
    assert bench.sets() == []


def test_a_set_that_was_written_as_its_lease_was_lost_is_removed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.submit(0)
    left = workers.leave_set

    def late(receipts: Path, guard: Guard) -> object:
        result = left(receipts, guard)
        assert bench.sets() == [SET_ID]
        bench.queue.cancel(bench.job().job_id)
        return result

    monkeypatch.setattr(workers, "leave_set", late)
    bench.work()
    assert [turn.outcome for turn in bench.turns] == ["lost"]
    assert bench.sets() == []


def test_a_short_lease_outlives_a_long_run(bench: Bench) -> None:
    bench.submit(0)
    other: list[object] = []

    def execute(_guard: Guard) -> None:
        for _ in range(6):
            time.sleep(0.5)
            other.append(bench.queue.claim("another", lease_seconds=60))

    bench.work(execute, lease_seconds=1)
    assert other == [None] * 6
    assert bench.job().state is JobState.DONE
    assert bench.job().lease_epoch == 1


def test_a_lease_that_another_has_by_now(bench: Bench) -> None:
    bench.submit(0)
    bench.queue = FaultyQueue(bench.queue, ("heartbeat",), 3)

    def execute(_guard: Guard) -> None:
        time.sleep(1.3)  # no beat arrives
        assert take(bench.queue).lease_epoch == 2

    bench.work(execute, lease_seconds=1)
    assert [turn.outcome for turn in bench.turns] == ["lost"]
    assert bench.sets() == []
    assert bench.job().worker_id == "another"


@pytest.mark.parametrize("call", ["heartbeat", "complete"])
def test_a_queue_that_does_not_answer_for_a_moment_costs_no_run(bench: Bench, call: str) -> None:
    bench.submit(0)
    bench.queue = FaultyQueue(bench.queue, (call,), 2)
    assert bench.work() == 1
    assert bench.job().state is JobState.DONE
    assert bench.ran == 1
    assert bench.sets() == [SET_ID]


def test_a_worker_that_shall_stop_does_not_wait_for_its_queue(bench: Bench) -> None:
    bench.submit(0)
    bench.queue = FaultyQueue(bench.queue, ("heartbeat", "complete"), 10**6)

    def execute(_guard: Guard) -> None:
        bench.stop.ask()
        bench.stop.ask()

    started = time.monotonic()
    bench.work(execute, until="stopped")
    assert time.monotonic() - started < workers.LONG / 2
    assert [turn.outcome for turn in bench.turns] == ["released"]
    assert bench.sets() == []


def test_a_queue_that_cannot_be_used_for_a_while_is_waited_for(bench: Bench) -> None:
    bench.submit(0)
    bench.queue = FaultyQueue(bench.queue, ("claim",), 3)
    bench.work(lambda _guard: bench.stop.ask(), until="stopped")
    assert len(bench.troubles) == 3
    assert bench.job().state is JobState.DONE


def test_a_queue_that_cannot_be_used_ends_a_worker_that_works_until_it_is_empty(
    bench: Bench,
) -> None:
    bench.queue = FaultyQueue(bench.queue, ("claim",), 1)
    with pytest.raises(UnavailableError, match="does not answer"):
        bench.work()


def test_a_place_that_cannot_be_written_to_costs_no_attempt(bench: Bench) -> None:
    bench.submit(0)

    def execute(_guard: Guard) -> None:
        bench.receipts.mkdir(exist_ok=True)
        bench.receipts.chmod(0o700)
        if bench.ran == 1:
            bench.receipts.rmdir()
            bench.receipts.symlink_to("nowhere")
            raise UnavailableError("no place")
        bench.stop.ask()

    def mend(error: UnavailableError) -> None:
        bench.receipts.unlink()
        list.append(bench.troubles, error)

    class Troubles(list[UnavailableError]):
        append = staticmethod(mend)

    bench.troubles = Troubles()
    bench.work(execute, until="stopped")
    assert [turn.outcome for turn in bench.turns] == ["released", "done"]
    assert ends(bench) == [LeaseEnd.RELEASED, LeaseEnd.COMPLETED]
    assert bench.job().attempts == 1


@pytest.mark.parametrize("name", ["key", "audit_key"])
def test_a_key_that_is_not_there_costs_no_run(bench: Bench, name: str) -> None:
    bench.submit(0)
    with pytest.raises(InputError, match=r"lost\.key"):
        bench.work(None, **{name: str(bench.home / "lost.key")})
    assert (bench.job().state, bench.job().attempts, bench.ran) == (JobState.PENDING, 0, 0)


def test_a_key_that_is_lost_meanwhile_costs_no_attempt(bench: Bench) -> None:
    key = bench.home / "my.key"
    write_key(key, SigningKey.from_seed(bytes(32)), None)
    bench.submit(0, 1)

    def execute(_guard: Guard) -> None:
        key.rename(bench.home / "away.key")

    with pytest.raises(UnavailableError, match=r"my\.key"):
        bench.work(execute, key=str(key))
    assert [turn.outcome for turn in bench.turns] == ["done", "released"]
    (job,) = bench.queue.jobs([JobState.PENDING])
    assert job.attempts == 0


def test_a_deadline(bench: Bench) -> None:
    bench.submit(0)
    with bench.stop:
        assert bench.work(lambda _guard: wait(), run_seconds=1) == 3
    assert bench.job().state is JobState.DEAD
    assert "before its deadline" in (bench.job().reason or "")
    assert bench.sets() == []


def signal_soon(*delays: float) -> None:
    """Send SIGTERM to this process after each delay."""

    def send() -> None:
        for delay in delays:
            time.sleep(delay)
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=send, daemon=True).start()


@pytest.fixture
def survivor() -> Iterator[None]:
    """A signal that comes too early or too late must not end the tests."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("survivor")
def test_the_first_signal_lets_the_run_finish(bench: Bench) -> None:
    bench.submit(0, 1)

    def execute(_guard: Guard) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        wait(0.5)

    with bench.stop:
        assert bench.work(execute, until="stopped") == 1
    assert [turn.outcome for turn in bench.turns] == ["done"]
    assert dict(bench.queue.counts())[JobState.PENDING] == 1


@pytest.mark.usefixtures("survivor")
def test_a_run_that_does_not_end_within_the_grace_is_released(bench: Bench) -> None:
    bench.submit(0)
    bench.stop = StopSwitch(0.5, waits=workers.__name__)

    def execute(_guard: Guard) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        wait()

    with bench.stop:
        assert bench.work(execute, until="stopped") == 1
    assert [turn.outcome for turn in bench.turns] == ["released"]
    assert (bench.job().state, bench.job().attempts) == (JobState.PENDING, 0)
    assert bench.sets() == []


@pytest.mark.usefixtures("survivor")
def test_the_second_signal_gives_the_run_up(bench: Bench) -> None:
    bench.submit(0)

    def execute(_guard: Guard) -> None:
        signal_soon(0, 0.3)
        wait()

    with bench.stop:
        assert bench.work(execute, until="stopped") == 1
    assert [turn.outcome for turn in bench.turns] == ["released"]
    assert ends(bench) == [LeaseEnd.RELEASED]


@pytest.mark.usefixtures("survivor")
def test_a_signal_wakes_an_idle_worker(bench: Bench) -> None:
    signal_soon(0.2)
    started = time.monotonic()
    with bench.stop:
        assert bench.work(until="stopped", idle_milliseconds=int(workers.LONG * 1000)) == 0
    assert time.monotonic() - started < workers.LONG / 2


def test_a_run_that_was_interrupted_by_other_means_is_released(bench: Bench) -> None:
    bench.submit(0)
    with pytest.raises(KeyboardInterrupt):
        bench.work(raising(KeyboardInterrupt()))
    assert ends(bench) == [LeaseEnd.RELEASED]


def test_a_delayed_run_still_waits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_AGAIN_SECONDS", 1.0)
    bench.submit(0)
    failing = iter([RunFailedError("once")])

    def execute(_guard: Guard) -> None:
        for error in failing:
            raise error

    assert bench.work(execute) == 2
    assert bench.job().state is JobState.DONE


def test_files_of_the_spool_folder_are_runs(bench: Bench) -> None:
    incoming = bench.home / "spool" / "incoming"
    incoming.mkdir(parents=True)
    for directory in (incoming, incoming.parent):
        directory.chmod(0o700)
    (incoming / "a.json").write_bytes(encode_bytes(plain_run(0)))
    (incoming / "b.json").write_bytes(b"no run")
    os.utime(incoming / "b.json", (0, 0))
    assert bench.work(spool=str(incoming.parent)) == 1
    assert bench.job().state is JobState.DONE
    assert list(incoming.iterdir()) == []
    refused = [path.suffix for path in (bench.home / "spool" / "refused").iterdir()]
    assert refused.count(".reason") == 1
    assert len(refused) == 2


def test_what_a_killed_worker_left_is_swept(bench: Bench) -> None:
    left = bench.receipts / f".pending-{'0' * 16}"
    (left / ".state-1").mkdir(parents=True)
    (left / ".state-1" / "file").write_bytes(b"x")
    bench.receipts.chmod(0o700)
    (bench.receipts / ".pending-mine").mkdir()
    bench.work()
    assert bench.sets() == [".pending-mine"]


def test_two_workers_share_a_queue(tmp_path: Path) -> None:
    first, second = Bench(tmp_path / "1"), Bench(tmp_path / "2")
    second.queue = first.queue
    first.submit(*range(20))

    def apart(bench: Bench) -> Callable[[Guard], None]:
        def execute(_guard: Guard) -> None:
            for path in bench.receipts.glob(SET_ID):
                path.rename(path.with_name(f"set-{bench.ran}"))

        return execute

    threads = [
        threading.Thread(target=bench.work, args=(apart(bench),)) for bench in (first, second)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = [turn.job_id for bench in (first, second) for turn in bench.turns]
    assert len(done) == len(set(done)) == 20
    assert dict(first.queue.counts())[JobState.DONE] == 20


def test_lost_leases_are_told_by_their_own_name() -> None:
    # The loop tells them apart by the class: a lost lease is no queue that does not answer.
    assert issubclass(LostLeaseError, UnavailableError)
