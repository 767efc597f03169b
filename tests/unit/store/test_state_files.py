"""Spoiled state stores and places: refused for their reason, and left as they were."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.errors import (
    EvidenceError,
    TallystickError,
    UnavailableError,
)
from tallystick.store.database import opened as database
from tallystick.store.database import place
from tallystick.store.database.marks import bounded
from tallystick.store.files import opened_directory
from tallystick.store.state import store
from tallystick.store.state.restore import restore_accepted
from tallystick.store.state.schema import MARKS, STATE_NAME
from tallystick.store.state.store import open_state
from tests.support.ordinary_user import run_as_ordinary_user
from tests.support.small_disk import fill, small_disk
from tests.support.state import accept, make_entry, recorded

Spoil = Callable[[Path], None]
STORE = MARKS.image()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store at rest that holds one receipt."""
    path = tmp_path / STATE_NAME
    accept(path, make_entry())
    return path


def tree(directory: Path) -> dict[str, bytes | None]:
    return {
        other.name: other.read_bytes() if other.is_file() else None for other in directory.iterdir()
    }


def executing(*statements: str) -> Spoil:
    def spoil(path: Path) -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            for statement in statements:
                connection.execute(statement)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            connection.close()

    return spoil


def rewritten(make: Callable[[bytes], bytes]) -> Spoil:
    def spoil(path: Path) -> None:
        path.write_bytes(make(path.read_bytes()))

    return spoil


def in_schema(old: str, new: str) -> Spoil:
    edit = f"UPDATE sqlite_master SET sql = replace(sql, '{old}', '{new}')"
    return executing("PRAGMA writable_schema = ON", edit)


CONTENT = [
    pytest.param(
        executing("PRAGMA application_id = 1"), "another application", id="other application id"
    ),
    pytest.param(
        executing("PRAGMA application_id = 0"), "another application", id="no application id"
    ),
    pytest.param(executing("PRAGMA user_version = 3"), "schema version", id="older version"),
    pytest.param(executing("PRAGMA user_version = 5"), "schema version", id="newer version"),
    pytest.param(in_schema("= 670", "> 0"), "are not those of its version", id="changed check"),
    pytest.param(in_schema("RESTRICT", "CASCADE"), "are not those of", id="changed foreign key"),
    pytest.param(executing("CREATE TABLE extra (a)"), "are not those of", id="extra table"),
    pytest.param(
        executing("CREATE INDEX extra ON receipts (bundle_id)"), "are not those of", id="index"
    ),
    pytest.param(
        executing("CREATE VIEW extra AS SELECT * FROM receipts"), "are not those of", id="view"
    ),
    pytest.param(
        executing("CREATE TRIGGER t AFTER INSERT ON receipts BEGIN DELETE FROM receipts; END"),
        "are not those of",
        id="trigger",
    ),
    pytest.param(executing("ANALYZE"), "are not those of", id="statistics"),
    pytest.param(executing("DROP TABLE receipts"), "are not those of", id="missing table"),
    pytest.param(executing("PRAGMA journal_mode = DELETE"), "has no WAL", id="no WAL"),
    pytest.param(
        rewritten(lambda data: data.replace(b"TABLE jobs", b"TABL\xff\xb0jobs")),
        "damaged|are not those of",
        id="a schema that is no text",
    ),
    pytest.param(rewritten(lambda _: b"\x00" * 8192), "no SQLite database", id="zeros"),
    pytest.param(rewritten(lambda _: b"text " * 200), "no SQLite database", id="text"),
    pytest.param(
        rewritten(lambda data: data[:100]), "damaged|no SQLite database", id="header only"
    ),
]


@pytest.mark.parametrize(("spoil", "message"), CONTENT)
def test_other_content_is_refused(path: Path, spoil: Spoil, message: str) -> None:
    spoil(path)
    before = path.read_bytes()

    with pytest.raises(UnavailableError, match=message) as unavailable:
        open_state(path)
    with pytest.raises(EvidenceError, match=message) as evidence:
        restore_accepted(path.read_bytes(), make_entry())

    assert (unavailable.value.exit_code, evidence.value.exit_code) == (6, 1)
    assert path.read_bytes() == before


