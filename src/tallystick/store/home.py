"""Where things live on the user's disk."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from tallystick.contracts.layout import DIRECTORY_MODE
from tallystick.errors import InputError, UnavailableError

HOME_VARIABLE = "TALLYSTICK_HOME"


def home(environment: Mapping[str, str] | None = None) -> Path:
    """Return the user's data folder; nothing is created.

    ``$TALLYSTICK_HOME``, or ``$XDG_DATA_HOME/tallystick``, or ``~/.local/share/tallystick``.
    Relative values of the XDG variable are ignored, as its specification asks.
    """
    env = os.environ if environment is None else environment
    if own := env.get(HOME_VARIABLE):
        return user_path(own).absolute()
    if (base := env.get("XDG_DATA_HOME")) and os.path.isabs(base):
        return Path(base) / "tallystick"
    return Path(env.get("HOME") or Path.home()) / ".local" / "share" / "tallystick"


def owned(info: os.stat_result) -> bool:
    """Say whether only we can have written a file: what others can write decides nothing here."""
    return info.st_uid == os.geteuid() and not info.st_mode & 0o022


def user_path(text: str) -> Path:
    """Return a path that a user gave, ``~`` resolved.

    Raises InputError for an unknown user, and for a NUL, which no path has.
    """
    if "\0" in text:
        raise InputError("a path holds a NUL character", found=ascii(text[:200]))
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise InputError(
            "the path names a user that does not exist",
            found=text[:200],
            hint="write ./~name for a file that is called so",
        ) from None


def ensure_private_dir(path: Path) -> Path:
    """Return ``path`` as a directory that only its owner can enter, created when it is missing.

    Missing parents are created 0700 too. Raises UnavailableError when it cannot be created, is a
    symlink or no directory, belongs to someone else, or is open to group or others.
    """
    try:
        make_private_dirs(path)
        info = path.lstat()
    except OSError as error:
        raise unavailable(path, error) from error
    require_private(path, info)
    return path


def make_private_dirs(path: Path) -> tuple[Path, ...]:
    """Create ``path`` and its missing parents, mode 0700; return what was created, outermost first.

    Raises OSError, and then nothing that was created here is left.
    """
    missing = []
    current = path
    while not os.path.lexists(current):
        missing.append(current)
        current = current.parent
    created: list[Path] = []
    try:
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):  # what another made is checked like any
                directory.mkdir(mode=DIRECTORY_MODE)
                created.append(directory)
                directory.chmod(DIRECTORY_MODE)  # whatever the umask was
    except OSError:
        remove_empty(created)
        raise
    return tuple(created)


def remove_empty(directories: Sequence[Path]) -> None:
    """Remove directories, innermost (last) first, as far as they are empty."""
    for directory in reversed(directories):
        with contextlib.suppress(OSError):
            directory.rmdir()


def require_private(path: Path, info: os.stat_result) -> None:
    """Raise UnavailableError unless ``info`` is a directory that only its owner, we, can enter."""
    if stat.S_ISLNK(info.st_mode):
        raise UnavailableError(f"{path} is a symbolic link", hint="name the directory itself")
    if not stat.S_ISDIR(info.st_mode):
        raise UnavailableError(f"{path} is not a directory")
    if info.st_uid != os.geteuid():
        raise UnavailableError(
            f"{path} belongs to another user",
            expected=f"owner {os.geteuid()}",
            found=f"owner {info.st_uid}",
        )
    mode = stat.S_IMODE(info.st_mode)
    if mode & 0o077:
        raise UnavailableError(
            f"{path} is open to other users",
            expected="mode 0700",
            found=f"mode {mode:04o}",
            hint=f"chmod 700 {path}",
        )


def unavailable(path: Path, error: OSError) -> UnavailableError:
    """Return the UnavailableError that says why ``path`` cannot be used."""
    return UnavailableError(
        f"cannot write to {path}",
        found=error.strerror or type(error).__name__,
        hint="choose another place, or make room and permission there",
    )
