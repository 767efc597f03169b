"""A job for two workers, its two receipts, and whether they match: as three users see it."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tallystick.attest.auditkeys import read_audit_key
from tallystick.attest.bundlekeys import AuditKey
from tallystick.attest.keyfiles import read_key, write_key
from tallystick.attest.keys import SigningKey
from tallystick.bundles.match import no_bundle
from tallystick.canonical.hashing import format_digest, sha256
from tallystick.canonical.json import jcs
from tallystick.contracts.codec import decode_bytes, encode_bytes
from tallystick.contracts.generation import Generation
from tallystick.contracts.ticket import Ticket
from tallystick.errors import InputError
from tallystick.receipts.build import BuiltSet, RecordState, SetInputs
from tallystick.receipts.scheduling import open_ticket, ticket_papers
from tallystick.worker.papers import RunPapers, papers_of_ticket, read_ticket, record_in
from tests.support.builds import build_set
from tests.support.runs import Completed, EngineHome, HonestRun
from tests.support.written import write_set

PROMPT = "A tally stick is split in two."
N = "4"


@dataclass(frozen=True)
class Worker:
    """A worker with a data folder and a key of its own."""

    home: EngineHome
    key: Path

    @property
    def public(self) -> Path:
        return self.key.with_name(self.key.name.replace(".key", ".pub.pem"))

    def execute(self, ticket: Path, model: Path, *words: str | Path) -> Completed:
        return self.home.cli(
            "job", "run", ticket, "--model", model, "--key", self.key, "--json", *words
        )


@dataclass(frozen=True)
class Job:
    """A job that was ordered for two workers, and executed by both."""

    model: Path
    workers: tuple[Worker, Worker]
    tickets: tuple[Path, Path]
    sets: tuple[Path, Path]

    def match(self, left: Path, right: Path, *words: str) -> Completed:
        keys = [word for worker in self.workers for word in ("--key", worker.public)]
        return self.workers[0].home.cli("match", left, right, *keys, *words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("job")
    yield path
    shutil.rmtree(path)


def order(home: EngineHome, model: Path, out: Path, *words: str | Path) -> Completed:
    return home.cli(
        *("job", "order", "--model", model, "--prompt-stdin", "-n", N, "--json"),
        *("--output-dir", out, *words),
        stdin=PROMPT,
    )


@pytest.fixture(scope="module")
def job(engine_home: EngineHome, folder: Path, toy_llama: Path) -> Job:
    engine_home.run(toy_llama, PROMPT, 1)  # what is measured is copied to both workers
    workers = []
    for name in ("a", "b"):
        home = engine_home.copied_to(folder / f"home-{name}")
        write_key(folder / f"{name}.key", SigningKey.generate(), None)
        workers.append(Worker(home, folder / f"{name}.key"))
    a, b = workers
    placed = order(
        *(engine_home, toy_llama, folder / "tickets"),
        *("--worker", a.public, "--worker", b.public),
    )
    assert placed.returncode == 0, placed.stderr
    document = json.loads(placed.stdout)
    assert document["job_class"] == "replica_external"
    first, second = map(Path, document["tickets"])
    sets = []
    for worker, ticket in ((a, first), (b, second)):
        done = worker.execute(ticket, toy_llama)
        assert done.returncode == 0, done.stderr
        sets.append(Path(json.loads(done.stdout)["directory"]))
    return Job(toy_llama, (a, b), (first, second), (sets[0], sets[1]))


def test_a_key_made_for_an_order_is_announced(
    engine_home: EngineHome, toy_llama: Path, job: Job, tmp_path: Path
) -> None:
    home = engine_home.copied_to(tmp_path / "home")
    for path in (home.path / "keys").glob("default.*"):
        path.unlink()
    words = ("--worker", job.workers[0].public)
    first = order(home, toy_llama, tmp_path / "first", *words)
    again = order(home, toy_llama, tmp_path / "again", *words)
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert first.stderr.count("made a signing key, because there was none: ed25519:") == 1
    assert "made a signing key" not in again.stderr


def test_tickets_are_private_and_one_for_each_worker(job: Job) -> None:
    for slot, path in enumerate(job.tickets):
        assert path.name == f"slot-{slot}.ticket"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        ticket = decode_bytes(Ticket, path.read_bytes(), max_bytes=1 << 20)
        assert ticket.request.replica_slot == slot
        assert ticket.request.prompt == PROMPT
        assert PROMPT not in repr(ticket)
    assert stat.S_IMODE(job.tickets[0].parent.stat().st_mode) == 0o700


def test_the_two_receipts_of_a_job_match(job: Job) -> None:
    done = job.match(*job.sets)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("match\n")
    assert "do not exclude that one worker copied" in done.stdout
    assert "worker_state_root" in done.stdout
    assert "FAILED" not in done.stdout
    assert PROMPT not in done.stdout + done.stderr
    document = json.loads(job.match(job.sets[1], job.sets[0], "--json").stdout)
    assert (document["matched"], document["exit_code"]) == (True, 0)
    assert len(document["rules"]) == 10
    assert "Not checked of A, without the key of its bundle: steps 3, " in done.stdout


def test_with_the_keys_of_both_bundles_every_step_is_checked(job: Job, tmp_path: Path) -> None:
    words: list[str] = []
    for worker, place, name in zip(job.workers, job.sets, "ab", strict=True):
        key = tmp_path / name
        audit = worker.home.path / "keys" / "audit.key"
        made = worker.home.cli("keys", "bundle", place, "--audit-key-file", audit, "--output", key)
        assert made.returncode == 0, made.stderr
        words += [f"--bundle-key-{name}", str(key)]
    done = job.match(*job.sets, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Not checked" not in done.stdout
    crossed = job.match(*job.sets, words[0], words[3], words[2], words[1])
    assert crossed.returncode == 1
    assert "A does not verify" in crossed.stderr


def test_each_side_verifies_and_replays(job: Job) -> None:
    for worker, place in zip(job.workers, job.sets, strict=True):
        audit = worker.home.path / "keys" / "audit.key"
        words = ("--key", worker.public, "--audit-key-file", audit)
        verified = worker.home.cli("verify", place, *words)
        assert verified.returncode == 0, verified.stdout
        assert "status=local_restored" in verified.stdout
        assert "not checked" not in verified.stdout
        replayed = worker.home.cli("replay", place, "--model", job.model)
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr


def test_public_files_are_enough_to_match(job: Job, tmp_path: Path) -> None:
    copies = []
    for place in job.sets:
        copy = tmp_path / place.name
        shutil.copytree(place, copy)
        for path in (*copy.glob("*.bundle"), *copy.glob("*.sqlite3")):
            path.unlink()
        copies.append(copy)
    left, right = copies
    assert job.match(left, right).returncode == 0


def test_one_set_twice_names_the_replica_slot(job: Job) -> None:
    done = job.match(job.sets[0], job.sets[0])
    assert done.returncode == 1
    assert done.stdout.startswith("NO MATCH\n")
    assert "FAILED  different replica slot" in done.stdout


def test_runs_of_two_jobs_do_not_match(job: Job, tmp_path: Path) -> None:
    worker = job.workers[1]
    done = worker.home.cli(
        *("run", "--model", job.model, "-n", N, "--key", worker.key, "--json"),
        *("--prompt-stdin", "--output-dir", tmp_path / "own"),
        stdin=PROMPT,
    )
    assert done.returncode == 0, done.stderr
    matched = job.match(job.sets[0], tmp_path / "own")
    assert matched.returncode == 1
    assert "FAILED  same job nullifier" in matched.stdout


def test_without_both_keys_or_with_no_set_nothing_matches(job: Job, tmp_path: Path) -> None:
    home = job.workers[0].home
    none = home.cli("match", *job.sets)
    assert (none.returncode, none.stdout) == (4, "")
    one = home.cli("match", *job.sets, "--key", job.workers[0].public)
    assert (one.returncode, one.stdout) == (1, "")
    assert "B does not verify: step 4" in one.stderr
    assert job.match(job.sets[0], tmp_path).returncode == 4


def test_a_ticket_is_for_one_key(job: Job, tmp_path: Path) -> None:
    done = job.workers[1].execute(job.tickets[0], job.model, "--output-dir", tmp_path / "out")
    assert (done.returncode, done.stdout) == (4, "")
    assert "given to another worker" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_ticket_is_for_one_model(job: Job, toy_moe: Path, tmp_path: Path) -> None:
    done = job.workers[0].execute(job.tickets[0], toy_moe, "--output-dir", tmp_path / "out")
    assert (done.returncode, done.stdout) == (4, "")
    assert "the ticket is for another model" in done.stderr
    assert not (tmp_path / "out").exists()


def other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, list):
        return []
    if isinstance(value, dict):
        return {**value, "expectedDigest": format_digest(sha256(b"another"))}
    if value is None:
        return "2030-01-01T00:00:00.000Z"
    texts = {"row-class": "sequential", "private": "public", "none": "process", "0": "1"}
    if value in texts:
        return texts[value]
    if value.startswith("sha256:"):
        return format_digest(sha256(b"another"))
    return value[:-1] + ("0" if value[-1] != "0" else "1")


def edits(document: Any) -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if name == "request":
            # Neither is signed: a run has an id of its own, and no model is looked up by a path.
            unsigned = ("run_id", "model_path", "blind")
            for inner, held in value.items():
                if inner not in unsigned:
                    yield f"request.{inner}", {**document, name: {**value, inner: other(held)}}
        else:
            yield name, {**document, name: other(value)}


def test_every_edited_field_of_a_ticket_is_refused(job: Job, tmp_path: Path) -> None:
    document: Any = json.loads(job.tickets[0].read_bytes())
    path = tmp_path / "edited.ticket"
    path.touch(mode=0o600)
    path.write_bytes(jcs(document))
    assert encode_bytes(read_ticket(path)) == job.tickets[0].read_bytes()
    seen = []
    for name, edited in edits(document):
        if name == "request.expires_at":
            continue  # not signed: it is held against the clock, before and after the run
        path.write_bytes(jcs(edited))
        with pytest.raises(InputError) as caught:
            read_ticket(path)
        assert PROMPT[:-1] not in str(caught.value)
        seen.append(name)
    assert len(seen) > 20
    done = job.workers[0].execute(path, job.model, "--output-dir", tmp_path / "out")
    assert (done.returncode, done.stdout) == (4, "")
    assert "ticket" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff", b"x" * (9 << 20)])
def test_what_is_no_ticket_exits_4(job: Job, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "bad.ticket"
    if content is not None:
        path.touch(mode=0o600)
        path.write_bytes(content)
    done = job.workers[0].execute(path, job.model)
    assert (done.returncode, done.stdout) == (4, "")
    assert "ticket" in done.stderr


def test_an_expired_ticket_is_refused_in_words(job: Job) -> None:
    ticket = decode_bytes(Ticket, job.tickets[0].read_bytes(), max_bytes=1 << 20)
    opened = open_ticket(ticket)
    key = read_key(job.workers[0].key, lambda: b"").public
    window = opened.assignments[0].body
    for epoch, valid in (
        (window.issued_epoch - 1, False),
        (window.issued_epoch, True),
        (window.expires_epoch - 1, True),
        (window.expires_epoch, False),
    ):
        arguments = (opened, key, key, bytes(range(32)), epoch * 3_600_000)
        if valid:
            ticket_papers(*arguments)
            continue
        with pytest.raises(InputError, match="not valid now") as caught:
            ticket_papers(*arguments)
        assert caught.value.exit_code == 4


def test_a_job_has_one_worker_or_two_different_ones(
    job: Job, engine_home: EngineHome, tmp_path: Path
) -> None:
    a, b = (worker.public for worker in job.workers)
    own = engine_home.path / "keys" / "default.pub.pem"
    for number, (keys, job_class) in enumerate(
        (((a,), "solo_unpaid"), ((a, own), "replica_self_ordered"), ((b, a), "replica_external"))
    ):
        words = [word for key in keys for word in ("--worker", key)]
        done = order(engine_home, job.model, tmp_path / str(number), *words)
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert document["job_class"] == job_class
        assert len(document["tickets"]) == len(keys)
    for keys in ((), (a, a), (a, b, own)):
        words = [word for key in keys for word in ("--worker", key)]
        done = order(engine_home, job.model, tmp_path / "no", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert not (tmp_path / "no").exists()
    done = order(engine_home, job.model, tmp_path / "0", "--worker", a)
    assert done.returncode == 6


def test_a_copied_core_matches_and_a_replay_finds_it(job: Job, tmp_path: Path) -> None:
    """B hands in A's core and states, and makes up the root bound to its own credential."""
    a, b = job.workers
    audit = read_audit(a.home)
    honest = HonestRun.load(job.sets[0], audit)
    key = read_key(b.key, lambda: b"")
    ticket = decode_bytes(Ticket, job.tickets[1].read_bytes(), max_bytes=1 << 20)
    papers = papers_of_ticket(ticket, key.public)
    generation = honest.generation(worker_state_root=format_digest(sha256(b"made up")))
    built = built_copy(honest, ticket, papers, generation, key, record_in(tmp_path), audit)
    copied = write_set(tmp_path / "copied", built.members, built.marker)
    assert job.match(job.sets[0], copied).returncode == 0
    keys = a.home.path / "keys" / "audit.key"
    done = b.home.cli("replay", copied, "--model", job.model, "--audit-key-file", keys)
    assert done.returncode == 1, done.stdout + done.stderr
    (difference,) = (line for line in done.stdout.splitlines() if "first difference" in line)
    assert "root" in difference
    assert "credential" in difference
    replayed = a.home.cli("replay", job.sets[0], "--model", job.model)
    assert replayed.returncode == 0


def read_audit(home: EngineHome) -> AuditKey:
    return read_audit_key(home.path / "keys" / "audit.key")


def built_copy(
    honest: HonestRun,
    ticket: Ticket,
    papers: RunPapers,
    generation: Generation,
    key: SigningKey,
    record: RecordState,
    audit: AuditKey,
) -> BuiltSet:
    core = honest.receipt.core
    return build_set(
        SetInputs(
            run=replace(ticket.request, run_id=honest.opening.request.run_id),
            generation=generation,
            runtime_class=core.runtime_class,
            engine=core.engine,
            manifest=honest.manifest,
            papers=papers.papers,
            facts=honest.facts(),
            telemetry=honest.telemetry,
            materialised=no_bundle(core.model_digest),
        ),
        papers.sealing(audit),
        key,
        record,
    )
