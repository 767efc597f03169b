"""Opening only regular files, and moving without ever overwriting."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tallystick.errors import InputError, UnavailableError
from tallystick.models.files import FileIdentity, move_into_place, opened
from tallystick.models.partial import PartialFile
from tests.support.ordinary_user import run_as_ordinary_user


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught, opened(path):
        pass
    return str(caught.value)


def test_a_symlink_to_a_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"x")
    (tmp_path / "link").symlink_to("blob")
    with opened(tmp_path / "link") as descriptor:
        assert os.pread(descriptor, 9, 0) == b"x"
        assert FileIdentity.of(descriptor).inode == (tmp_path / "blob").stat().st_ino
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "empty").touch()
    assert "is a directory" in refusal(tmp_path)
    assert "not a regular file" in refusal(tmp_path / "fifo")
    assert "not a regular file" in refusal(Path("/dev/zero"))
    assert "no such model file" in refusal(tmp_path / "dangling")
    assert "no such model file" in refusal(tmp_path / "empty" / "below")
    assert "cannot open" in refusal(tmp_path / "loop")
    assert "empty file" in refusal(tmp_path / "empty")
    assert "not usable" in refusal(Path("a\0b"))
    assert "cannot open" in refusal(tmp_path / ("n" * 300))


def test_an_unreadable_file_is_refused() -> None:
    def body(folder: Path) -> None:
        path = folder / "secret"
        path.write_bytes(b"x")
        path.chmod(0)
        assert "Permission denied" in refusal(path)

    run_as_ordinary_user(body)


def test_a_move_never_overwrites(tmp_path: Path) -> None:
    partial, final = tmp_path / "p", tmp_path / "f"
    partial.write_bytes(b"new")
    assert move_into_place(partial, final)
    assert (final.read_bytes(), partial.exists()) == (b"new", False)
    assert final.stat().st_nlink == 1
    partial.write_bytes(b"newer")
    assert not move_into_place(partial, final)
    assert (final.read_bytes(), partial.read_bytes()) == (b"new", b"newer")


def test_a_move_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    test_a_move_never_overwrites(tmp_path)


def test_a_move_into_nowhere_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(b"x")
    with pytest.raises(UnavailableError):
        move_into_place(tmp_path / "p", tmp_path / "none" / "f")


def test_a_partial_file_keeps_its_content(tmp_path: Path) -> None:
    final = tmp_path / "home" / "m.gguf"
    with PartialFile(final) as partial:
        partial.append(b"abc")
        partial.append(b"def")
        assert partial.size == 6
    with PartialFile(final) as partial:
        assert partial.size == 6
        assert os.pread(partial.fd, 9, 0) == b"abcdef"
        partial.clear()
    assert list(final.parent.iterdir()) == []


def test_one_partial_file_has_one_writer(tmp_path: Path) -> None:
    final = tmp_path / "home" / "m.gguf"
    with (
        PartialFile(final) as partial,
        pytest.raises(UnavailableError, match="another process"),
        PartialFile(final),
    ):
        pass
    assert partial.fd == -1
    with PartialFile(final):
        pass


def test_a_partial_file_that_was_moved_is_not_written_again(tmp_path: Path) -> None:
    final = tmp_path / "home" / "m.gguf"
    with PartialFile(final) as first:
        first.append(b"abc")
        move_into_place(first.path, final)
        with PartialFile(final) as second:
            second.append(b"x")
    assert final.read_bytes() == b"abc"


@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory"])
def test_a_partial_name_that_is_no_plain_file(kind: str, tmp_path: Path) -> None:
    final = tmp_path / "home" / "m.gguf"
    final.parent.mkdir(mode=0o700)
    path = final.with_name("m.gguf.partial")
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    if kind == "symlink":
        path.symlink_to(victim)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(UnavailableError), PartialFile(final):
        pass
    assert victim.read_bytes() == b"precious"


def test_a_full_disk_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    final = tmp_path / "home" / "m.gguf"
    with PartialFile(final) as partial:
        partial.append(b"kept")
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(UnavailableError) as caught:
            partial.append(b"lost")
    assert caught.value.exit_code == 6
    assert caught.value.found == "No space left on device"
    assert partial.path.read_bytes() == b"kept"
