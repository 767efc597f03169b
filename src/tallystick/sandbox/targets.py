"""What the probes reach for: made by the supervisor anew for each sandbox, and gone after it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from tallystick.contracts.types import U64, IntRange, MaxLength
from tallystick.store.flocks import lock

Port = Annotated[int, IntRange(0, 65535)]
Number = Annotated[int, IntRange(0, 2**31 - 1)]
Name = Annotated[str, MaxLength(1024)]

# What is not there: a port on which nobody listens.
_ANYWAY: Final = 9
_LONG_PLACE: Final = 60
_PREFIX: Final = "tallystick-probe-"
_HOUR: Final = 3600.0
_SECRET: Final = ctypes.create_string_buffer(b"a word of the supervisor", 32)


@dataclass(frozen=True, slots=True)
class TargetNames:
    """Ports, names and numbers of the targets, for the probes.

    The inherited ones are numbers of descriptors that leak into the child on purpose.
    ``parent_address`` is where the supervisor keeps some readable bytes.
    """

    tcp4: Port
    tcp6: Port
    udp4: Port
    udp6: Port
    folder: Name
    unix_name: Name
    file_name: Name
    abstract: Name
    inherited_tcp: Number
    inherited_unix: Number
    inherited_file: Number
    parent: Number
    parent_address: U64

    def inherited(self) -> tuple[int, ...]:
        """Return the descriptors that have to be passed to the child."""
        return (self.inherited_tcp, self.inherited_unix, self.inherited_file)


@contextlib.contextmanager
def targets() -> Iterator[TargetNames]:
    """Make the targets; they are closed and removed when the body is left. Raises OSError."""
    with contextlib.ExitStack() as stack:
        _sweep(_place() or tempfile.gettempdir())
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_place()))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(os.close, _held(folder))
        # Another user than ours has to be able to reach in, or a probe would prove nothing.
        folder.chmod(0o777)
        file = folder / "file"
        file.write_bytes(b"outside")
        file.chmod(0o644)
        tcp4 = _listener(stack, socket.AF_INET, "127.0.0.1")
        leaked = stack.enter_context(socket.socket())
        with contextlib.suppress(OSError):  # no loopback here: the control will say so
            leaked.connect(("127.0.0.1", tcp4))
        abstract = f"tallystick-{secrets.token_hex(16)}"
        _unix_listener(stack, f"\0{abstract}")
        _unix_listener(stack, f"{folder}/socket")
        (folder / "socket").chmod(0o777)
        left, right = socket.socketpair()
        stack.enter_context(left)
        stack.enter_context(right)
        leaked_file = os.open(folder / "leaked", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, leaked_file)
        yield TargetNames(
            tcp4=tcp4,
            tcp6=_listener(stack, socket.AF_INET6, "::1"),
            udp4=_receiver(stack, socket.AF_INET, "127.0.0.1"),
            udp6=_receiver(stack, socket.AF_INET6, "::1"),
            folder=str(folder),
            unix_name="socket",
            file_name="file",
            abstract=abstract,
            inherited_tcp=leaked.fileno(),
            inherited_unix=right.fileno(),
            inherited_file=leaked_file,
            parent=os.getpid(),
            parent_address=ctypes.addressof(_SECRET),
        )


def _place() -> str | None:
    """A socket's path has little room: a long temporary folder would not leave any."""
    place = tempfile.gettempdir()
    # tempfile then makes a folder of its own in it, with an unguessable name and mode 0700.
    return "/tmp" if len(place) > _LONG_PLACE else None  # noqa: S108


def _held(folder: str | Path) -> int:
    """Return a descriptor that holds ``folder``: while it is open, nobody sweeps it away."""
    return _locked(folder)[0]


def _locked(folder: str | Path) -> tuple[int, bool]:
    """Return a descriptor of ``folder``, and whether it is locked: not all file systems can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return descriptor, lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise


def _sweep(place: str) -> None:
    """Remove what supervisors that were killed have left in ``place``.

    Only what is old: another's new folder exists for a moment before it is held.
    """
    found: list[os.DirEntry[str]] = []
    # A shared place need not be one that everybody can list.
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        found = [entry for entry in entries if entry.name.startswith(_PREFIX)]
    for entry in found:
        with contextlib.suppress(OSError):  # held, another user's, or gone by now
            info = entry.stat(follow_symlinks=False)
            if info.st_uid == os.geteuid() and time.time() - info.st_mtime > _HOUR:
                descriptor, ours = _locked(entry.path)
                os.close(descriptor)
                if ours:
                    shutil.rmtree(entry.path, ignore_errors=True)


def _listener(stack: contextlib.ExitStack, family: int, address: str) -> int:
    return _bound(stack, family, socket.SOCK_STREAM, address)


def _receiver(stack: contextlib.ExitStack, family: int, address: str) -> int:
    return _bound(stack, family, socket.SOCK_DGRAM, address)


def _bound(stack: contextlib.ExitStack, family: int, kind: int, address: str) -> int:
    """Return the port that is bound, or that of nobody where the machine has no such addresses."""
    try:
        bound = stack.enter_context(socket.socket(family, kind))
        bound.bind((address, 0))
        if kind == socket.SOCK_STREAM:
            bound.listen(16)
        port: int = bound.getsockname()[1]
    except OSError:
        return _ANYWAY
    return port


def _unix_listener(stack: contextlib.ExitStack, address: str) -> None:
    listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    listener.bind(address)
    listener.listen(16)
