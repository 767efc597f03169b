"""Ways out of a process, tried one by one: the same code outside and in the finished sandbox.

Each probe returns None when it got through, else the name of what stopped it. Probes that would
change the process itself run in a forked one that ends at once.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import resource
import signal
import socket
import struct
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Final

from tallystick.sandbox import kernel
from tallystick.sandbox.targets import TargetNames

Action = Callable[[], object]
Seen = str | None

_SECONDS: Final = 2.0
_AF_VSOCK: Final = 40
_VSOCK_ANY: Final = 0xFFFFFFFF
_NETLINK_DUMP_LINKS: Final = struct.pack("<IHHII", 17, 18, 0x301, 1, 0) + b"\0"
_PTRACE_SEIZE: Final = 0x4206
_CLONE_NEWUSER: Final = 0x10000000
_KEYCTL_GET_KEYRING_ID, _SESSION_KEYRING = 0, -3
_USERFAULTFD_USER_MODE_ONLY: Final = 1
_X32_SOCKET: Final = 0x40000000 + 41
# mov eax, 359 (socket of the 32-bit table); mov ebx, AF_UNIX; mov ecx, SOCK_STREAM; edx = 0;
# int 0x80; ret. rbx is saved around it.
_I386_SOCKET: Final = bytes.fromhex("53 b867010000 bb01000000 b901000000 31d2 cd80 5b c3")


def try_channels(targets: TargetNames) -> dict[str, Seen]:
    """Try every channel and return what was seen of each, by name.

    Where forking is refused the ``ENTRIES`` are missing: :func:`try_entries` was for them before.
    """
    probes = _probes(targets)
    seen = {name: _seen(action) for name, action in probes.items()}
    return seen | _try_forked(targets)


def try_entries(before: Callable[[], None]) -> dict[str, Seen]:
    """Try the other entries into the kernel, each in a forked process that they may kill.

    ``before`` is called there first: it puts that process under the filter.
    """
    return {name: _forked(action, before) for name, action in ENTRIES.items()}


def _probes(to: TargetNames) -> dict[str, Action]:
    inet, inet6, unix = socket.AF_INET, socket.AF_INET6, socket.AF_UNIX
    mapped = "::ffff:127.0.0.1"
    return {
        "tcp4": lambda: _connect(inet, ("127.0.0.1", to.tcp4)),
        "tcp6": lambda: _connect(inet6, ("::1", to.tcp6)),
        "tcp4_mapped": lambda: _connect(inet6, (mapped, to.tcp4)),
        "udp4": lambda: _send(inet, ("127.0.0.1", to.udp4)),
        "udp6": lambda: _send(inet6, ("::1", to.udp6)),
        "udp4_mapped": lambda: _send(inet6, (mapped, to.udp4)),
        "dns": lambda: socket.getaddrinfo("localhost", 80, inet),
        "unix_path": lambda: _connect(unix, f"{to.folder}/{to.unix_name}"),
        "unix_abstract": lambda: _connect(unix, f"\0{to.abstract}"),
        "inherited_tcp": lambda: os.write(to.inherited_tcp, b"x"),
        "inherited_unix": lambda: os.write(to.inherited_unix, b"x"),
        "inherited_file": lambda: os.write(to.inherited_file, b"x"),
        "vsock": _vsock,
        "netlink": _netlink,
        "packet": lambda: socket.socket(17, socket.SOCK_RAW, 0).close(),
        "io_uring": _io_uring,
        "write_outside": lambda: _write(f"{to.folder}/written-{os.getpid()}"),
        "read_outside": lambda: _read(f"{to.folder}/{to.file_name}"),
        "read_passwd": lambda: _read("/etc/passwd"),
        "list_outside": lambda: os.listdir(to.folder),
        "signal_parent": lambda: os.kill(to.parent, 0),
        "read_parent_memory": lambda: _read_memory(to.parent, int(to.parent_address)),
        "pidfd_parent": lambda: os.close(kernel.call("pidfd_open", to.parent, 0)),
        "execve": _execve,
        "memfd": lambda: os.close(os.memfd_create("probe", 0)),
        "userfaultfd": _userfaultfd,
        "keyctl": lambda: kernel.call("keyctl", _KEYCTL_GET_KEYRING_ID, _SESSION_KEYRING, 0),
    }


def _try_forked(to: TargetNames) -> dict[str, Seen]:
    """Try what may change or kill this process, all in one that is forked, the deadly one last.

    That this is possible is what is seen of "fork". Where it is not, the others but the ``ENTRIES``
    are tried here: they fail wherever forking fails.
    """
    # A process in a user namespace of its own may trace nobody outside: that comes after.
    mild: dict[str, Action] = {"ptrace_parent": lambda: _ptrace(to.parent), "unshare": _unshare}
    try:
        reader, writer = os.pipe()
        pid = _quiet_fork()
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "EUNKNOWN")
        return {"fork": name} | {name: _seen(action) for name, action in mild.items()}
    if pid == 0:
        _let_signals_kill()
        for name in ("x32_socket", *mild, "i386_socket"):
            action = mild[name] if name in mild else ENTRIES[name]
            os.write(writer, f"{name} {_errno_of(action)}\n".encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as told:
        lines = [line.split() for line in told.read().decode("ascii").splitlines()]
    _, status = os.waitpid(pid, 0)
    seen: dict[str, Seen] = {name: _named(int(code)) for name, code in lines}
    if os.WIFSIGNALED(status):
        # Where there is no 32-bit entry: the process that tried it is gone.
        seen.setdefault("i386_socket", signal.Signals(os.WTERMSIG(status)).name)
    return {"fork": None} | seen


def _seen(action: Action) -> Seen:
    """Do it; return None when it went through, else the name of what stopped it."""
    try:
        action()
    except socket.gaierror as error:
        return next(
            (name for name in dir(socket) if name.startswith("EAI_")
             and getattr(socket, name) == error.errno), "EAI_SYSTEM",
        )  # fmt: skip
    except TimeoutError as error:
        return errno.errorcode.get(error.errno or 0, "ETIMEDOUT")
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "EUNKNOWN")
    except AttributeError:  # this system's Python has no such call
        return "ENOSYS"
    return None


def _connect(family: int, address: tuple[str, int] | str) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as stream:
        stream.settimeout(_SECONDS)
        stream.connect(address)
        stream.sendall(b"x")


def _send(family: int, address: tuple[str, int]) -> None:
    with socket.socket(family, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(_SECONDS)
        datagrams.sendto(b"x", address)


def _vsock() -> None:
    with socket.socket(_AF_VSOCK, socket.SOCK_STREAM) as stream:
        stream.bind((_VSOCK_ANY, _VSOCK_ANY))


def _netlink() -> None:
    with socket.socket(16, socket.SOCK_RAW, 0) as link:
        link.settimeout(_SECONDS)
        link.bind((0, 0))
        link.send(_NETLINK_DUMP_LINKS)
        link.recv(65536)


def _io_uring() -> None:
    try:
        os.close(kernel.call("io_uring_setup", 4, ctypes.create_string_buffer(256)))
    except OSError as error:
        if error.errno != errno.ENOMEM:  # only the limit on locked memory: the call was accepted
            raise


def _write(path: str) -> None:
    # An empty file is enough: its name says something.
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    os.unlink(path)


def _read(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.read(descriptor, 1)
    finally:
        os.close(descriptor)


def _ptrace(pid: int) -> None:
    # Where this goes through, the tracer is gone soon: its end is what detaches it.
    kernel.call("ptrace", _PTRACE_SEIZE, pid, None, None)


def _read_memory(pid: int, address: int) -> None:
    local = ctypes.create_string_buffer(8)
    to = (ctypes.c_uint64 * 2)(ctypes.addressof(local), 8)
    source = (ctypes.c_uint64 * 2)(address, 8)
    try:
        kernel.call("process_vm_readv", pid, ctypes.byref(to), 1, ctypes.byref(source), 1, 0)
    except OSError as error:
        if error.errno != errno.EFAULT:  # the address was no good, the access was granted
            raise


def _userfaultfd() -> None:
    os.close(kernel.call("userfaultfd", os.O_CLOEXEC | _USERFAULTFD_USER_MODE_ONLY))


def _unshare() -> None:
    kernel.function("unshare", ctypes.c_int(_CLONE_NEWUSER))


def _execve() -> None:
    try:
        # No shell and nothing to execute: whether the call is let through is what is asked.
        os.execv("/nonexistent/program", ["program"])  # noqa: S606
    except FileNotFoundError:
        return  # looked for, so it would have been executed


def _i386_socket() -> None:
    if platform.machine() != "x86_64":
        raise OSError(errno.ENOSYS, "no such entry on this kind of machine")
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as at:
        at.write(_I386_SOCKET)
        byte = ctypes.c_char.from_buffer(at)
        result = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(byte))()
        del byte
    if result < 0:
        raise OSError(-result, "socket")


def _x32_socket() -> None:
    if platform.machine() != "x86_64":
        raise OSError(errno.ENOSYS, "no such entry on this kind of machine")
    kernel.call(_X32_SOCKET, socket.AF_UNIX, socket.SOCK_STREAM, 0)


#: The other entries into the kernel, of which a filter knows nothing but that they are others.
ENTRIES: Final[Mapping[str, Action]] = {"i386_socket": _i386_socket, "x32_socket": _x32_socket}


def _errno_of(action: Action) -> int:
    try:
        action()
    except OSError as error:
        return min(error.errno or 255, 255)
    except BaseException:
        return 255
    return 0


def _forked(action: Action, before: Callable[[], None]) -> Seen:
    """Return what is seen of ``action`` in a forked process, a signal that kills it included."""
    pid = _quiet_fork()
    if pid == 0:
        _let_signals_kill()
        before()
        os._exit(_errno_of(action))
    _, status = _wait(pid)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return _named(os.waitstatus_to_exitcode(status))


def _named(code: int) -> Seen:
    return errno.errorcode.get(code, "EUNKNOWN") if code else None


def _let_signals_kill() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGSYS, signal.SIGSEGV, signal.SIGILL):
        signal.signal(number, signal.SIG_DFL)


def _wait(pid: int) -> tuple[int, int]:
    end = time.monotonic() + _SECONDS * 5
    while time.monotonic() < end:
        found = os.waitpid(pid, os.WNOHANG)
        if found[0]:
            return found
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)


def _quiet_fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