def with_views(count: int) -> Spoil:
    """Many views, each of which makes reading the schema slower."""

    def spoil(path: Path) -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO sqlite_master VALUES ('view', ?1, ?1, 0, 'create view ' || ?1 || ' as"
            " select 1')",
            ((f"v{number}",) for number in range(count)),
        )
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()

    return spoil


def test_a_schema_that_would_take_hours_is_refused_at_once(path: Path) -> None:
    with_views(300_000)(path)
    data = path.read_bytes()
    assert len(data) > 15_000_000

    started = time.process_time()
    with pytest.raises(EvidenceError, match="are not those of"):
        restore_accepted(data, make_entry())
    with pytest.raises(UnavailableError, match="cannot be used"):
        open_state(path)
    assert time.process_time() - started < 1.5  # of minutes


def test_what_sqlite_does_with_foreign_bytes_has_an_end() -> None:
    endless = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n FROM t) SELECT max(n) FROM t"
    connection = sqlite3.connect(":memory:")
    with pytest.raises(sqlite3.OperationalError) as caught, bounded(connection, 10_000):
        connection.execute(endless)
    assert caught.value.sqlite_errorname == "SQLITE_INTERRUPT"
    assert connection.execute("SELECT 1").fetchone() == (1,)
    connection.close()


HEADER = [
    pytest.param(16, "pages of 4096 bytes", id="page size"),
    pytest.param(20, "whole pages", id="reserved space"),
    pytest.param(21, "payload fractions", id="payload fraction"),
    pytest.param(47, "schema format 4", id="schema format"),
    pytest.param(55, "no vacuuming", id="vacuum"),
    pytest.param(59, "UTF-8", id="encoding"),
    pytest.param(67, "no incremental vacuuming", id="incremental vacuum"),
    pytest.param(91, "reserved bytes", id="reserved bytes"),
]


@pytest.mark.parametrize(("offset", "message"), HEADER)
def test_every_mark_of_the_header_is_compared(path: Path, offset: int, message: str) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 2
    with pytest.raises(EvidenceError, match="another SQLite header") as caught:
        restore_accepted(bytes(data), make_entry())
    assert message in (caught.value.expected or "")


def test_an_empty_file_is_no_store_and_not_made_one(path: Path) -> None:
    path.write_bytes(b"")
    with pytest.raises(UnavailableError, match="no state store"):
        open_state(path)
    with pytest.raises(EvidenceError, match="no SQLite database"):
        restore_accepted(path.read_bytes(), make_entry())
    assert path.read_bytes() == b""


def test_every_truncation_is_refused(path: Path) -> None:
    data = path.read_bytes()
    for length in range(0, len(data), 512):
        with pytest.raises(EvidenceError, match=r"damaged|no SQLite database"):
            restore_accepted(data[:length], make_entry())
    for more in (b"\x00", bytes(4096)):
        with pytest.raises(EvidenceError, match="damaged"):
            restore_accepted(data + more, make_entry())


def test_a_truncated_store_is_not_written_to(path: Path) -> None:
    data = path.read_bytes()
    for length in range(4096, len(data), 4096):
        path.write_bytes(data[:length])
        with pytest.raises(UnavailableError, match=r"damaged|cannot be used"):
            accept(path, make_entry(1, job="other"))


def test_a_changed_row_is_named(path: Path) -> None:
    executing("PRAGMA ignore_check_constraints = ON", "UPDATE receipts SET bundle_id = x'00'")(path)
    with pytest.raises(EvidenceError, match=r"damaged|another bundle_id"):
        restore_accepted(path.read_bytes(), make_entry())


def test_a_receipt_without_its_job_is_damage(path: Path) -> None:
    executing("PRAGMA foreign_keys = OFF", "DELETE FROM jobs")(path)
    with pytest.raises(EvidenceError, match="damaged") as caught:
        restore_accepted(path.read_bytes(), make_entry())
    assert "a receipt without its job" in str(caught.value)


