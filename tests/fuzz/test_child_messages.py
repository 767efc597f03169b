"""Whatever a child writes, its supervisor answers with a result or with one of our errors."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tallystick.canonical.json import jcs
from tallystick.contracts.codec import encode
from tallystick.contracts.generation import Generation, HostFacts, Timings
from tallystick.contracts.residency import NO_RING
from tallystick.contracts.runtime import RowClass
from tallystick.errors import EvidenceError, RunFailedError, TallystickError, UsageError
from tallystick.execution import launch
from tallystick.execution.jobs import (
    EngineSetup,
    FingerprintJob,
    GenerateJob,
    Job,
    ObserveJob,
    ReplayJob,
)
from tallystick.sandbox.messages import ErrorClasses, Message, MessageReader, error_from
from tallystick.telemetry.bus import LocalBus, LocalSubscriber
from tallystick.telemetry.events import Event
from tests.support.documents import digest_of, example_run
from tests.support.sets import make_platform, no_evidence

LIBRARY = digest_of("library")
SETUP = EngineSetup(__file__, LIBRARY, launch.file_identity(__file__), None, 1)
JOB = FingerprintJob(SETUP, ())
GENERATION = Generation(
    rendered_prompt="Hi",
    chat_template_digest=None,
    prompt_ids=(1, 2),
    sampled_ids=(3,),
    output=base64.b64encode(b"x").decode(),
    stop_reason="length",
    context_tokens=256,
    layers=2,
    state_root=None,
    state_leaves=0,
    leaf_checks="",
    **no_evidence(),
    self_check="not_run",
    timings=Timings(1, 2, 3, 4),
    rss_before=5,
    residency=NO_RING,
    host=HostFacts("cpu", "avx2", "glibc", "Linux", "3.11", 2, "none", "none"),
    platform=make_platform(),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53) + 1, 2**53 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(["Init", "TokenEmitted", "AA==", "12", "-1", "9" * 30, "RunFailedError"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=5,
)
NAMES = st.sampled_from(
    (
        *("event", "seq", "monotonic_ns", "wall_ns", "rss", "index", "bytes"),
        *("what", "done", "total", "type", "message", "expected", "found", "hint"),
        *("generation", "x"),
    )
)
BODIES = st.dictionaries(NAMES, VALUES, max_size=8)
KINDS = st.sampled_from(["event", "text", "progress", "result", "error", "done", "other", ""])
LINES = st.one_of(
    st.binary(max_size=60),
    st.builds(lambda kind, body: jcs({"kind": kind, "body": body}), KINDS, BODIES),
    VALUES.map(jcs),
)


def read_all(data: bytes) -> list[Message]:
    reader, writer = os.pipe()
    os.write(writer, data)  # the pipe's buffer is larger
    os.close(writer)
    try:
        messages = MessageReader(reader)
        return list(iter(lambda: messages.next(10.0), None))
    finally:
        os.close(reader)


@given(st.one_of(st.binary(max_size=2000), st.lists(LINES, max_size=10).map(b"\n".join)))
@settings(deadline=None, max_examples=200)
def test_any_bytes_are_messages_or_a_failed_run(data: bytes) -> None:
    try:
        found = read_all(data)
    except RunFailedError:
        return
    assert len(found) == data.count(b"\n")
    assert all(type(m.kind) is str and type(m.body) is dict for m in found)


@given(BODIES)
@settings(deadline=None)
def test_any_error_message_is_an_error(body: dict[str, Any]) -> None:
    error = error_from(body)

    assert isinstance(error, TallystickError)
    assert len(str(error)) < 17_000
    assert error.exit_code in {3, 4, 6, 7}


class Scripted:
    """A child whose messages are made up; what `Child.messages` does with them is done too."""

    script: tuple[Message, ...] = ()
    peak_rss = 0
    peak_is_final = False
    audit = None

    def __init__(self, *_arguments: object, **_named: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        pass

    def messages(self, *, idle_timeout: float, errors: ErrorClasses) -> Iterator[Message]:
        for message in self.script:
            if message.kind == "done":
                return
            if message.kind == "error":
                raise error_from(message.body, errors)
            yield message


def outcome_of(
    monkeypatch: pytest.MonkeyPatch, *messages: Message, job: Job = JOB
) -> launch.Outcome:
    monkeypatch.setattr(launch, "Child", Scripted)
    monkeypatch.setattr(Scripted, "script", messages)
    return launch.run_job(job, ())


@given(st.lists(st.builds(Message, KINDS, BODIES), max_size=3))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_messages_are_an_outcome_or_one_of_our_errors(
    monkeypatch: pytest.MonkeyPatch, messages: list[Message]
) -> None:
    try:
        outcome = outcome_of(monkeypatch, *messages)
        outcome.generation()
    except TallystickError:
        return
    raise AssertionError("no body of these is a generation")


def test_a_generation_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    event = {
        "event": "TokenEmitted",
        "seq": 0,
        "monotonic_ns": "1",
        "wall_ns": "2",
        "rss": "3",
        "index": 0,
    }
    result = Message("result", {"generation": encode(GENERATION)})
    outcome = outcome_of(monkeypatch, Message("event", event), result)

    assert outcome.generation() == GENERATION
    assert [event.index for event in outcome.events] == [0]


def event(seq: int, rss: int = 3) -> Message:
    times = {"monotonic_ns": "1", "wall_ns": "2"}
    return Message("event", {"event": "Init", "seq": seq, "rss": str(rss), **times})


def generate_job(tokens: int) -> GenerateJob:
    run = replace(example_run(), max_tokens=tokens)
    return GenerateJob(SETUP, 3, run, RowClass(1, 1), "00" * 32, 64, "no")


@pytest.mark.parametrize("tokens", [1, 5])
def test_a_job_has_so_many_events_and_no_more(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    job, most = generate_job(tokens), tokens + 8
    result = Message("result", {})
    outcome = outcome_of(monkeypatch, *map(event, range(most)), result, job=job)
    assert len(outcome.events) == outcome.stamped == most
    with pytest.raises(RunFailedError, match="more events than its job has"):
        outcome_of(monkeypatch, *map(event, range(most + 1)), result, job=job)
    with pytest.raises(RunFailedError, match="more events than its job has"):
        outcome_of(monkeypatch, event(most), result, job=job)


@pytest.mark.parametrize("seqs", [(0, 0), (1, 0), (0, 2, 1), (0, 2, 2)])
def test_an_event_out_of_order_is_a_failed_run(
    monkeypatch: pytest.MonkeyPatch, seqs: tuple[int, ...]
) -> None:
    with pytest.raises(RunFailedError, match="out of order"):
        outcome_of(monkeypatch, *map(event, seqs), Message("result", {}))


def test_the_child_says_how_many_events_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    job = generate_job(1)
    for said in (3, 9):
        outcome = outcome_of(
            monkeypatch, event(0), event(2), Message("result", {"events_told": said}), job=job
        )
        assert (len(outcome.events), outcome.stamped) == (2, said)
    for wrong in (2, 10, -1, True, "3", None):
        with pytest.raises(RunFailedError, match="events"):
            outcome_of(
                monkeypatch, event(0), event(2), Message("result", {"events_told": wrong}), job=job
            )


@pytest.mark.parametrize(
    "late",
    [
        event(1),
        Message("text", {"bytes": "AA=="}),
        Message("data", {"size": 1}, b"x"),
        Message("progress", {"what": "x", "done": 1, "total": 1}),
        Message("result", {}),
    ],
    ids=lambda message: message.kind,
)
def test_nothing_comes_after_the_result(monkeypatch: pytest.MonkeyPatch, late: Message) -> None:
    with pytest.raises(RunFailedError, match="went on after its result"):
        outcome_of(monkeypatch, event(0), Message("result", {}), late)
    outcome_of(monkeypatch, event(0), Message("result", {}), Message("alive", {}))


def test_what_the_kernel_says_of_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = (event(0, 50 << 20), Message("result", {}))
    # A bound from a look too early, or none, is one from below.
    assert outcome_of(monkeypatch, *messages).peak_rss == 50 << 20
    monkeypatch.setattr(Scripted, "peak_rss", 45 << 20)
    assert outcome_of(monkeypatch, *messages).peak_rss == 50 << 20
    monkeypatch.setattr(Scripted, "peak_is_final", True)
    assert outcome_of(monkeypatch, *messages).peak_rss == 45 << 20
    monkeypatch.setattr(Scripted, "peak_rss", 20 << 20)
    with pytest.raises(RunFailedError, match="more memory than it had"):
        outcome_of(monkeypatch, *messages)


def test_the_supervisor_listens_before_there_is_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = LocalBus()
    asked: list[str] = []

    class Watched(LocalBus):
        """Notes the order of things."""

        def subscribe(self, capacity: int = 1) -> LocalSubscriber:
            asked.append("subscribed")
            return bus.subscribe(capacity)

        def publish(self, event: Event) -> None:
            asked.append(event.kind)
            bus.publish(event)

    class Starting(Scripted):
        """Notes when it is started, and speaks at once."""

        def __init__(self, *_arguments: object, **_named: object) -> None:
            asked.append("started")

    monkeypatch.setattr(launch, "Child", Starting)
    monkeypatch.setattr(Scripted, "script", (event(0), Message("result", {})))
    outcome = launch.run_job(JOB, (), bus=Watched())
    assert asked == ["subscribed", "started", "Init"]
    assert [one.seq for one in outcome.events] == [0]
    assert bus._subscribers == ()


def test_no_subscriber_holds_a_run_up_or_costs_it_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = LocalBus()
    idle, last = bus.subscribe(2), bus.subscribe()
    monkeypatch.setattr(launch, "Child", Scripted)
    monkeypatch.setattr(Scripted, "script", (*map(event, range(8)), Message("result", {})))
    outcome = launch.run_job(JOB, (), bus=bus)
    assert len(outcome.events) == outcome.stamped == 8
    assert ([one.seq for one in idle.drain()], idle.dropped) == ([0, 1], 6)
    assert last.drain() == outcome.events


def test_only_a_replay_may_find_evidence_wanting(monkeypatch: pytest.MonkeyPatch) -> None:
    error = Message("error", {"type": "EvidenceError", "message": "what"})
    run = example_run()
    generate = GenerateJob(SETUP, 3, run, RowClass(1, 1), "00" * 32, 64, "no")
    for job in (JOB, generate):
        with pytest.raises(RunFailedError, match="what"):
            outcome_of(monkeypatch, error, job=job)
    replay = ReplayJob(SETUP, 3, run, RowClass(1, 1), (1,), "00" * 32, "none")
    with pytest.raises(EvidenceError, match="what"):
        outcome_of(monkeypatch, error, job=replay)


def test_only_an_observed_run_may_find_its_call_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    error = Message("error", {"type": "UsageError", "message": "what"})
    with pytest.raises(RunFailedError, match="what"):
        outcome_of(monkeypatch, error)
    observe = ObserveJob(SETUP, 3, "m.gguf", "x", 1, "graph", "omit")
    with pytest.raises(UsageError, match="what"):
        outcome_of(monkeypatch, error, job=observe)


def test_a_library_that_is_not_the_hashed_file_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "library.so"
    library.write_bytes(b"hashed")
    job = FingerprintJob(
        EngineSetup(str(library), LIBRARY, launch.file_identity(str(library)), None, 1), ()
    )
    result = Message("result", {"x": 1})
    assert outcome_of(monkeypatch, result, job=job).body == {"x": 1}

    class Replacing(Scripted):
        """While it works, another file comes to the library's place."""

        def messages(self, **_named: Any) -> Iterator[Message]:
            other = tmp_path / "other"
            other.write_bytes(b"hashed")
            other.replace(library)
            yield result

    monkeypatch.setattr(launch, "Child", Replacing)
    with pytest.raises(RunFailedError, match="was replaced or changed"):
        launch.run_job(job, ())
    # And then it is not even loaded.
    monkeypatch.delattr(launch, "Child")
    with pytest.raises(RunFailedError, match="was replaced or changed"):
        launch.run_job(job, ())
    library.unlink()
    with pytest.raises(RunFailedError, match="was replaced or changed") as caught:
        launch.run_job(job, ())
    assert caught.value.found == "no file"


