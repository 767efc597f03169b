"""The embedded queue's file: marks, spoiled files and places, what is private, what is full."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tallystick.errors import TallystickError, UnavailableError
from tallystick.queues.port import JobState, Lease
from tallystick.queues.sqlite.adapter import SqliteQueue, open_queue
from tallystick.queues.sqlite.schema import MARKS, QUERIES, QUEUE_NAME, fingerprint
from tallystick.store.database import opened as database
from tallystick.store.database.marks import schema_parts
from tests.support.documents import BLIND
from tests.support.ordinary_user import run_as_ordinary_user
from tests.support.queues import (
    SECRET,
    TurnedClock,
    job_id,
    make_result,
    make_run,
    opened,
    states,
    take,
)
from tests.support.small_disk import fill, small_disk

PAGE = Path(__file__).resolve().parents[3] / "docs" / "spec" / "queue.md"
Spoil = Callable[[Path], None]
Call = Callable[[SqliteQueue, Lease], object]
CALLS: dict[str, Call] = {
    "submit": lambda queue, lease: queue.submit(make_run(9)),
    "claim": lambda queue, lease: queue.claim("w", lease_seconds=60),
    "heartbeat": lambda queue, lease: queue.heartbeat(lease),
    "complete": lambda queue, lease: queue.complete(lease, make_result()),
    "fail": lambda queue, lease: queue.fail(lease, "why", retry="never"),
    "release": lambda queue, lease: queue.release(lease),
    "cancel": lambda queue, lease: queue.cancel(job_id(0)),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue at rest that holds one pending job."""
    with opened(tmp_path) as queue:
        queue.submit(make_run())
    return tmp_path / QUEUE_NAME


def executing(*statements: str) -> Spoil:
    def spoil(path: Path) -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            for statement in statements:
                connection.execute(statement)
        finally:
            connection.close()

    return spoil


def writing(data: bytes) -> Spoil:
    def spoil(path: Path) -> None:
        path.write_bytes(data)

    return spoil


def test_the_fingerprint_is_that_of_the_shipped_statements() -> None:
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(MARKS.ddl())
        computed = fingerprint(schema_parts(connection))
    finally:
        connection.close()
    printed = re.findall(r"\| DDL fingerprint \| `([0-9a-f]{64})` \|", PAGE.read_text("utf-8"))
    assert [computed] == printed == [MARKS.ddl_fingerprint]


def test_every_statement_of_the_file_is_one_of_the_schema() -> None:
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(MARKS.ddl())
        for statement in QUERIES.values():
            values = dict.fromkeys(re.findall(r":(\w+)", statement))
            connection.execute(f"EXPLAIN {statement}", values)
    finally:
        connection.close()
    assert len(QUERIES) == 15


def test_the_turn_is_found_by_its_index() -> None:
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(MARKS.ddl())
        values = {"boot": "b", "now": 0, "without": "[]"}
        plan = connection.execute(f"EXPLAIN QUERY PLAN {QUERIES['first_due']}", values).fetchall()
    finally:
        connection.close()
    steps = [row[3] for row in plan]
    assert steps[0] == "SCAN jobs USING INDEX jobs_by_turn"
    assert not any("TEMP B-TREE" in step for step in steps)  # nothing is sorted