@settings(deadline=None)
@given(st.data())
def test_hostile_bytes_raise_the_project_s_error_only(draw: st.DataObject) -> None:
    data = bytearray(STORE)
    for _ in range(draw.draw(st.integers(1, 6))):
        start = draw.draw(st.integers(0, len(data) - 1))
        data[start : start + 4] = draw.draw(st.binary(min_size=1, max_size=4))
    with contextlib.suppress(EvidenceError):
        restore_accepted(bytes(data), make_entry())


def make_symlink(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


def make_dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def make_hard_link(path: Path) -> None:
    path.with_name("other").hardlink_to(path)


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o600)


def having(bits: int) -> Spoil:
    return lambda path: path.chmod(bits)


FILES = [
    pytest.param(make_symlink, "symbolic link", id="symlink"),
    pytest.param(make_dangling, "symbolic link", id="dangling symlink"),
    pytest.param(make_hard_link, "hard link", id="hard link"),
    pytest.param(make_fifo, "not a regular file", id="fifo"),
    pytest.param(make_directory, "not a regular file", id="directory"),
    pytest.param(having(0o644), "another mode", id="readable"),
    pytest.param(having(0o660), "another mode", id="writable"),
    pytest.param(having(0o400), "another mode", id="read-only"),
    pytest.param(having(0o700), "another mode", id="executable"),
]


@pytest.mark.parametrize(("spoil", "message"), FILES)
def test_files_that_are_not_plainly_ours_are_refused(
    path: Path, spoil: Spoil, message: str
) -> None:
    spoil(path)
    before = sorted(os.listdir(path.parent))

    message = "symbolic link|not a regular file" if "symbolic" in message else message
    with pytest.raises(UnavailableError, match=message):
        open_state(path)
    assert sorted(os.listdir(path.parent)) == before


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
@pytest.mark.parametrize("kind", ["symlink", "hard link", "mode"])
def test_what_stands_beside_the_store_is_held_to_the_same(
    path: Path, suffix: str, kind: str
) -> None:
    beside = path.with_name(path.name + suffix)
    target = path.with_name("target")
    target.write_bytes(b"precious")
    target.chmod(0o600)
    if kind == "symlink":
        beside.symlink_to(target)
    elif kind == "hard link":
        beside.hardlink_to(target)
    else:
        beside.write_bytes(b"")
        beside.chmod(0o644)

    with pytest.raises(UnavailableError, match=f"{suffix} (is not|has)"):
        open_state(path)
    assert target.read_bytes() == b"precious"


def test_another_user_s_file_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(store, "require_private", lambda *_: None)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(UnavailableError, match="belongs to another user"):
        open_state(path)