def test_an_outcome_hides_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "secret" not in repr(outcome_of(monkeypatch, Message("result", {"x": "secret"})))


@given(st.sampled_from(sorted(Generation.__dataclass_fields__)), VALUES)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_generation_with_any_value_in_a_field_is_one_or_a_failed_run(
    monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    document = encode(GENERATION)
    assert isinstance(document, dict)
    outcome = outcome_of(monkeypatch, Message("result", {"generation": document | {name: value}}))
    try:
        found = outcome.generation()
    except RunFailedError:
        return
    assert replace(found, **{name: getattr(GENERATION, name)}) == GENERATION


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("event", {}),
        ("event", {"event": "Unknown"}),
        ("event", {"event": "Init", "seq": "0"}),
        (
            "event",
            {"event": "Init", "seq": 2**32, "monotonic_ns": "1", "wall_ns": "2", "rss": "3"},
        ),
        (
            "event",
            {"event": "Init", "seq": 0, "monotonic_ns": "1", "wall_ns": "2", "rss": str(2**64)},
        ),
        ("event", {"event": "Init", "seq": 0, "monotonic_ns": 1, "wall_ns": "2", "rss": "3"}),
        ("event", {"event": "Init", "seq": 0, "monotonic_ns": "١", "wall_ns": "2", "rss": "3"}),
        (
            "event",
            {"event": "TokenEmitted", "seq": 0, "monotonic_ns": "1", "wall_ns": "2", "rss": "3"},
        ),
        ("progress", {"what": "x", "done": -1, "total": 1}),
        ("progress", {"what": "x", "done": True, "total": 1}),
        ("progress", {"what": "x", "done": 1.5, "total": 1}),
        ("text", {}),
        ("text", {"bytes": "%%%"}),
        ("text", {"bytes": "é"}),
    ],
)
def test_a_malformed_body_is_a_failed_run(
    monkeypatch: pytest.MonkeyPatch, kind: str, body: dict[str, Any]
) -> None:
    with pytest.raises(RunFailedError, match="the child sent"):
        outcome_of(monkeypatch, Message(kind, body), Message("result", {}))


def test_a_job_without_a_result_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunFailedError, match="without a result"):
        outcome_of(monkeypatch)
    assert sys.modules.get("xllamacpp") is None
