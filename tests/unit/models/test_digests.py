"""sha256 of a file, and the cache that must never be wrong and may always be lost."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tallystick.errors import InputError
from tallystick.models import digests
from tallystick.models.digests import DigestCache, HashedFile, hash_descriptor
from tallystick.models.files import FileIdentity, Progress, opened

LATER = 3_000_000_000


def later() -> int:
    """Return a clock reading at which files made now are old enough to be cached."""
    return time.time_ns() + LATER


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"model" * 1000)
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def ask(path: Path, cache: DigestCache) -> HashedFile:
    with opened(path) as descriptor:
        return cache.digest_of(descriptor)


@pytest.fixture
def hashed_files(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows with every real hash."""
    seen: list[int] = []
    real = digests._hash_once

    def counted(descriptor: int, size: int, progress: Progress) -> str:
        seen.append(size)
        return real(descriptor, size, progress)

    monkeypatch.setattr(digests, "_hash_once", counted)
    return seen


def test_the_digest_and_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "_CHUNK", 1000)
    monkeypatch.setattr(digests, "_REPORT_EVERY", 2500)
    data = os.urandom(8123)
    path = tmp_path / "x"
    path.write_bytes(data)
    reports: list[tuple[str, int, int]] = []
    with opened(path) as descriptor:
        os.lseek(descriptor, 77, os.SEEK_SET)
        hashed = hash_descriptor(descriptor, progress=lambda *report: reports.append(report))
        assert os.lseek(descriptor, 0, os.SEEK_CUR) == 77
        assert hashed == HashedFile(sha(data), FileIdentity.of(descriptor))
    assert reports == [("hashing", n, 8123) for n in (3000, 6000, 8123)]


def test_an_empty_file_is_never_hashed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.touch()
    descriptor = os.open(path, os.O_RDONLY)
    with pytest.raises(InputError, match="empty file"):
        hash_descriptor(descriptor)
    with pytest.raises(InputError, match="empty file"):
        DigestCache(tmp_path / "home").digest_of(descriptor)
    os.close(descriptor)


def test_a_file_that_changes_once_is_hashed_again(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = digests._hash_once
    changes = [b"changed once"]

    def changing(descriptor: int, size: int, progress: Progress) -> str:
        digest = real(descriptor, size, progress)
        if changes:
            model.write_bytes(changes.pop())
        return digest

    monkeypatch.setattr(digests, "_hash_once", changing)
    with opened(model) as descriptor:
        assert hash_descriptor(descriptor).digest == sha(b"changed once")


def test_a_file_that_keeps_changing_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = digests._hash_once

    def changing(descriptor: int, size: int, progress: Progress) -> str:
        digest = real(descriptor, size, progress)
        with model.open("ab") as file:
            file.write(b"more")
        return digest

    monkeypatch.setattr(digests, "_hash_once", changing)
    with opened(model) as descriptor, pytest.raises(InputError, match="keeps changing"):
        hash_descriptor(descriptor)


def test_the_second_question_is_answered_from_the_cache(
    model: Path, home: Path, hashed_files: list[int]
) -> None:
    cache = DigestCache(home, clock=later)
    first = ask(model, cache)
    assert ask(model, cache) == first == ask(model, DigestCache(home, clock=later))
    assert first.digest == sha(model.read_bytes())
    assert len(hashed_files) == 1
    assert (home / "cache").stat().st_mode & 0o777 == 0o700


def test_a_young_file_is_not_cached(model: Path, home: Path, hashed_files: list[int]) -> None:
    for _ in range(2):
        ask(model, DigestCache(home))
    assert len(hashed_files) == 2


def test_two_seconds_are_counted_from_ctime_too(
    model: Path, home: Path, hashed_files: list[int]
) -> None:
    os.utime(model, ns=(0, 0))  # an old mtime set now: the ctime tells
    for _ in range(2):
        ask(model, DigestCache(home))
    assert len(hashed_files) == 2


def test_a_future_mtime_is_not_cached(model: Path, home: Path, hashed_files: list[int]) -> None:
    future = time.time_ns() + 100 * LATER
    os.utime(model, ns=(future, future))
    for _ in range(2):
        ask(model, DigestCache(home, clock=later))
    assert len(hashed_files) == 2


def test_any_change_is_noticed(model: Path, home: Path, hashed_files: list[int]) -> None:
    cache = DigestCache(home, clock=later)
    ask(model, cache)
    before = model.stat()
    data = b"M" + model.read_bytes()[1:]
    model.write_bytes(data)
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))  # same size, same mtime
    assert ask(model, cache).digest == sha(data)
    replacement = model.with_name("other")
    replacement.write_bytes(b"other" * 1000)
    os.utime(replacement, ns=(before.st_atime_ns, before.st_mtime_ns))
    replacement.replace(model)
    assert ask(model, cache).digest == sha(b"other" * 1000)
    assert len(hashed_files) == 3


