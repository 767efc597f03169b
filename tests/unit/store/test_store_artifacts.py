from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from tallystick.errors import UnavailableError
from tallystick.store.artifacts import Member, prepare, prepare_under
from tests.support.ordinary_user import run_as_ordinary_user
from tests.support.small_disk import small_disk
from tests.support.written import write_set

ID = "0123456789abcdef0123456789abcdef"
MEMBERS = (
    Member(f"{ID}.geoai.json", b"{}", "public"),
    Member(f"{ID}.palw.bundle", b"secret", "private"),
)
MARKER = Member(f"{ID}.complete", b"[]", "public")


def listing(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_modes_are_exact_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_set(tmp_path / "out", MEMBERS, MARKER)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700
    assert listing(tmp_path / "out") == {
        f"{ID}.geoai.json": 0o644,
        f"{ID}.palw.bundle": 0o600,
        f"{ID}.complete": 0o644,
    }
    assert (tmp_path / "out" / f"{ID}.palw.bundle").read_bytes() == b"secret"


def test_the_marker_is_the_last_file_to_appear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    rename = os.rename

    def recorded(source: str, target: str, **fds: int) -> None:
        names.append(target)
        rename(source, target, **fds)

    monkeypatch.setattr(os, "rename", recorded)
    write_set(tmp_path / "out", MEMBERS, MARKER)
    assert names == ["probe", *(member.name for member in MEMBERS), MARKER.name]


def test_a_private_member_hides_its_data() -> None:
    assert "secret" not in repr(MEMBERS[1])


def test_an_empty_directory_of_ours_will_do(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir(mode=0o700)
    assert write_set(tmp_path / "out", MEMBERS, MARKER) == tmp_path / "out"


@pytest.mark.parametrize("kind", ["full", "open", "link", "file", "dangling"])
def test_other_places_are_refused_and_untouched(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "out"
    if kind in ("full", "open"):
        place.mkdir(mode=0o700)
        place.chmod(0o755 if kind == "open" else 0o700)
    if kind == "full":
        (place / "mine").write_bytes(b"kept")
    if kind == "link":
        (tmp_path / "real").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "real")
    if kind == "dangling":
        place.symlink_to(tmp_path / "nowhere")
    if kind == "file":
        place.write_bytes(b"kept")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(UnavailableError):
        write_set(place, MEMBERS, MARKER)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_leaving_without_writing_removes_what_was_made(tmp_path: Path) -> None:
    with prepare(tmp_path / "a" / "b") as place:
        assert place.directory.is_dir()
        assert list(place.directory.iterdir()) == []
    assert list(tmp_path.iterdir()) == []


def test_leaving_keeps_a_directory_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir(mode=0o700)
    with prepare(tmp_path / "out"):
        pass
    assert (tmp_path / "out").is_dir()


def test_what_came_meanwhile_is_neither_overwritten_nor_removed(tmp_path: Path) -> None:
    with prepare(tmp_path / "out") as place:
        (place.directory / MARKER.name).write_bytes(b"another run")
        with pytest.raises(UnavailableError, match="meanwhile"):
            place.write(MEMBERS, MARKER)
    assert listing(tmp_path / "out").keys() == {MARKER.name}
    assert (tmp_path / "out" / MARKER.name).read_bytes() == b"another run"


def test_a_pending_place_gets_the_id_as_its_name(tmp_path: Path) -> None:
    with prepare_under(tmp_path / "receipts") as place:
        result = place.write(MEMBERS, MARKER)
    assert result == tmp_path / "receipts" / ID
    assert len(listing(result)) == 3
    assert [path.name for path in (tmp_path / "receipts").iterdir()] == [ID]


def test_a_pending_place_leaves_nothing_when_its_name_is_taken(tmp_path: Path) -> None:
    (tmp_path / "receipts" / ID).mkdir(parents=True)
    with prepare_under(tmp_path / "receipts") as place, pytest.raises(UnavailableError):
        place.write(MEMBERS, MARKER)
    assert [path.name for path in (tmp_path / "receipts").rglob("*")] == [ID]


@pytest.mark.parametrize("failing", range(3))
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_failure_at_any_file_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int, error: BaseException
) -> None:
    place = prepare(tmp_path / "deep" / "out")
    syncs = 0
    fsync = os.fsync

    def failing_fsync(descriptor: int) -> None:
        nonlocal syncs
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            if syncs == failing:
                raise error
            syncs += 1
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing_fsync)
    expected = UnavailableError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected), place:
        place.write(MEMBERS, MARKER)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o500, 0o000])
def test_an_unwritable_place_fails_before_the_run(mode: int) -> None:
    def body(directory: Path) -> None:
        parent = directory / "parent"
        parent.mkdir()
        parent.chmod(mode)
        with pytest.raises(UnavailableError, match="Permission denied") as caught:
            prepare(parent / "out")
        assert caught.value.exit_code == 6
        parent.chmod(0o700)
        assert list(parent.iterdir()) == []

    run_as_ordinary_user(body)


def test_a_full_disk_is_noticed_before_the_run(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=64k,mode=700") as disk:
        (disk / "filler").write_bytes(bytes(8192))
        with pytest.raises(UnavailableError, match="No space left"):
            prepare(disk / "out")
        assert [path.name for path in disk.iterdir()] == ["filler"]


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path) -> None:
    big = Member(f"{ID}.telemetry.jsonl", bytes(512 * 1024), "public")
    with (
        small_disk(tmp_path / "disk", "size=256k,mode=700") as disk,
        prepare(disk / "out") as place,
    ):
        with pytest.raises(UnavailableError, match="No space left"):
            place.write((*MEMBERS, big), MARKER)
        assert list(place.directory.iterdir()) == []
        place.release()
        assert list(disk.iterdir()) == []


def test_a_read_only_disk_is_noticed_before_the_run(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=64k,ro") as disk:
        with pytest.raises(UnavailableError, match="Read-only") as caught:
            prepare(disk / "out")
        assert caught.value.exit_code == 6
