"""The spool folder: whatever is dropped becomes a job, or is kept and its reason told."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tallystick.contracts.request import InferenceRun
from tallystick.errors import UnavailableError
from tallystick.queues import core, spool
from tallystick.queues.memory import memory_queue
from tallystick.queues.port import Queue, Submission
from tallystick.queues.spool import CollectedFiles, collect
from tests.support.ordinary_user import run_as_ordinary_user
from tests.support.queues import SECRET, TurnedClock, job_id, make_run, run_file, states, take
from tests.support.small_disk import fill, small_disk

LONG_AGO = 1_000_000_000


@pytest.fixture
def queue() -> Queue:
    return memory_queue(TurnedClock())


@pytest.fixture
def place(tmp_path: Path, queue: Queue) -> Path:
    """An empty spool folder."""
    collect(tmp_path / "spool", queue)
    return tmp_path / "spool"


def drop(place: Path, name: str, data: bytes, *, age: int = 60) -> Path:
    """Drop a file as one does: write it under a name that is left alone, and rename it."""
    unfinished = place / "incoming" / f".{name[:100]}"
    unfinished.write_bytes(data)
    changed = unfinished.stat().st_mtime - age
    os.utime(unfinished, (changed, changed))
    return unfinished.rename(place / "incoming" / name)


def content(place: Path) -> dict[str, list[str]]:
    return {part: sorted(os.listdir(place / part)) for part in ("incoming", "taken", "refused")}


EMPTY: dict[str, list[str]] = {"incoming": [], "taken": [], "refused": []}


def refused_files(place: Path) -> dict[str, tuple[bytes, str]]:
    """Return the bytes and the reason of each refused file, by the name it was dropped under."""
    folder = place / "refused"
    return {
        path.name[:-17]: (path.read_bytes(), (folder / f"{path.name}.reason").read_text())
        for path in folder.iterdir()
        if path.suffix != ".reason"
    }


def test_the_folder_is_made_private(place: Path) -> None:
    for folder in (place, *(place / part for part in EMPTY)):
        assert folder.stat().st_mode & 0o7777 == 0o700


def test_a_dropped_run_is_queued_and_its_file_gone(place: Path, queue: Queue) -> None:
    drop(place, "RUN.json", run_file(), age=0)
    (accepted,) = collect(place, queue).accepted
    assert (accepted.name, accepted.submission.job_id) == ("RUN.json", job_id())
    assert content(place) == EMPTY
    assert take(queue).run == make_run()
    assert collect(place, queue) == CollectedFiles((), (), ())


def test_spelling_does_not_matter(place: Path, queue: Queue) -> None:
    drop(place, "a.json", json.dumps(json.loads(run_file()), indent=4).encode())
    drop(place, "b", run_file())
    created = sorted(item.submission.created for item in collect(place, queue).accepted)
    assert created == ["existing", "new"]
    assert states(queue) == {"pending": 1}


def test_the_oldest_is_the_first(place: Path, queue: Queue) -> None:
    for number, age in enumerate((10, 30, 20)):
        drop(place, f"{number}.json", run_file(number), age=age)
    names = [item.name for item in collect(place, queue).accepted]
    assert names == ["1.json", "2.json", "0.json"]
    assert take(queue).job_id == job_id(1)


@pytest.mark.parametrize("name", [".RUN.json", "RUN.json.tmp", "RUN.part"])
def test_unfinished_names_are_left_alone(place: Path, queue: Queue, name: str) -> None:
    (place / "incoming" / name).write_bytes(run_file())
    assert collect(place, queue) == CollectedFiles((), (), ())
    assert content(place) == {**EMPTY, "incoming": [name]}


def changed(**fields: object) -> bytes:
    return json.dumps({**json.loads(run_file()), **fields}).encode()


BAD = [
    pytest.param(b"", "not a JSON document", id="empty"),
    pytest.param(run_file()[:-1], "not a JSON document", id="cut"),
    pytest.param(b"\xef\xbb\xbf" + run_file(), "byte-order mark", id="BOM"),
    pytest.param(b"\xff" + run_file(), "not UTF-8", id="not UTF-8"),
    pytest.param(run_file()[:-1] + b',"seed":null}', "repeats a key", id="twice"),
    pytest.param(changed(extra=1), "extra", id="unknown key"),
    pytest.param(changed(prompt=7), "bad field prompt", id="type"),
    pytest.param(changed(max_tokens=0), "bad field max_tokens", id="range"),
    pytest.param(changed(temperature="0"), "bad field seed", id="a seed without temperature"),
    pytest.param(changed(seed=None), "bad field seed", id="a temperature without seed"),
    pytest.param(changed(schema="dac.Other"), "bad field schema", id="another document"),
    pytest.param(b"[" * 100, "nested too deeply", id="depth"),
]


@pytest.mark.parametrize(("data", "reason"), BAD)
def test_what_is_no_run_is_refused_with_its_reason(
    place: Path, queue: Queue, data: bytes, reason: str
) -> None:
    drop(place, "bad.json", data)
    drop(place, "good.json", run_file(1))
    found = collect(place, queue)
    assert [item.name for item in found.accepted] == ["good.json"]
    (refused,) = found.refused
    assert refused.name == "bad.json"
    assert refused.place.read_bytes() == data
    ((kept, written),) = refused_files(place).values()
    assert kept == data
    assert reason in written
    assert SECRET not in written
    assert all(path.stat().st_mode & 0o077 == 0 for path in (place / "refused").glob("*.reason"))
    assert states(queue) == {"pending": 1}


def test_a_file_beyond_the_bound_is_refused(
    place: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop(place, "big.json", run_file())
    monkeypatch.setattr(spool, "MAX_RUN_BYTES", len(run_file()) - 1)
    assert "too large" in collect(place, queue).refused[0].reason


def test_the_largest_run_fits(place: Path, queue: Queue) -> None:
    data = changed(prompt="\x01" * 2**20, model_path="\x01" * 2**20)
    assert 2 * 6 * 2**20 < len(data) < core.MAX_RUN_BYTES
    drop(place, "largest.json", data)
    assert len(collect(place, queue).accepted) == 1
    assert len(take(queue).run.prompt) == 2**20


def test_a_run_id_of_another_declaration_is_refused(place: Path, queue: Queue) -> None:
    queue.submit(make_run())
    drop(place, "other.json", changed(prompt="other"))
    assert "another declaration" in collect(place, queue).refused[0].reason


def special_symlink(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def special_fifo(path: Path) -> None:
    os.mkfifo(path)


def special_directory(path: Path) -> None:
    path.mkdir()


def special_hard_link(path: Path) -> None:
    other = path.parent.parent / "other"
    other.write_bytes(run_file())
    path.hardlink_to(other)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (special_symlink, "symbolic link"),
        (special_fifo, "not a regular file"),
        (special_directory, "not a regular file"),
        (special_hard_link, "hard links"),
    ],
)
def test_what_is_no_plain_file_is_refused(
    place: Path, queue: Queue, make: Callable[[Path], None], reason: str
) -> None:
    path = place / "incoming" / "odd"
    make(path)
    os.utime(path, (LONG_AGO, LONG_AGO), follow_symlinks=False)
    assert reason in collect(place, queue).refused[0].reason
    assert states(queue) == {}
    refused = [p.name for p in (place / "refused").iterdir() if p.suffix != ".reason"]
    assert len(refused) == 1


def test_odd_names_are_taken_as_they_are(place: Path, queue: Queue) -> None:
    names = ["a b\n?.json", "späte.json", os.fsdecode(b"\xff\xfe"), "x" * 255, "-rf"]
    for number, name in enumerate(names):
        drop(place, name, run_file(number) if number % 2 else b"bad")
    found = collect(place, queue)
    assert len(found.accepted) == 2
    assert len(refused_files(place)) == 3
    assert content(place)["taken"] == content(place)["incoming"] == []


def test_a_file_that_is_still_being_written_is_not_refused(place: Path, queue: Queue) -> None:
    data = run_file()
    careless = place / "incoming" / "RUN.json"
    with careless.open("wb", buffering=0) as file:
        file.write(data[:100])
        found = collect(place, queue)
        assert found.unfinished == ("RUN.json",)
        assert len(content(place)["taken"]) == 1
        file.write(data[100:])
    assert [item.submission.job_id for item in collect(place, queue).accepted] == [job_id()]
    assert content(place) == EMPTY


def test_a_time_in_the_future_leaves_no_file_behind_for_ever(place: Path, queue: Queue) -> None:
    drop(place, "bad.json", b"bad", age=-100_000)
    assert len(collect(place, queue).refused) == 1


def test_the_next_file_of_the_same_name_is_another_one(
    place: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It arrives while the first one is being submitted."""
    drop(place, "RUN.json", run_file(0))
    submit = queue.submit

    def and_meanwhile(run: InferenceRun) -> Submission:
        drop(place, "RUN.json", run_file(1))
        return submit(run)

    monkeypatch.setattr(queue, "submit", and_meanwhile)
    collect(place, queue)
    monkeypatch.undo()
    collect(place, queue)
    assert states(queue) == {"pending": 2}
    assert content(place) == EMPTY