@pytest.mark.parametrize(
    "garbage", [b"", b"not a database" * 100, b"SQLite format 3\0" + bytes(80)]
)
def test_a_corrupt_cache_is_replaced(
    garbage: bytes, model: Path, home: Path, hashed_files: list[int]
) -> None:
    (home / "cache").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    (home / "cache" / "digests.sqlite3").write_bytes(garbage)
    cache = DigestCache(home, clock=later)
    for _ in range(4):
        assert ask(model, cache).digest == sha(model.read_bytes())
    assert len(hashed_files) <= 2


def test_a_database_of_something_else_is_replaced(
    model: Path, home: Path, hashed_files: list[int]
) -> None:
    (home / "cache").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    with sqlite3.connect(home / "cache" / "digests.sqlite3") as database:
        database.execute("CREATE TABLE digests (something TEXT)")
    database.close()
    cache = DigestCache(home, clock=later)
    for _ in range(4):
        assert ask(model, cache).digest == sha(model.read_bytes())
    assert len(hashed_files) <= 2


def test_a_bad_row_is_ignored(model: Path, home: Path, hashed_files: list[int]) -> None:
    cache = DigestCache(home, clock=later)
    ask(model, cache)
    database = sqlite3.connect(home / "cache" / "digests.sqlite3", isolation_level=None)
    database.execute("UPDATE digests SET digest = 'sha256:00'")
    database.close()
    assert ask(model, cache).digest == sha(model.read_bytes())
    assert len(hashed_files) == 2


def test_a_cache_that_cannot_exist_is_no_error(
    model: Path, home: Path, hashed_files: list[int]
) -> None:
    home.mkdir(mode=0o700)
    (home / "cache").write_bytes(b"a file where the folder should be")
    cache = DigestCache(home, clock=later)
    for _ in range(2):
        assert ask(model, cache).digest == sha(model.read_bytes())
    assert len(hashed_files) == 2


def test_a_locked_cache_is_passed_by(
    model: Path, home: Path, monkeypatch: pytest.MonkeyPatch, hashed_files: list[int]
) -> None:
    monkeypatch.setattr(digests, "_BUSY_SECONDS", 0.01)
    cache = DigestCache(home, clock=later)
    ask(model, cache)
    database = sqlite3.connect(home / "cache" / "digests.sqlite3", isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    assert ask(model, cache).digest == sha(model.read_bytes())
    database.execute("ROLLBACK")
    database.close()
    ask(model, cache)
    assert len(hashed_files) == 2  # the lock did not cost the cache its content


def test_processes_share_the_cache(home: Path, tmp_path: Path) -> None:
    files = []
    for number in range(8):
        path = tmp_path / f"m{number}"
        path.write_bytes(bytes([number]) * 5000)
        files.append(path)
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tallystick.models.digests import DigestCache\n"
        "from tallystick.models.files import opened\n"
        "cache = DigestCache(Path(sys.argv[1]), clock=lambda: time.time_ns() + 3 * 10**9)\n"
        "for path in sys.argv[2:]:\n"
        "    with opened(Path(path)) as fd:\n"
        "        print(cache.digest_of(fd).digest)\n"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(home), *map(str, files)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    outputs = [process.communicate()[0].split() for process in running]
    assert outputs == [[sha(path.read_bytes()) for path in files]] * 3
    database = sqlite3.connect(home / "cache" / "digests.sqlite3")
    assert database.execute("SELECT count(*) FROM digests").fetchone() == (8,)
    database.close()
