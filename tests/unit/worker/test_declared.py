"""What cannot give a receipt is refused before a model is looked for, let alone an engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tallystick.attest.keyfiles import write_key
from tallystick.attest.keys import SigningKey
from tallystick.contracts.assignment import Request
from tallystick.contracts.commitments import local_network_id
from tallystick.contracts.compute_receipt import EvidenceLevel, JobClass, epoch_of
from tallystick.contracts.request import Chat, ExpectedDigest, InferenceRun
from tallystick.contracts.ticket import Ticket
from tallystick.errors import IncomparableError, InputError, SandboxError
from tallystick.execution.prompt import require_ordered_length
from tallystick.receipts.scheduling import JobTerms, open_ticket, order_job, tickets
from tallystick.worker import run as worker_run
from tallystick.worker.declared import check_declared
from tallystick.worker.execute import declared_profile
from tallystick.worker.keys import SignerChoice
from tallystick.worker.papers import now_ms, own_papers, papers_of_ticket
from tallystick.worker.run import Place, run_declared, run_ticket
from tests.support.documents import ENGINE
from tests.support.manifests import example_profile_pin
from tests.support.sets import PROMPT, SCHEDULER, SIGNER, STRANGER, fake_digest, make_run

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
OTHER = ExpectedDigest(fake_digest("another"))
CHAT = Chat(system="short", clock=None)
PROFILE = b"\x07" * 32

GOOD: dict[str, dict[str, Any]] = {
    "plain": {},
    "chat": {"chat": CHAT, "parse_special": True},
    "sequential": {"policy": "sequential", "parse_special": True, "evidence": ("gemm",)},
    "seeded": {"temperature": "0.7", "seed": 0},
    "expires later": {"expires_at": "2026-11-30T12:00:00.001Z"},
    "no evidence": {"evidence": ()},
    "parts in any order": {"evidence": ("gemm", "states")},
}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "expired": ({"expires_at": "2026-11-30T12:00:00.000Z"}, "expired"),
    "greedy with a seed": ({"seed": 5}, "seed"),
    "warm without a seed": ({"temperature": "0.7"}, "seed"),
    "warm sequential": (
        {"policy": "sequential", "parse_special": True, "temperature": "1", "seed": 1},
        "greedy",
    ),
    "a bundle without a task": ({"dataset": OTHER}, "without a task"),
    "a task without a bundle": ({"task": OTHER}, "without a task"),
    "a bundle without a prompt of it": ({"dataset": OTHER, "task": OTHER}, "prompt_path"),
    "a prompt of no bundle": ({"prompt_path": "task/prompt.txt"}, "prompt_path"),
    "a tile without its split": (
        {"dataset": OTHER, "task": OTHER, "prompt_path": "task/prompt.txt", "tile": "1/0/0"},
        "split and tile",
    ),
    "a tile of no bundle": ({"split": "west", "tile": "1/0/0"}, "split and tile"),
    "two models": ({"model": OTHER}, "two models"),
    "raw with special tokens": ({"parse_special": True}, "parse_special"),
    "chat without them": ({"chat": CHAT}, "parse_special"),
    "sequential without them": ({"policy": "sequential"}, "parse_special"),
    "nothing added": ({"add_special": False}, "add_special"),
    "a part twice": ({"evidence": ("states", "states")}, "twice"),
    "empty prompt": ({"prompt": ""}, "prompt is empty"),
    "NUL in the prompt": ({"prompt": "a\0b"}, "NUL"),
    "too much text": ({"prompt": "\u6728" * 400_000}, "too long"),
    "NUL in the system message": (
        {"chat": Chat(system="\0", clock=None), "parse_special": True},
        "system message",
    ),
}


@pytest.mark.parametrize("changes", GOOD.values(), ids=GOOD)
def test_a_run_that_can_give_a_receipt_passes(changes: dict[str, Any]) -> None:
    check_declared(make_run(**changes), NOW)


@pytest.mark.parametrize(("changes", "words"), BAD.values(), ids=BAD)
def test_a_run_that_cannot_is_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        check_declared(make_run(**changes), NOW)
    assert caught.value.exit_code == 4
    assert PROMPT not in str(caught.value)


def ordered(
    run: InferenceRun | None = None,
    *,
    job_class: JobClass = JobClass.REPLICA_EXTERNAL,
    workers: tuple[bytes, ...] = (SIGNER.public.raw, STRANGER.public.raw),
    scheduler: SigningKey = SCHEDULER,
    job_id: bytes = b"\x01" * 32,
) -> Ticket:
    """Return the first ticket of a job that is valid now."""
    declared = run or make_run()
    issued = epoch_of(now_ms())
    terms = JobTerms(local_network_id(), job_id, job_class, PROFILE, 64, issued, issued + 24)
    return tickets(declared, order_job(declared, terms, scheduler, workers, b"\x02" * 32))[0]


def test_the_papers_of_a_sound_ticket_are_made() -> None:
    ticket = ordered()
    made = papers_of_ticket(ticket, SIGNER.public)
    assert made.papers.request == open_ticket(ticket).request


@pytest.mark.parametrize(
    ("job_class", "workers", "words"),
    [
        (JobClass.SELF_LOCAL, (SIGNER.public.raw,), "nobody ordered the job"),
        (JobClass.REPLICA_EXTERNAL, (SCHEDULER.public.raw, SIGNER.public.raw), "another ordered"),
        (JobClass.SOLO_UNPAID, (SIGNER.public.raw,), None),
        (JobClass.SOLO_UNPAID, (SCHEDULER.public.raw,), None),
        (JobClass.REPLICA_SELF_ORDERED, (SCHEDULER.public.raw, SIGNER.public.raw), None),
    ],
)
def test_a_ticket_is_of_one_of_three_classes(
    job_class: JobClass, workers: tuple[bytes, ...], words: str | None
) -> None:
    ticket = ordered(job_class=job_class, workers=workers)
    if words is None:
        assert open_ticket(ticket).request.body.job_class is job_class
        return
    with pytest.raises(InputError, match=words) as caught:
        open_ticket(ticket)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"job_class": JobClass.SOLO_UNPAID, "workers": (b"", SIGNER.public.raw)}, "replica_slot"),
        ({"job_id": bytes(32)}, "scheduler_job_id"),
    ],
)
def test_a_ticket_whose_signed_fields_contradict_each_other_is_refused(
    job: dict[str, Any], words: str
) -> None:
    workers = job.pop("workers", (SIGNER.public.raw, STRANGER.public.raw))
    at = workers.index(SIGNER.public.raw)
    workers = tuple(key or STRANGER.public.raw for key in workers)
    run = make_run()
    issued = epoch_of(now_ms())
    job_class = job.pop("job_class", JobClass.REPLICA_EXTERNAL)
    terms = JobTerms(
        local_network_id(),
        job.pop("job_id", b"\x01" * 32),
        job_class,
        PROFILE,
        64,
        issued,
        issued + 1,
    )
    ticket = tickets(run, order_job(run, terms, SCHEDULER, workers, b"\x02" * 32))[at]
    with pytest.raises(InputError, match=words) as caught:
        papers_of_ticket(ticket, SIGNER.public)
    assert "nothing was executed" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("required_evidence_level", EvidenceLevel.GEMM_TRACED, "required_evidence_level"),
        ("max_decode_tokens", 7, "decode_tokens"),
        ("replicas", 1, "replicas"),
    ],
)
def test_a_signed_request_that_asks_for_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object, words: str
) -> None:
    def forged(**fields: Any) -> Request:
        return Request(**{**fields, name: value})

    monkeypatch.setattr("tallystick.receipts.scheduling.Request", forged)
    ticket = ordered()
    with pytest.raises(InputError, match=words):
        papers_of_ticket(ticket, SIGNER.public)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"network_id": "ab" * 32}, "network_id"), ({"replica_slot": 1}, "replica_slot")],
)
def test_a_run_of_ones_own_declares_no_other_network_or_slot(
    changes: dict[str, Any], words: str
) -> None:
    arguments: dict[str, Any] = {"model_profile_id": PROFILE, "max_prefill_tokens": 64}
    own_papers(
        make_run(network_id=local_network_id().hex(), replica_slot=0), SIGNER.public, **arguments
    )
    with pytest.raises(InputError, match=words):
        own_papers(make_run(**changes), SIGNER.public, **arguments)


def test_a_prompt_is_no_longer_than_its_scheduler_allows() -> None:
    require_ordered_length(9, 9)
    with pytest.raises(InputError, match="more tokens than") as caught:
        require_ordered_length(9, 8)
    assert caught.value.found == "9"


@pytest.mark.parametrize(
    ("profile", "enforcement", "kind"),
    [
        ("strict", "full", InputError),
        ("x.yaml", "process", InputError),
        ("none", "full", SandboxError),
    ],
)
def test_a_sandbox_that_is_not_here_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    profile: str,
    enforcement: str,
    kind: type[Exception],
) -> None:
    monkeypatch.chdir(tmp_path)
    # A run declares the name of a profile: it must not choose a file that is read here.
    (tmp_path / "x.yaml").write_text("{name: x.yaml, level: process, lowest: null, limits: null}\n")
    with pytest.raises(kind):
        declared_profile(make_run(sandbox_profile=profile, enforcement=enforcement), "none")
    assert declared_profile(make_run(), "none").level == "none"


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Place:
    """A worker whose model is there, and whose engine must not be started."""
    digest = make_run().model_digest

    def started(*_: object, **__: object) -> None:
        raise AssertionError("an engine was started")

    for name, found in {
        "find_engine": lambda *_: SimpleNamespace(build=ENGINE),
        "resolve": lambda *_: SimpleNamespace(digest=digest),
        "open_model": lambda _: nullcontext(None),
        "pinned_facts": lambda _: SimpleNamespace(profile=None),
        "model_profile": lambda _: SimpleNamespace(
            model_profile_id=PROFILE, native_context_tokens=64
        ),
        "prepare_class": started,
    }.items():
        monkeypatch.setattr(worker_run, name, found)
    write_key(tmp_path / "worker.key", SIGNER, None)
    return Place(
        output_dir=tmp_path / "out",
        signer=SignerChoice(tmp_path / "worker.key"),
        home=tmp_path / "h",
    )


def test_what_is_sound_goes_on_to_the_engine(no_engine: Place) -> None:
    calls: tuple[Callable[[], object], ...] = (
        lambda: run_ticket("m", ordered(), place=no_engine),
        lambda: run_declared("m", make_run(), place=no_engine),
    )
    for call in calls:
        with pytest.raises(AssertionError, match="an engine was started"):
            call()


@pytest.mark.parametrize(("changes", "words"), BAD.values(), ids=BAD)
def test_nothing_is_executed_for_a_ticket_or_a_run_that_cannot_give_a_receipt(
    no_engine: Place, changes: dict[str, Any], words: str
) -> None:
    changes = {**changes}
    if "expires_at" in changes:
        changes["expires_at"] = "2020-01-01T00:00:00.000Z"
    run = make_run(**changes)
    ticket = ordered(run)
    with pytest.raises(InputError, match=words):
        run_ticket("m", ticket, place=no_engine)
    with pytest.raises(InputError, match=words):
        run_declared("m", run, place=no_engine)
    assert no_engine.output_dir is not None
    assert not no_engine.output_dir.exists()


@pytest.mark.parametrize("field", ["name", "version"])
def test_nothing_is_executed_for_a_pinned_model_under_another_engine(
    no_engine: Place, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    pinned = SimpleNamespace(profile=example_profile_pin())
    monkeypatch.setattr(worker_run, "pinned_facts", lambda _: pinned)
    calls: tuple[Callable[[], object], ...] = (
        lambda: run_ticket("m", ordered(), place=no_engine),
        lambda: run_declared("m", make_run(), place=no_engine),
    )
    for call in calls:
        with pytest.raises(AssertionError, match="an engine was started"):
            call()
    other = SimpleNamespace(build=replace(ENGINE, **{field: "other"}))
    monkeypatch.setattr(worker_run, "find_engine", lambda *_: other)
    for call in calls:
        with pytest.raises(IncomparableError, match="the engine is not what the model's profile"):
            call()


def test_nothing_is_executed_for_papers_that_do_not_hold(no_engine: Place) -> None:
    for ticket in (
        ordered(job_id=bytes(32)),
        ordered(workers=(STRANGER.public.raw, SIGNER.public.raw)),
        replace(ordered(), request_nonce="00" * 32),
    ):
        with pytest.raises(InputError):
            run_ticket("m", ticket, place=no_engine)
    with pytest.raises(InputError, match="another model"):
        run_ticket(
            "m",
            ordered(make_run(model_digest=OTHER.expectedDigest, model=OTHER)),
            place=no_engine,
        )


@pytest.mark.parametrize("inside", [".", "home", "deep/er/home"])
def test_an_output_with_the_data_folder_in_it_is_refused_before_anything(
    no_engine: Place, tmp_path: Path, inside: str
) -> None:
    out = tmp_path / "out"
    place = replace(no_engine, output_dir=out, home=out / inside)
    with pytest.raises(InputError, match="the data folder") as caught:
        run_declared("m", make_run(), place=place)
    assert caught.value.exit_code == 4
    assert not out.exists()
