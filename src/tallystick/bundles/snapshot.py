"""What a run reads of a bundle, frozen in memory (docs/spec/bundles.md#snapshot).

A file is copied into a memory file while it is hashed, from the same buffer; then the copy is
sealed against writing. So what the run reads is what was compared, whatever happens on disk.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from tallystick.bundles.check import CheckedBundle
from tallystick.bundles.hashing import BUFFER_BYTES, Content, read_content
from tallystick.bundles.tree import TreeProblemError, opened_below, opened_file, opened_root
from tallystick.errors import EvidenceError, InputError

MAX_SNAPSHOT_FILES: Final = 256
MAX_SNAPSHOT_BYTES: Final = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SealedFile:
    """One file as a read-only descriptor; closed with the snapshot that it belongs to."""

    path: str
    descriptor: int
    size: int
    sha256: str


class SealedFiles:
    """The files of a snapshot by path; a context manager that closes them all."""

    def __init__(self, files: Sequence[SealedFile]) -> None:
        self.files = tuple(files)
        self._by_path = {file.path: file for file in self.files}

    def __getitem__(self, path: str) -> SealedFile:
        return self._by_path[path]

    def read(self, path: str) -> bytes:
        """Return the bytes of a file. Raises KeyError when it is not in the snapshot."""
        file = self._by_path[path]
        return os.pread(file.descriptor, file.size, 0)

    def close(self) -> None:
        """Close every descriptor; the memory goes with the last one."""
        files, self.files, self._by_path = self.files, (), {}
        for file in files:
            os.close(file.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def snapshot(bundle: CheckedBundle, paths: Sequence[str] | None = None) -> SealedFiles:
    """Return copies of files of ``bundle`` that nobody can change; None means all of the task's.

    Raises EvidenceError when a file is not any more what the manifest declares; InputError for a
    path that it does not declare, more than MAX_SNAPSHOT_FILES files or MAX_SNAPSHOT_BYTES bytes.
    """
    declared = {file.path: file for file in bundle.manifest.all_files()}
    if paths is None:
        paths = [file.path for file in bundle.manifest.task.files]
    wanted = list(dict.fromkeys(paths))
    unknown = [path for path in wanted if path not in declared]
    if unknown:
        raise InputError("the bundle declares no such file", found=ascii(unknown[0][:200]))
    size = sum(declared[path].size for path in wanted)
    if len(wanted) > MAX_SNAPSHOT_FILES or size > MAX_SNAPSHOT_BYTES:
        raise InputError(
            "too much to hold in memory for one run",
            expected=f"at most {MAX_SNAPSHOT_FILES} files, {MAX_SNAPSHOT_BYTES} bytes",
            found=f"{len(wanted)} files, {size} bytes",
        )
    done: list[SealedFile] = []
    try:
        with opened_root(bundle.directory) as root:
            for path in wanted:
                content = Content(declared[path].size, declared[path].sha256)
                done.append(_sealed_copy(root, path, content))
    except BaseException as error:
        SealedFiles(done).close()
        raise _explained(error) from None
    return SealedFiles(done)


def _sealed_copy(root: int, path: str, wanted: Content) -> SealedFile:
    folder, _, name = path.rpartition("/")
    copy = _memory_file()
    try:
        with opened_below(root, folder) as directory, opened_file(directory, name, path) as file:
            if os.fstat(file).st_size != wanted.size:
                raise TreeProblemError(path, "its size is not the declared one")
            found = read_content(
                file, path, bytearray(BUFFER_BYTES), lambda piece: _write_all(copy, piece)
            ).content
        if found != wanted:
            raise TreeProblemError(path, f"its sha256 is {found.sha256}, not the declared one")
        _seal(copy)
        os.lseek(copy, 0, os.SEEK_SET)
    except BaseException:
        os.close(copy)
        raise
    return SealedFile(path, copy, found.size, found.sha256)


def _memory_file() -> int:
    """Return a new memory file that can be sealed; without such, a file that has no name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("bundle", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _seal(descriptor: int) -> None:
    if hasattr(os, "memfd_create"):
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)


def _write_all(descriptor: int, piece: memoryview) -> None:
    while piece:
        piece = piece[os.write(descriptor, piece) :]


def _explained(error: BaseException) -> BaseException:
    if isinstance(error, TreeProblemError):
        return EvidenceError(
            f"bundle: {error.message}", expected="what was checked", hint=error.hint
        )
    if isinstance(error, OSError):
        return InputError("cannot read the bundle", found=error.strerror)
    return error