def test_a_missing_queue_is_made_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = tmp_path / "data" / "deeper" / QUEUE_NAME
        with open_queue(path) as queue:
            queue.submit(make_run())
            modes = {p.name: p.stat().st_mode & 0o7777 for p in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert set(modes.values()) == {0o600}
    assert path.parent.stat().st_mode & 0o7777 == 0o700
    assert os.listdir(path.parent) == [QUEUE_NAME]


def test_a_queue_that_is_not_there_can_be_refused(tmp_path: Path) -> None:
    for path in (tmp_path / QUEUE_NAME, tmp_path / "missing" / QUEUE_NAME):
        with pytest.raises(UnavailableError, match="there is no queue"):
            open_queue(path, missing="refuse")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (executing("PRAGMA application_id = 1"), "no queue: it is marked as another application's"),
        (executing("PRAGMA user_version = 2"), "the queue has another schema version"),
        (executing("CREATE TABLE extra (a)"), "are not those of its version"),
        (executing("DROP TRIGGER jobs_go_forward"), "are not those of its version"),
        (executing("DROP INDEX jobs_by_turn"), "are not those of its version"),
        (executing("PRAGMA journal_mode = DELETE"), "the queue has no WAL"),
        (writing(b"\x00" * 8192), "no SQLite database"),
        (writing(b""), "no queue"),
        (writing(b"text " * 200), "no SQLite database"),
        (lambda path: path.chmod(0o644), "another mode"),
        (lambda path: path.with_name("other").hardlink_to(path), "hard link"),
        (lambda path: (path.rename(path.with_name("x")), path.symlink_to("x"))[1], "symbolic link"),
        (lambda path: path.parent.chmod(0o750), "open to other users"),
    ],
)
def test_another_file_or_place_is_refused_and_left(path: Path, spoil: Spoil, message: str) -> None:
    spoil(path)
    before = {other.name: other.read_bytes() for other in path.parent.iterdir()}
    with pytest.raises(UnavailableError, match=message) as caught:
        open_queue(path)
    assert caught.value.exit_code == 6
    assert {other.name: other.read_bytes() for other in path.parent.iterdir()} == before
    path.parent.chmod(0o700)


def test_a_directory_that_is_a_link_is_refused(path: Path, tmp_path: Path) -> None:
    alias = tmp_path / "alias"
    alias.symlink_to(tmp_path)
    with pytest.raises(UnavailableError, match="symbolic link"):
        open_queue(alias / QUEUE_NAME)


def test_a_place_that_is_swapped_at_the_last_moment_is_noticed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "other"):
        pass
    elsewhere = os.fsencode(tmp_path / "other" / QUEUE_NAME)
    monkeypatch.setattr(database, "database_path", lambda *_: elsewhere)
    with pytest.raises(UnavailableError, match="was replaced while it was opened"):
        open_queue(path)


def test_a_schema_that_is_changed_meanwhile_is_noticed(path: Path) -> None:
    with opened(path.parent) as queue:
        executing("CREATE TRIGGER t AFTER INSERT ON jobs BEGIN DELETE FROM runs; END")(path)
        for _ in range(2):
            with pytest.raises(UnavailableError, match="are not those of its version"):
                queue.submit(make_run(1))
            with pytest.raises(UnavailableError, match="are not those of its version"):
                queue.jobs()
        executing("DROP TRIGGER t")(path)
        queue.submit(make_run(1))
        assert states(queue) == {"pending": 2}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE jobs SET lease_epoch = 0",
        "UPDATE jobs SET state = 'failed', receipt_digest = NULL, status = NULL",
        "UPDATE jobs SET receipt_digest = zeroblob(32)",
        "DELETE FROM jobs",
        "INSERT OR REPLACE INTO jobs SELECT * FROM jobs",
    ],
)
def test_the_schema_itself_refuses_to_undo_a_completion(path: Path, statement: str) -> None:
    with opened(path.parent) as queue:
        queue.complete(take(queue), make_result())
    with pytest.raises(sqlite3.IntegrityError):
        executing("PRAGMA recursive_triggers = ON", statement)(path)
    with opened(path.parent) as queue:
        assert queue.get(job_id()).result == make_result()


def test_a_finished_job_keeps_its_row_and_not_its_prompt(path: Path) -> None:
    def holds_the_prompt() -> bool:
        data = b"".join(other.read_bytes() for other in path.parent.iterdir())
        assert job_id()[7:] not in data.decode("latin-1"), "digests are kept raw"
        assert bytes.fromhex(job_id()[7:]) in data
        found = {SECRET.encode() in data, BLIND.hex().encode() in data}
        assert len(found) == 1
        return found.pop()

    assert holds_the_prompt()
    with opened(path.parent) as queue:
        queue.complete(take(queue), make_result())
        queue.submit(make_run(1))
        queue.cancel(job_id(1))
    assert not holds_the_prompt()


