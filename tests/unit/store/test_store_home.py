from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tallystick.errors import UnavailableError
from tallystick.store.home import ensure_private_dir, home
from tests.support.ordinary_user import run_as_ordinary_user


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TALLYSTICK_HOME": "/a/b", "XDG_DATA_HOME": "/x", "HOME": "/h"}, "/a/b"),
        ({"XDG_DATA_HOME": "/x", "HOME": "/h"}, "/x/tallystick"),
        ({"XDG_DATA_HOME": "relative", "HOME": "/h"}, "/h/.local/share/tallystick"),
        ({"TALLYSTICK_HOME": "", "HOME": "/h"}, "/h/.local/share/tallystick"),
    ],
)
def test_home_comes_from_the_environment(environment: dict[str, str], expected: str) -> None:
    assert home(environment) == Path(expected)


def test_every_missing_level_is_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        ensure_private_dir(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert ensure_private_dir(tmp_path / "a" / "b") == tmp_path / "a" / "b"


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o720, 0o770])
def test_a_directory_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d").chmod(mode)
    with pytest.raises(UnavailableError, match="open to other users") as caught:
        ensure_private_dir(tmp_path / "d")
    assert "chmod 700" in str(caught.value)


def test_links_and_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match="symbolic link"):
        ensure_private_dir(tmp_path / "link")
    with pytest.raises(UnavailableError, match="not a directory"):
        ensure_private_dir(tmp_path / "file")
    with pytest.raises(UnavailableError, match="cannot write"):
        ensure_private_dir(tmp_path / "file" / "below")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make another user's directory")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 12345, 12345)
    with pytest.raises(UnavailableError, match="another user"):
        ensure_private_dir(tmp_path / "theirs")


def test_nothing_is_left_when_a_level_cannot_be_made() -> None:
    def body(directory: Path) -> None:
        (directory / "closed").mkdir(mode=0o500)
        with pytest.raises(UnavailableError):
            ensure_private_dir(directory / "closed" / "a" / "b")
        assert os.listdir(directory / "closed") == []

    run_as_ordinary_user(body)
