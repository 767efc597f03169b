"""Files that hold secrets: how they are created and read (docs/spec/keys.md#files).

A file appears under its name complete or not at all, and never replaces another one. What is
read back must be a plain file that only its owner can reach.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallystick.contracts.layout import PRIVATE_MODE
from tallystick.errors import InputError
from tallystick.store.files import opened_directory
from tallystick.store.home import ensure_private_dir, make_private_dirs, unavailable

_OTHERS: Final = 0o077
_PUBLIC_PEM: Final = b"-----BEGIN PUBLIC KEY-----"
# O_NONBLOCK: a FIFO must be refused, not waited for.
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class SecretKind:
    """What a secret file is called, and what to do when one is missing or was open to others."""

    name: str
    missing: str
    exposed: str
    foreign: str


KEY_FILE: Final = SecretKind(
    name="key file",
    missing="`tallystick keys new` makes one; `tallystick run` makes the default one",
    exposed="check that it is a private key file; if others can have read it, make a new key,"
    " else take the rights of group and others away",
    foreign="run as the owner, or make a key of your own",
)


@contextmanager
def private_directory(path: Path) -> Iterator[int]:
    """Open ``path`` (created 0700, parents too) and hold its lock; yields the descriptor.

    Cooperating processes take turns, so that two first uses create one key. Raises
    UnavailableError when the directory cannot be created or opened, is a symlink, another user's,
    or open to others.
    """
    ensure_private_dir(path)
    with _unavailable(path), opened_directory(path) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor


@contextmanager
def parent_directory(path: Path) -> Iterator[int]:
    """Open the directory of ``path``, of any mode, created 0700 when missing; no lock.

    Raises UnavailableError when it cannot be created or opened.
    """
    with _unavailable(path.parent):
        make_private_dirs(path.parent)
        # The parent may well be a symlink: the user named it.
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def create_file(directory: int, path: Path, data: bytes, mode: int) -> None:
    """Write ``data`` as ``path.name`` in ``directory``: whole, durable, never over another file.

    Raises InputError when the name is taken, UnavailableError when the place cannot be written.
    """
    temporary = f".{path.name}.{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with _unavailable(path):
        descriptor = os.open(temporary, flags, PRIVATE_MODE, dir_fd=directory)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(descriptor, mode)
                os.fsync(descriptor)
            # A link, unlike a rename, fails when the name is taken.
            os.link(
                temporary,
                path.name,
                src_dir_fd=directory,
                dst_dir_fd=directory,
                follow_symlinks=False,
            )
        except FileExistsError:
            raise already_there(path) from None
        finally:
            os.unlink(temporary, dir_fd=directory)
        os.fsync(directory)


def already_there(path: Path) -> InputError:
    """Return the error for a name that is taken."""
    return InputError(
        "the file exists and is never overwritten",
        found=str(path),
        hint="choose another path, or move the old file away and keep it",
    )


def read_secret(
    path: Path,
    *,
    max_bytes: int,
    directory: int | None = None,
    modes: tuple[int, ...] = (),
    kind: SecretKind = KEY_FILE,
) -> bytes:
    """Return the content of a secret file; with ``directory``, ``path.name`` is opened under it.

    ``modes``, when there are any, are the only permission bits it may have. Raises InputError when
    the file is missing, a symlink, no plain file, another user's, readable by group or others, of
    another mode, linked more than once, or larger than ``max_bytes``.
    """
    name = path if directory is None else Path(path.name)
    try:
        descriptor = os.open(name, _READ_FLAGS, dir_fd=directory)
    except FileNotFoundError:
        raise InputError(
            f"the {kind.name} does not exist",
            found=str(path),
            hint=kind.missing,
        ) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError(
                f"the {kind.name} is a symlink",
                found=str(path),
                hint="give the path of the file itself",
            ) from None
        raise InputError(
            f"the {kind.name} cannot be opened", found=f"{path}: {os.strerror(error.errno or 0)}"
        ) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"the {kind.name} is not a plain file", found=str(path))
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)
        # Before the mode: what to do about that is wrong advice for a file that is no secret.
        if kind is KEY_FILE and data.lstrip().startswith(_PUBLIC_PEM):
            raise _public_key(path)
        _check_secret_file(status, path, modes, kind)
    finally:
        os.close(descriptor)
    if len(data) > max_bytes:
        raise InputError(
            f"the {kind.name} is too large",
            expected=f"at most {max_bytes} bytes",
            found=str(path),
        )
    return data


def _public_key(path: Path) -> InputError:
    return InputError(
        "this is a public key, and a private key was expected",
        expected="a signing key file, as `tallystick keys new` writes it",
        found=f"{path}: a PEM block 'PUBLIC KEY'",
        hint="give the private key file; `keys new` wrote the public one beside it, with .pub.pem",
    )


def _check_secret_file(
    status: os.stat_result, path: Path, modes: tuple[int, ...], kind: SecretKind
) -> None:
    _check_owner_only(status, path, kind)
    mode = stat.S_IMODE(status.st_mode)
    if modes and mode not in modes:
        raise InputError(
            f"the {kind.name} has an unusual mode",
            expected=" or ".join(f"mode {allowed:04o}" for allowed in modes),
            found=f"{path}: mode {mode:04o}",
            hint=f"chmod {modes[-1]:o} {path}",
        )
    if status.st_nlink != 1:
        raise InputError(
            f"the {kind.name} has more than one name",
            expected="one hard link",
            found=f"{path}: {status.st_nlink} links",
            hint="copy it to a new file of mode 600 and remove the other names",
        )


def _check_owner_only(status: os.stat_result, path: Path, kind: SecretKind) -> None:
    if status.st_uid != os.geteuid():
        raise InputError(
            f"the {kind.name} belongs to another user",
            expected=f"user id {os.geteuid()}",
            found=f"{path}: user id {status.st_uid}",
            hint=kind.foreign,
        )
    if status.st_mode & _OTHERS:
        raise InputError(
            f"the {kind.name} is open to other users",
            expected=f"mode {PRIVATE_MODE:o}",
            found=f"{path}: mode {stat.S_IMODE(status.st_mode):o}",
            hint=kind.exposed,
        )


@contextmanager
def _unavailable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unavailable(path, error) from None
