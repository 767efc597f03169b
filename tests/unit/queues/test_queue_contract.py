"""What every queue does, whoever keeps its records: one suite for all adapters."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tallystick.canonical.json import parse_strict
from tallystick.contracts.codec import decode
from tallystick.contracts.request import InferenceRun
from tallystick.errors import InputError, LostLeaseError, TallystickError, UsageError
from tallystick.queues import core
from tallystick.queues.memory import memory_queue
from tallystick.queues.names import Name
from tallystick.queues.port import JobResult, JobState, Lease, LeaseEnd, Queue
from tests.support.documents import BLIND, digest_of
from tests.support.queues import (
    OTHER,
    SECRET,
    WORKER,
    TurnedClock,
    ends,
    job_id,
    make_result,
    make_run,
    opened,
    run_file,
    states,
    take,
)

HOURS = 3600
Write = Callable[[Queue, Lease], object]
WRITES: Sequence[Write] = (
    lambda queue, lease: queue.heartbeat(lease),
    lambda queue, lease: queue.complete(lease, make_result("zombie")),
    lambda queue, lease: queue.fail(lease, "of the zombie", retry="again"),
    lambda queue, lease: queue.fail(lease, "of the zombie", retry="never"),
    lambda queue, lease: queue.release(lease),
)


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture(params=["memory", "sqlite"])
def queue(request: pytest.FixtureRequest, clock: TurnedClock, tmp_path: Path) -> Iterator[Queue]:
    if request.param == "memory":
        yield memory_queue(clock)
    else:
        with opened(tmp_path, clock) as queue:
            yield queue


def in_threads(tasks: Sequence[Callable[[], None]]) -> None:
    """Run each task in a thread of its own, all at once; raise what one of them raised."""
    errors: list[BaseException] = []
    gate = threading.Barrier(len(tasks))

    def guarded(task: Callable[[], None]) -> None:
        try:
            gate.wait()
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def everything(queue: Queue) -> object:
    jobs = queue.jobs()
    return jobs, [queue.leases(job.job_id) for job in jobs]


def refused(queue: Queue, writes: Sequence[Write], lease: Lease) -> None:
    """Check that each write under ``lease`` is refused as lost and changes nothing."""
    before = everything(queue)
    for write in writes:
        with pytest.raises(LostLeaseError, match="was lost") as caught:
            write(queue, lease)
        assert caught.value.exit_code == 6
        assert everything(queue) == before


def test_a_submitted_run_is_a_pending_job(queue: Queue, clock: TurnedClock) -> None:
    submission = queue.submit(make_run(), priority=-3, max_attempts=7)
    assert (submission.job_id, submission.created, submission.state) == (
        job_id(),
        "new",
        JobState.PENDING,
    )
    job = queue.get(job_id())
    assert (job.job_id, job.run_id, job.model_digest) == (
        job_id(),
        make_run().run_id,
        make_run().model_digest,
    )
    assert (job.state, job.priority, job.attempts, job.max_attempts) == ("pending", -3, 0, 7)
    assert (job.lease_epoch, job.worker_id, job.result, job.reason) == (0, None, None, None)
    assert job.submitted_ms == job.changed_ms == clock.wall_ms()
    assert queue.leases(job_id()) == ()


def test_two_submits_of_one_run_are_one_job(queue: Queue) -> None:
    queue.submit(make_run(), priority=1)
    pretty = run_file().replace(b",", b" ,\n")
    again = decode(InferenceRun, parse_strict(pretty, max_bytes=1 << 20))
    submission = queue.submit(again, priority=9, max_attempts=9)
    assert (submission.job_id, submission.created) == (job_id(), "existing")
    assert states(queue) == {"pending": 1}
    assert (queue.get(job_id()).priority, queue.get(job_id()).max_attempts) == (1, 3)


def test_a_run_is_known_in_whatever_state_it_is(queue: Queue) -> None:
    queue.submit(make_run())
    lease = take(queue)
    assert queue.submit(make_run()).state is JobState.LEASED
    queue.complete(lease, make_result())
    assert queue.submit(make_run()).state is JobState.DONE
    assert queue.claim(WORKER, lease_seconds=60) is None


def test_the_same_computation_declared_twice_is_two_jobs(queue: Queue) -> None:
    queue.submit(make_run(1))
    assert queue.submit(make_run(2)).created == "new"
    assert states(queue) == {"pending": 2}


def test_a_run_id_names_one_declaration(queue: Queue) -> None:
    queue.submit(make_run())
    with pytest.raises(InputError, match="another declaration has this run_id") as caught:
        queue.submit(make_run(prompt="another"))
    assert SECRET not in str(caught.value)
    assert states(queue) == {"pending": 1}


def test_concurrent_submits_of_one_run_are_one_job(queue: Queue) -> None:
    created: list[str] = []
    in_threads([lambda: created.append(queue.submit(make_run()).created)] * 8)
    assert Counter(created) == {"new": 1, "existing": 7}
    assert states(queue) == {"pending": 1}


def test_a_lease_has_the_run(queue: Queue, clock: TurnedClock) -> None:
    queue.submit(make_run())
    clock.advance(1)
    lease = take(queue, seconds=90)
    assert lease.run == make_run()
    assert (lease.job_id, lease.worker_id, lease.seconds) == (job_id(), WORKER, 90)
    assert (lease.lease_epoch, lease.attempt, lease.max_attempts) == (1, 1, 3)
    job = queue.get(job_id())
    assert (job.state, job.worker_id, job.attempts) == ("leased", WORKER, 1)
    assert job.changed_ms == job.submitted_ms + 1000
    assert queue.claim(OTHER, lease_seconds=60) is None


def test_an_empty_queue_has_nothing(queue: Queue) -> None:
    assert queue.claim(WORKER, lease_seconds=60) is None
    assert queue.jobs() == ()
    assert states(queue) == {}


def test_the_order_is_priority_then_submission(queue: Queue) -> None:
    for number, priority in enumerate([0, 5, 0, 5, -1]):
        queue.submit(make_run(number), priority=priority)
    order = [take(queue).job_id for _ in range(5)]
    assert order == [job_id(number) for number in (1, 3, 0, 2, 4)]


def test_a_completed_job_is_done(queue: Queue, clock: TurnedClock) -> None:
    queue.submit(make_run())
    lease = take(queue)
    clock.advance(2)
    queue.complete(lease, make_result(place="receipts/one"))
    job = queue.get(job_id())
    assert (job.state, job.result) == ("done", make_result(place="receipts/one"))
    assert (job.worker_id, job.reason, job.lease_epoch) == (None, None, 1)
    (past,) = queue.leases(job_id())
    assert (past.worker_id, past.ended, past.reason) == (WORKER, LeaseEnd.COMPLETED, None)
    assert past.ended_ms == past.claimed_ms + 2000
    clock.advance(1000)
    assert queue.claim(OTHER, lease_seconds=60) is None


def test_a_completion_may_be_repeated_but_not_changed(queue: Queue) -> None:
    queue.submit(make_run())
    lease = take(queue)
    queue.complete(lease, make_result())
    before = everything(queue)
    queue.complete(lease, make_result())
    assert everything(queue) == before
    refused(queue, WRITES, lease)


def test_a_zombie_is_refused_and_the_owner_is_not(queue: Queue, clock: TurnedClock) -> None:
    queue.submit(make_run())
    zombie = take(queue)
    clock.advance(60)
    owner = take(queue, OTHER)
    assert (owner.job_id, owner.lease_epoch, owner.attempt) == (job_id(), 2, 2)
    refused(queue, WRITES, zombie)
    queue.heartbeat(owner)
    queue.complete(owner, make_result("owner"))
    refused(queue, WRITES, zombie)
    job = queue.get(job_id())
    assert (job.state, job.result, job.lease_epoch) == ("done", make_result("owner"), 2)
    assert ends(queue) == (LeaseEnd.EXPIRED, LeaseEnd.COMPLETED)


def test_a_zombie_of_the_same_name_is_refused_too(queue: Queue, clock: TurnedClock) -> None:
    queue.submit(make_run())
    zombie = take(queue)
    clock.advance(61)
    take(queue)
    refused(queue, WRITES, zombie)


@pytest.mark.parametrize("write", WRITES[:2], ids=["heartbeat", "complete"])
def test_a_late_worker_whose_job_nobody_has_is_in_time(
    queue: Queue, clock: TurnedClock, write: Write
) -> None:
    queue.submit(make_run())
    lease = take(queue)
    clock.advance(5 * HOURS)
    write(queue, lease)
    assert queue.claim(OTHER, lease_seconds=60) is None
    assert len(queue.leases(job_id())) == 1


def test_heartbeats_keep_a_lease(queue: Queue, clock: TurnedClock) -> None:
    queue.submit(make_run())
    lease = take(queue, seconds=60)
    for _ in range(5):
        clock.advance(59)
        assert queue.claim(OTHER, lease_seconds=60) is None
        queue.heartbeat(lease)
    clock.advance(59.999)
    assert queue.claim(OTHER, lease_seconds=60) is None
    clock.advance(0.001)
    assert take(queue, OTHER).lease_epoch == 2


@pytest.mark.parametrize("hours", [-10_000, -9, 9, 10_000])
def test_a_step_of_the_wall_clock_moves_no_lease(
    queue: Queue, clock: TurnedClock, hours: int
) -> None:
    queue.submit(make_run(0))
    queue.submit(make_run(1))
    lease = take(queue, seconds=60)
    failing = take(queue, seconds=60)
    queue.fail(failing, "wait", retry="again", delay_seconds=60)
    clock.step_wall(hours * HOURS)
    assert queue.claim(OTHER, lease_seconds=60) is None, "not early"
    clock.advance(59)
    assert queue.claim(OTHER, lease_seconds=60) is None
    queue.heartbeat(lease)
    clock.advance(1)
    assert take(queue, OTHER).job_id == job_id(1), "not late"
    clock.step_wall(-2 * hours * HOURS)
    clock.advance(59)
    assert take(queue, OTHER).job_id == job_id(0)
    refused(queue, WRITES, lease)


def test_after_a_restart_of_the_machine_no_lease_holds(queue: Queue, clock: TurnedClock) -> None:
    queue.submit(make_run(0))
    queue.submit(make_run(1))
    before = take(queue, seconds=7 * 24 * HOURS)
    queue.fail(take(queue), "wait", retry="again", delay_seconds=HOURS)
    clock.reboot()
    taken = [take(queue, OTHER), take(queue, OTHER)]
    assert [lease.job_id for lease in taken] == [job_id(0), job_id(1)]
    refused(queue, WRITES, before)


def test_attempts_are_bounded_and_then_the_job_is_dead(queue: Queue) -> None:
    queue.submit(make_run(), max_attempts=3)
    leases = []
    for attempt in (1, 2, 3):
        lease = take(queue)
        leases.append(lease)
        assert (lease.attempt, lease.lease_epoch) == (attempt, attempt)
        state = queue.fail(lease, f"broken {attempt}", retry="again")
        assert state == (JobState.PENDING if attempt < 3 else JobState.DEAD)
        assert queue.get(job_id()).reason == f"broken {attempt}"
    assert queue.claim(WORKER, lease_seconds=60) is None
    refused(queue, WRITES, leases[-1])
    assert ends(queue) == (LeaseEnd.FAILED,) * 3
    reasons = [lease.reason for lease in queue.leases(job_id())]
    assert reasons == ["broken 1", "broken 2", "broken 3"]


def test_leases_that_run_out_use_up_attempts_too(queue: Queue, clock: TurnedClock) -> None:
    queue.submit(make_run(0), max_attempts=2)
    queue.submit(make_run(1))
    poisoned = []
    for _ in range(2):
        poisoned.append(take(queue))
        clock.advance(60)
    assert {lease.job_id for lease in poisoned} == {job_id(0)}
    assert take(queue).job_id == job_id(1), "the loop goes on"
    job = queue.get(job_id(0))
    assert (job.state, job.attempts, job.reason) == ("dead", 2, "the lease ran out")
    refused(queue, WRITES, poisoned[-1])
    assert ends(queue) == (LeaseEnd.EXPIRED,) * 2


def test_a_failure_for_good_is_not_tried_again(queue: Queue) -> None:
    queue.submit(make_run())
    assert queue.fail(take(queue), "wrong digest", retry="never") is JobState.FAILED
    assert queue.claim(WORKER, lease_seconds=60) is None
    job = queue.get(job_id())
    assert (job.state, job.attempts, job.reason) == ("failed", 1, "wrong digest")


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("", "-"),
        ("x" * 501, "x" * 500),
        ("two\nlines\x1b[2J\u202e", "two\\nlines\\x1b[2J\\u202e"),
        ("\n" * 400, "\\n" * 250),
        ("not UTF-8: \udcff", "not UTF-8: \\udcff"),
        ("größer als 💾", "größer als 💾"),
    ],
)
def test_no_wording_keeps_a_job_from_ending(queue: Queue, said: str, kept: str) -> None:
    queue.submit(make_run(0))
    queue.submit(make_run(1))
    queue.fail(take(queue), said, retry="never")
    lease = take(queue)
    for _ in range(2):
        queue.complete(lease, make_result(place=said))
    assert queue.get(job_id(0)).reason == kept
    result = queue.get(job_id(1)).result
    assert result is not None
    assert result.place is not None
    assert result.place[:500] == kept[:500]


def test_a_delayed_job_waits_and_lets_others_go_first(queue: Queue, clock: TurnedClock) -> None:
    queue.submit(make_run(0), priority=9)
    queue.submit(make_run(1))
    queue.fail(take(queue), "no room", retry="again", delay_seconds=30)
    assert take(queue).job_id == job_id(1)
    clock.advance(29.999)
    assert queue.claim(WORKER, lease_seconds=60) is None
    clock.advance(0.001)
    assert take(queue).job_id == job_id(0)


def test_a_released_job_has_lost_no_attempt(queue: Queue) -> None:
    queue.submit(make_run(), max_attempts=1)
    for epoch in (1, 2, 3):
        lease = take(queue)
        assert (lease.attempt, lease.lease_epoch) == (1, epoch)
        queue.release(lease)
        refused(queue, WRITES, lease)
    assert queue.get(job_id()).attempts == 0
    assert ends(queue) == (LeaseEnd.RELEASED,) * 3


def test_a_release_may_say_why(queue: Queue) -> None:
    queue.submit(make_run())
    queue.release(take(queue), "not\nhere")
    assert queue.get(job_id()).reason == r"not\nhere"
    queue.release(take(queue))
    assert queue.get(job_id()).reason == r"not\nhere"
    assert [lease.reason for lease in queue.leases(job_id())] == [None, None]


def test_a_worker_claims_no_run_of_a_model_that_it_lacks(queue: Queue, clock: TurnedClock) -> None:
    digests = [digest_of(f"model {number}") for number in range(3)]
    for number, digest in enumerate(digests):
        queue.submit(replace(make_run(number), model_digest=digest), priority=-number)

    def claimed(*without: str) -> str | None:
        lease = queue.claim(WORKER, lease_seconds=60, without_models=without)
        return None if lease is None else lease.run.model_digest

    assert queue.waits()
    assert queue.waits(digests[:2])
    assert not queue.waits(digests)
    assert claimed(*digests) is None
    assert claimed(digests[0], digest_of("another")) == digests[1]
    assert not queue.waits([digests[0], digests[2]])
    assert claimed(digests[0]) == digests[2]
    clock.advance(61)  # what others let run out is not taken either
    assert claimed(digests[0], digests[1]) == digests[2]
    assert claimed() == digests[0]
    assert claimed() == digests[1]
    assert not queue.waits()


def test_a_job_that_is_delayed_waits(queue: Queue) -> None:
    queue.submit(make_run())
    queue.fail(take(queue), "once", retry="again", delay_seconds=30)
    assert queue.claim(WORKER, lease_seconds=60) is None
    assert queue.waits()
    assert not queue.waits([make_run().model_digest])


def test_a_waiting_job_is_cancelled(queue: Queue) -> None:
    queue.submit(make_run())
    assert queue.cancel(job_id()).state is JobState.CANCELLED
    assert queue.claim(WORKER, lease_seconds=60) is None
    before = everything(queue)
    assert queue.cancel(job_id()).state is JobState.CANCELLED
    assert everything(queue) == before
    assert queue.submit(make_run()).state is JobState.CANCELLED


def test_cancelling_a_leased_job_takes_it_from_its_worker(queue: Queue, clock: TurnedClock) -> None:
    queue.submit(make_run())
    lease = take(queue)
    assert queue.cancel(job_id()).state is JobState.CANCELLED
    refused(queue, WRITES, lease)
    clock.advance(HOURS)
    assert queue.claim(OTHER, lease_seconds=60) is None
    assert ends(queue) == (LeaseEnd.CANCELLED,)


def test_what_has_ended_is_not_cancelled(queue: Queue) -> None:
    for number in range(3):
        queue.submit(make_run(number), max_attempts=1)
    queue.complete(take(queue), make_result())
    queue.fail(take(queue), "no", retry="never")
    queue.fail(take(queue), "no", retry="again")
    before = everything(queue)
    for number, state in enumerate(["done", "failed", "dead"]):
        with pytest.raises(InputError, match="cannot be cancelled") as caught:
            queue.cancel(job_id(number))
        assert state in str(caught.value)
    assert everything(queue) == before


def test_failed_and_dead_jobs_can_be_tried_again(queue: Queue) -> None:
    queue.submit(make_run(), max_attempts=1)
    queue.fail(take(queue), "no", retry="again")
    assert queue.retry(job_id()).state is JobState.PENDING
    lease = take(queue)
    assert (lease.lease_epoch, lease.attempt, lease.run) == (2, 1, make_run())
    queue.fail(lease, "no", retry="never")
    assert queue.retry(make_run().run_id).attempts == 0
    queue.complete(take(queue), make_result())
    with pytest.raises(InputError, match="cannot be tried again"):
        queue.retry(job_id())
    assert ends(queue) == (LeaseEnd.FAILED, LeaseEnd.FAILED, LeaseEnd.COMPLETED)


def test_eight_workers_complete_every_job_once(queue: Queue) -> None:
    for number in range(200):
        queue.submit(make_run(number))
    completed: list[str] = []

    def work(worker: str) -> None:
        while (lease := queue.claim(worker, lease_seconds=600)) is not None:
            queue.complete(lease, make_result(worker))
            completed.append(lease.job_id)

    in_threads([lambda name=f"worker-{n}": work(name) for n in range(8)])  # type: ignore[misc]
    assert Counter(completed) == {job_id(number): 1 for number in range(200)}
    assert states(queue) == {"done": 200}
    for number in range(200):
        assert ends(queue, number) == (LeaseEnd.COMPLETED,)


def test_a_job_has_several_names(queue: Queue) -> None:
    queue.submit(make_run(0))
    queue.submit(make_run(1))
    whole = job_id()
    for name in (whole, whole[7:], whole[7:15], whole[:15], make_run().run_id, whole[7:].upper()):
        assert queue.get(name).job_id == whole
        assert queue.leases(name) == ()


@pytest.mark.parametrize("name", ["", "abc", "sha256:", "zz" * 8, "0" * 65, "%", "0123456"])
def test_what_names_no_job_is_refused(queue: Queue, name: str) -> None:
    for call in (queue.get, queue.cancel, queue.retry, queue.leases):
        with pytest.raises(InputError, match="not the name of a job"):
            call(name)


def test_an_unknown_job_is_refused(queue: Queue) -> None:
    queue.submit(make_run())
    for name in (job_id(1), job_id(1)[7:19], make_run(1).run_id):
        for call in (queue.get, queue.cancel, queue.retry, queue.leases):
            with pytest.raises(InputError, match="no such job"):
                call(name)


def test_a_name_of_two_jobs_is_refused(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.submit(make_run(0))
    queue.submit(make_run(1))
    # No two digests of a test agree in 8 digits, so a name of no digits stands for one.
    monkeypatch.setattr(core, "parse_name", lambda text: Name(digits=""))
    with pytest.raises(InputError, match="more than one job"):
        queue.get("any")


def test_the_list_is_the_newest_first(queue: Queue) -> None:
    for number in range(4):
        queue.submit(make_run(number))
    queue.complete(take(queue), make_result())
    ids = [job_id(number) for number in range(4)]
    assert [job.job_id for job in queue.jobs()] == ids[::-1]
    assert [job.job_id for job in queue.jobs(limit=2)] == [ids[3], ids[2]]
    assert [job.job_id for job in queue.jobs([JobState.DONE])] == [ids[0]]
    assert len(queue.jobs([JobState.DONE, JobState.PENDING])) == 4
    assert queue.jobs([JobState.DEAD]) == ()


@pytest.mark.parametrize(
    "call",
    [
        lambda queue, lease: queue.submit(make_run(9), priority=101),
        lambda queue, lease: queue.submit(make_run(9), priority=-101),
        lambda queue, lease: queue.submit(make_run(9), max_attempts=0),
        lambda queue, lease: queue.submit(make_run(9), max_attempts=101),
        lambda queue, lease: queue.claim("", lease_seconds=60),
        lambda queue, lease: queue.claim("a\nb", lease_seconds=60),
        lambda queue, lease: queue.claim("w" * 201, lease_seconds=60),
        lambda queue, lease: queue.claim(WORKER, lease_seconds=0.5),
        lambda queue, lease: queue.claim(WORKER, lease_seconds=float("nan")),
        lambda queue, lease: queue.claim(WORKER, lease_seconds=8 * 24 * HOURS),
        lambda queue, lease: queue.claim(WORKER, lease_seconds=60, without_models=["sha256:00"]),
        lambda queue, lease: queue.waits(["model"]),
        lambda queue, lease: queue.complete(lease, JobResult("sha256:00", "complete")),
        lambda queue, lease: queue.complete(lease, JobResult(make_run().model_digest, "\n")),
        lambda queue, lease: queue.fail(lease, "x", retry="sometimes"),
        lambda queue, lease: queue.fail(lease, "x", retry="again", delay_seconds=-1),
        lambda queue, lease: queue.jobs(limit=0),
    ],
)
def test_values_out_of_range_are_refused(queue: Queue, call: Write) -> None:
    queue.submit(make_run())
    lease = take(queue)
    before = everything(queue)
    with pytest.raises(UsageError) as caught:
        call(queue, lease)
    assert caught.value.exit_code == 2
    assert everything(queue) == before


def test_nothing_private_is_shown(queue: Queue, clock: TurnedClock) -> None:
    queue.submit(make_run())
    zombie = take(queue)
    clock.advance(60)
    owner = take(queue, OTHER)
    shown = [repr(zombie), repr(owner), repr(everything(queue)), repr(queue.submit(make_run()))]
    calls: Sequence[Callable[[], object]] = (
        lambda: queue.complete(zombie, make_result()),
        lambda: queue.submit(make_run(prompt=SECRET + "!")),
    )
    for call in calls:
        with pytest.raises(TallystickError) as caught:
            call()
        shown.append(str(caught.value))
    for text in shown:
        assert SECRET not in text
        assert BLIND.hex() not in text
