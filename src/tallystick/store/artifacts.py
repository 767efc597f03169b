"""Writing one artifact set: whole, or nothing of it (docs/spec/artifact-set.md)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tallystick.contracts.layout import (
    PRIVATE_MODE,
    PUBLIC_MODE,
    Visibility,
    split_name,
)
from tallystick.errors import UnavailableError
from tallystick.store.files import opened_directory, remove, write_new
from tallystick.store.home import make_private_dirs, remove_empty, require_private, unavailable
from tallystick.store.pending import make_pending, pending_path

_PROBE_BYTES = 64 * 1024  # about the size of a small set


@dataclass(frozen=True, slots=True)
class Member:
    """One file of a set. ``data`` stays out of the repr, because it may be private."""

    name: str
    data: bytes = field(repr=False)
    visibility: Visibility

    @property
    def mode(self) -> int:
        """The exact permission bits the file gets."""
        return PUBLIC_MODE if self.visibility == "public" else PRIVATE_MODE


def remove_set(directory: Path, marker: str) -> None:
    """Remove a set that shall not count: its ``marker`` first, so that no part looks whole.

    Raises UnavailableError.
    """
    try:
        with opened_directory(directory) as descriptor:
            os.unlink(marker, dir_fd=descriptor)
            os.fsync(descriptor)
            for name in os.listdir(descriptor):
                os.unlink(name, dir_fd=descriptor)
        directory.rmdir()
    except OSError as error:
        raise unavailable(directory, error) from error


def prepare(directory: Path) -> OutputPlace:
    """Claim ``directory`` before a run, so that a place that cannot be written fails early.

    It is created 0700 when missing; otherwise it must be an empty directory of ours that nobody
    else can enter. Use the result as a context manager: leaving it without a completed
    :meth:`OutputPlace.write` removes what was created. Raises UnavailableError.
    """
    return OutputPlace(directory, final=None)


def prepare_under(parent: Path) -> OutputPlace:
    """Claim a place in ``parent`` whose directory gets the name ``<id>`` with the completed set."""
    return OutputPlace(pending_path(parent), final=parent)


class OutputPlace:
    """A claimed output directory; see :func:`prepare` and :func:`prepare_under`."""

    def __init__(self, directory: Path, *, final: Path | None) -> None:
        self.directory = directory
        self._final = final
        self._created: tuple[Path, ...] = ()
        self._lock: int | None = None
        try:
            if final is None:
                self._created = make_private_dirs(directory)
            else:
                self._created, self._lock = make_pending(directory)
            self._probe()
        except OSError as error:
            self.release()
            raise unavailable(directory, error) from error
        except BaseException:
            self.release()
            raise

    def _probe(self) -> None:
        require_private(self.directory, self.directory.lstat())
        name = "probe"
        with opened_directory(self.directory) as descriptor:
            if os.listdir(descriptor):
                raise UnavailableError(
                    f"{self.directory} is not empty",
                    expected="a new or empty directory",
                    hint="choose another place: nothing is ever overwritten",
                )
            try:
                write_new(descriptor, name, bytes(_PROBE_BYTES), PRIVATE_MODE)
            finally:
                remove(descriptor, name)

    def write(self, members: Sequence[Member], marker: Member) -> Path:
        """Write the set and return the directory that holds it.

        Every member goes to a temporary name, is synced and renamed without overwriting; the
        marker comes last. On any failure everything this call wrote is removed. Raises
        UnavailableError.
        """
        try:
            with opened_directory(self.directory) as descriptor:
                self._write_all(descriptor, members, marker)
        except OSError as error:
            raise unavailable(self.directory, error) from error
        self._created = ()
        self._unlock()
        return self.directory

    def _write_all(self, descriptor: int, members: Sequence[Member], marker: Member) -> None:
        if os.listdir(descriptor):
            raise UnavailableError(f"something else was written into {self.directory} meanwhile")
        try:
            for member in members:
                write_new(descriptor, member.name, member.data, member.mode)
            os.fsync(descriptor)  # the members are durable before the marker exists
            write_new(descriptor, marker.name, marker.data, marker.mode)
            os.fsync(descriptor)
            self._publish(marker)
        except BaseException:
            for name in (marker.name, *(member.name for member in members)):
                remove(descriptor, name)
            raise

    def _publish(self, marker: Member) -> None:
        """Give a pending directory its name, and make its entry durable."""
        if self._final is not None:
            parts = split_name(marker.name)
            if parts is None:
                raise ValueError("the marker's name carries no id")
            target = self._final / parts[0]
            if os.path.lexists(target):
                raise UnavailableError(f"{target} exists already")
            self.directory.rename(target)
            self._created = (*self._created[:-1], target)
            self.directory = target
        with opened_directory(self.directory.parent) as parent:
            os.fsync(parent)

    def keep(self) -> None:
        """Leave what was created here: something other than a set was written into it."""
        self._created = ()

    def release(self) -> None:
        """Remove what was created here, unless a set was completed in it."""
        remove_empty(self._created)
        self._created = ()
        self._unlock()

    def _unlock(self) -> None:
        """Let go of a pending directory: until then nobody sweeps it away."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