def test_refused_files_of_one_name_are_all_kept(place: Path, queue: Queue) -> None:
    for number in range(3):
        drop(place, "bad.json", b"bad %d" % number)
        collect(place, queue)
    kept = {p.read_bytes() for p in (place / "refused").iterdir() if p.suffix != ".reason"}
    assert kept == {b"bad 0", b"bad 1", b"bad 2"}


def test_what_a_killed_collector_left_is_submitted(place: Path, queue: Queue) -> None:
    """Once before the queue had it, once after, once between a reason and its file."""
    queue.submit(make_run(1))
    token = "0123456789abcdef"
    for number in range(2):
        (place / "taken" / f"{number}.json.{token}").write_bytes(run_file(number))
    bad = place / "taken" / f"bad.json.{token}"
    bad.write_bytes(b"bad")
    os.utime(bad, (LONG_AGO, LONG_AGO))
    (place / "refused" / f"bad.json.{token}.reason").write_text("half a rea")
    found = collect(place, queue)
    assert sorted(item.name for item in found.accepted) == ["0.json", "1.json"]
    assert states(queue) == {"pending": 2}
    assert content(place)["taken"] == []
    assert "half a rea" not in refused_files(place)["bad.json"][1]


def test_an_unavailable_queue_loses_nothing(
    place: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(run: InferenceRun) -> Submission:
        raise UnavailableError("the queue is full")

    for number in range(3):
        drop(place, f"{number}.json", run_file(number))
    with monkeypatch.context() as patch:
        patch.setattr(queue, "submit", refuse)
        with pytest.raises(UnavailableError, match="is full"):
            collect(place, queue)
    assert len(content(place)["taken"]) == 3
    assert len(collect(place, queue).accepted) == 3


def test_collectors_at_the_same_time_submit_each_file_once(place: Path, queue: Queue) -> None:
    for number in range(40):
        drop(place, f"{number}.json", run_file(number))
    accepted: list[str] = []

    def work() -> None:
        accepted.extend(item.submission.created for item in collect(place, queue).accepted)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert accepted == ["new"] * 40
    assert content(place) == EMPTY


def test_a_folder_that_is_held_is_waited_for(
    place: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "_WAIT_SECONDS", 0.01)
    descriptor = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(UnavailableError, match="another process holds the spool folder"):
            collect(place, queue)
    finally:
        os.close(descriptor)


def test_a_folder_of_others_is_refused(place: Path, queue: Queue) -> None:
    for part in ("", "incoming", "taken", "refused"):
        (place / part).chmod(0o755)
        with pytest.raises(UnavailableError, match="open to other users"):
            collect(place, queue)
        (place / part).chmod(0o700)
    (place / "taken").rmdir()
    (place / "taken").symlink_to("/tmp")
    with pytest.raises(UnavailableError, match="symbolic link"):
        collect(place, queue)


def test_a_file_that_may_not_be_read_stops_no_other() -> None:
    def body(directory: Path) -> None:
        place, queue = directory / "spool", memory_queue(TurnedClock())
        collect(place, queue)
        drop(place, "locked.json", run_file(0)).chmod(0)
        drop(place, "good.json", run_file(1))
        found = collect(place, queue)
        assert [item.name for item in found.accepted] == ["good.json"]
        assert "may not be read" in found.refused[0].reason

    run_as_ordinary_user(body)


def test_a_full_disk_loses_nothing(tmp_path: Path, queue: Queue) -> None:
    with small_disk(tmp_path / "disk", "size=64k,mode=0700") as disk:
        collect(disk / "spool", queue)
        drop(disk / "spool", "bad.json", b"bad")
        drop(disk / "spool", "good.json", run_file())
        fill(disk / "filler")
        with pytest.raises(UnavailableError, match="cannot write"):
            collect(disk / "spool", queue)
        (disk / "filler").unlink()
        collect(disk / "spool", queue)
        assert set(refused_files(disk / "spool")) == {"bad.json"}
        assert states(queue) == {"pending": 1}