def test_a_stored_run_that_was_changed_is_not_executed(path: Path) -> None:
    with opened(path.parent) as queue:
        for number in range(1, 4):
            queue.submit(make_run(number))
    for number, change in enumerate(
        [
            "replace(CAST(run AS TEXT), 'secret', 'public')",
            "CAST(run AS TEXT) || ' '",
            "zeroblob(0)",
        ]
    ):
        executing(f"UPDATE runs SET run = CAST({change} AS BLOB) WHERE seq = {number + 1}")(path)
    with opened(path.parent) as queue:
        assert take(queue).job_id == job_id(3)
        for number in range(3):
            job = queue.get(job_id(number))
            assert (job.state, job.reason) == (JobState.FAILED, "the stored run is damaged")


def test_a_locked_queue_is_waited_for_and_then_unavailable(path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        with open_queue(path, wait_seconds=0.01) as queue:
            with pytest.raises(UnavailableError, match="locked by another process") as caught:
                queue.submit(make_run(1))
            assert caught.value.exit_code == 6
            assert states(queue) == {"pending": 1}, "readers need not wait"
            other.execute("ROLLBACK")
            assert queue.submit(make_run(1)).created == "new"
    finally:
        other.close()


def submit_many(queue: SqliteQueue) -> None:
    for number in range(2, 200):
        queue.submit(make_run(number))


@pytest.mark.parametrize("name", CALLS)
def test_a_full_disk_is_said_and_loses_nothing(tmp_path: Path, name: str) -> None:
    with small_disk(tmp_path / "disk", "size=512k,mode=0700") as disk:
        with opened(disk, TurnedClock()) as queue:
            queue.submit(make_run(0))
            lease = take(queue)
            queue.submit(make_run(1))
            before = queue.jobs(), queue.leases(job_id(0))
            fill(disk / "filler")
            # What is left of the journal may still take some calls; each is done or refused whole.
            with pytest.raises(UnavailableError, match=r"no room is left|writing failed") as caught:
                submit_many(queue)
            assert SECRET not in str(caught.value)
            held = len(queue.jobs(limit=1000))
            try:
                CALLS[name](queue, lease)
                after = None
            except UnavailableError:
                after = queue.jobs(limit=1000)
            if after is not None:
                assert (after[-2:], queue.leases(job_id(0)), len(after)) == (*before, held)
            (disk / "filler").unlink()
            if after is not None:
                CALLS[name](queue, lease)
        with opened(disk) as queue:
            assert len(queue.jobs(limit=1000)) == held + (name == "submit")


def test_a_full_disk_makes_no_queue(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=64k,mode=0700") as disk:
        fill(disk / "filler")
        with pytest.raises(UnavailableError, match=r"cannot be used|cannot write"):
            opened(disk)
        assert os.listdir(disk) == ["filler"]


def test_a_place_that_cannot_be_written() -> None:
    def body(directory: Path) -> None:
        with opened(directory) as queue:
            queue.submit(make_run())
        before = (directory / QUEUE_NAME).read_bytes()
        directory.chmod(0o500)
        with pytest.raises(UnavailableError) as caught, opened(directory) as queue:
            queue.submit(make_run(1))
        assert caught.value.exit_code == 6
        assert (directory / QUEUE_NAME).read_bytes() == before
        (directory / QUEUE_NAME).chmod(0o400)
        with pytest.raises(UnavailableError, match="another mode"):
            opened(directory)
        directory.chmod(0o700)

    run_as_ordinary_user(body)


def test_a_disk_that_is_read_only(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=512k,mode=0700") as disk:
        with opened(disk) as queue:
            queue.submit(make_run())
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with (
            pytest.raises(UnavailableError, match=r"cannot be used|cannot write") as caught,
            opened(disk) as queue,
        ):
            queue.submit(make_run(1))
        assert caught.value.exit_code == 6


def test_errors_name_no_content_of_a_hostile_schema(path: Path) -> None:
    executing('CREATE TABLE "ATTACK" (a)')(path)
    with pytest.raises(TallystickError) as caught:
        open_queue(path)
    assert "ATTACK" not in str(caught.value)
