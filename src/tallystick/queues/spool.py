"""The spool folder: a run is submitted by dropping a file (docs/spec/queue.md#spool-folder).

Whatever was dropped is in exactly one place: waiting in ``incoming``, being submitted in ``taken``,
in the queue, or in ``refused`` beside the reason.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallystick.contracts.layout import PRIVATE_MODE
from tallystick.errors import EvidenceError, InputError
from tallystick.queues.core import MAX_RUN_BYTES
from tallystick.queues.port import Queue, Submission
from tallystick.queues.runfile import parse_run
from tallystick.store.database.place import locked
from tallystick.store.files import read_plain, remove, write_new
from tallystick.store.home import ensure_private_dir, unavailable

INCOMING: Final = "incoming"
TAKEN: Final = "taken"
REFUSED: Final = "refused"
REASON_SUFFIX: Final = ".reason"
_UNFINISHED: Final = (".tmp", ".part")
_SETTLED_SECONDS: Final = 2.0
_WAIT_SECONDS: Final = 30.0
_MARK: Final = re.compile(r"\.[0-9a-f]{16}\Z")
_LONGEST_NAME: Final = 200  # bytes; the rest is room for what is added to it


@dataclass(frozen=True, slots=True)
class AcceptedFile:
    """A dropped file whose run is in the queue."""

    name: str
    submission: Submission


@dataclass(frozen=True, slots=True)
class RefusedFile:
    """A dropped file that is no run, where it is now, and why."""

    name: str
    place: Path
    reason: str


@dataclass(frozen=True, slots=True)
class CollectedFiles:
    """What one look at the spool folder found; ``unfinished`` files are left for the next one."""

    accepted: tuple[AcceptedFile, ...]
    refused: tuple[RefusedFile, ...]
    unfinished: tuple[str, ...]


def collect(spool: Path, queue: Queue) -> CollectedFiles:
    """Submit every run that was dropped into ``spool``, which is created when it is missing.

    A file that is no run is moved aside with its reason, and stops no other. Any number of
    processes may collect at a time. Raises UnavailableError when the folder or the queue cannot be
    used; what was not submitted then is still there.
    """
    for directory in (spool, spool / INCOMING, spool / TAKEN, spool / REFUSED):
        ensure_private_dir(directory)
    try:
        with (
            _directories(spool) as folders,
            locked(folders.spool, _WAIT_SECONDS, kind="spool folder"),
        ):
            return _collect(spool, folders, queue)
    except OSError as error:
        raise unavailable(spool, error) from error


@dataclass(frozen=True, slots=True)
class _Folders:
    spool: int
    incoming: int
    taken: int
    refused: int


@contextlib.contextmanager
def _directories(spool: Path) -> Iterator[_Folders]:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.ExitStack() as stack:
        found = [os.open(spool, flags)]
        stack.callback(os.close, found[0])
        for name in (INCOMING, TAKEN, REFUSED):
            found.append(os.open(name, flags, dir_fd=found[0]))
            stack.callback(os.close, found[-1])
        yield _Folders(*found)


def _collect(spool: Path, folders: _Folders, queue: Queue) -> CollectedFiles:
    _remove_half_written(folders.refused)
    _take_dropped(folders)
    accepted: list[AcceptedFile] = []
    refused: list[RefusedFile] = []
    unfinished: list[str] = []
    for name in _oldest_first(folders.taken):
        dropped = _MARK.sub("", name)
        try:
            submission = queue.submit(parse_run(_read(folders.taken, name), where="the file"))
        except (EvidenceError, InputError) as error:
            if _may_be_unfinished(folders.taken, name):
                unfinished.append(dropped)
                continue
            _refuse(folders, name, str(error))
            refused.append(RefusedFile(dropped, spool / REFUSED / name, error.message))
        else:
            os.unlink(name, dir_fd=folders.taken)  # the queue has it, durably
            accepted.append(AcceptedFile(dropped, submission))
    return CollectedFiles(tuple(accepted), tuple(refused), tuple(unfinished))


def _remove_half_written(directory: int) -> None:
    """Remove the reasons that a collector was killed in the middle of writing."""
    for name in os.listdir(directory):
        if name.startswith(".") and _MARK.search(name):  # no dropped file is called so
            remove(directory, name)


def _take_dropped(folders: _Folders) -> None:
    """Move what was dropped out of the droppers' reach, each file under a name of its own."""
    for name in os.listdir(folders.incoming):
        if name.startswith(".") or name.endswith(_UNFINISHED):
            continue
        stem = os.fsdecode(os.fsencode(name)[:_LONGEST_NAME])
        own = f"{stem}.{secrets.token_hex(8)}"
        with contextlib.suppress(FileNotFoundError):  # its dropper took it back
            os.rename(name, own, src_dir_fd=folders.incoming, dst_dir_fd=folders.taken)


def _read(directory: int, name: str) -> bytes:
    try:
        data, _ = read_plain(directory, name, max_bytes=MAX_RUN_BYTES)
    except PermissionError:
        raise InputError(
            "the file may not be read", hint="drop files that the worker's user can read"
        ) from None
    return data


def _oldest_first(directory: int) -> list[str]:
    def age(name: str) -> tuple[int, str]:
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
        return info.st_mtime_ns, name

    return [name for _, name in sorted(map(age, os.listdir(directory)))]


def _may_be_unfinished(directory: int, name: str) -> bool:
    """Say whether a file changed so lately that its writer may still be at it."""
    age = time.time() - os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime
    return 0 <= age < _SETTLED_SECONDS  # a time in the future says nothing


def _refuse(folders: _Folders, name: str, reason: str) -> None:
    # The reason first: a file that was refused never lacks it, wherever the process ends.
    remove(folders.refused, name + REASON_SUFFIX)
    data = f"{reason}\n".encode("utf-8", "backslashreplace")
    write_new(folders.refused, name + REASON_SUFFIX, data, PRIVATE_MODE)
    os.rename(name, name, src_dir_fd=folders.taken, dst_dir_fd=folders.refused)
    os.fsync(folders.refused)