def test_a_directory_of_others_is_refused(path: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    with pytest.raises(UnavailableError, match="open to other users"):
        open_state(path)
    tmp_path.chmod(0o700)
    alias = tmp_path / "alias"
    alias.symlink_to(tmp_path)
    with pytest.raises(UnavailableError, match="cannot be used"):
        open_state(alias / STATE_NAME)
    with pytest.raises(UnavailableError, match="cannot be used"):
        open_state(tmp_path / "missing" / STATE_NAME)
    assert not (tmp_path / "missing").exists()


def test_a_directory_that_is_swapped_at_the_last_moment_is_noticed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    accept(other / STATE_NAME, make_entry(1))
    elsewhere = os.fsencode(other / STATE_NAME)
    monkeypatch.setattr(database, "database_path", lambda *_: elsewhere)
    with pytest.raises(UnavailableError, match="was replaced while it was opened"):
        open_state(path)


def test_odd_names_are_opened_as_they_are(tmp_path: Path) -> None:
    for name in ("a?b=c#d%41", "späte", os.fsdecode(b"\xff\xfe"), ":memory:"):
        directory = tmp_path / f"in {name}"
        directory.mkdir(mode=0o700)
        accept(directory / name, make_entry())
        assert os.listdir(directory) == [name]
        assert recorded(directory / name, make_entry())


def test_without_descriptors_of_directories_the_path_serves(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "_DESCRIPTORS", path.parent / "no such directory")
    monkeypatch.chdir(path.parent)
    accept(Path(path.name), make_entry(1, job="other"))
    assert recorded(path, make_entry(1, job="other"))


def test_a_store_in_use_is_not_read(path: Path) -> None:
    with open_state(path) as opened:
        opened.accept(make_entry(1, job="other"))
        with (
            opened_directory(path.parent) as directory,
            pytest.raises(UnavailableError, match="not at rest") as caught,
        ):
            place.require_at_rest(directory, path.name)
        assert caught.value.exit_code == 6
    with opened_directory(path.parent) as directory:
        place.require_at_rest(directory, path.name)
    assert recorded(path, make_entry(1, job="other"))


def test_a_locked_store_is_waited_for_and_then_unavailable(path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        with (
            open_state(path, wait_seconds=0.01) as opened,
            pytest.raises(UnavailableError, match="locked by another process") as caught,
        ):
            opened.accept(make_entry(1, job="other"))
        assert caught.value.exit_code == 6
        other.execute("ROLLBACK")
    finally:
        other.close()
    accept(path, make_entry(1, job="other"))


def test_a_directory_that_another_creator_holds_is_waited_for(tmp_path: Path) -> None:
    with opened_directory(tmp_path) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UnavailableError, match="another process holds"):
            open_state(tmp_path / STATE_NAME, wait_seconds=0.01)
    assert os.listdir(tmp_path) == []


def test_what_a_killed_creator_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / f".{STATE_NAME}.0123456789abcdef"
    kept = tmp_path / f".{STATE_NAME}.notes"
    for other in (left, kept):
        other.write_bytes(MARKS.image()[:1000])
    accept(tmp_path / STATE_NAME, make_entry())
    assert sorted(os.listdir(tmp_path)) == sorted([kept.name, STATE_NAME])


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_a_new_store_takes_over_no_journal(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"{STATE_NAME}{suffix}").write_bytes(b"of another store")
    with pytest.raises(UnavailableError, match="without its state store"):
        open_state(tmp_path / STATE_NAME)


def test_a_full_disk_is_said_and_leaves_the_truth(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=128k,mode=0700") as disk:
        path = disk / STATE_NAME
        accept(path, make_entry())
        filler = disk / "filler"
        fill(filler)
        with pytest.raises(UnavailableError) as caught:
            accept(path, make_entry(1, job="other"))
        assert caught.value.exit_code == 6
        filler.unlink()
        with open_state(path):
            pass
        assert recorded(path, make_entry())
        assert not recorded(path, make_entry(1, job="other"))

        empty = disk / "empty"
        empty.mkdir(mode=0o700)
        fill(filler)
        with pytest.raises(UnavailableError, match="cannot be used"):
            open_state(empty / STATE_NAME)
        assert os.listdir(empty) == []


def test_a_place_that_cannot_be_written() -> None:
    def body(directory: Path) -> None:
        path = directory / STATE_NAME
        accept(path, make_entry())
        before = path.read_bytes()
        directory.chmod(0o500)
        with pytest.raises(UnavailableError) as caught:
            accept(path, make_entry(1, job="other"))
        assert caught.value.exit_code == 6
        assert path.read_bytes() == before
        assert recorded(path, make_entry())
        directory.chmod(0o700)
        path.unlink()
        directory.chmod(0o500)
        with pytest.raises(UnavailableError):
            open_state(path)
        directory.chmod(0o700)

    run_as_ordinary_user(body)


def test_errors_name_no_content_of_a_hostile_schema(path: Path) -> None:
    executing('CREATE TABLE "ATTACK" (a)')(path)
    in_schema("CREATE TABLE", "ATTACK")(path)
    attempts: tuple[Callable[[], None], ...] = (
        lambda: accept(path, make_entry()),
        lambda: restore_accepted(path.read_bytes(), make_entry()),
    )
    for attempt in attempts:
        with pytest.raises(TallystickError) as caught:
            attempt()
        assert "ATTACK" not in str(caught.value)
