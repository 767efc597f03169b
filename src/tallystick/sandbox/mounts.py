"""The minimal root: a read-only file system with the runtime's files and nothing else."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tallystick.sandbox import kernel

_NOSUID: Final = 2
_NODEV: Final = 4
_BIND: Final = 4096
_REC: Final = 16384
_PRIVATE: Final = 1 << 18
_DETACH: Final = 2
_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000
_ATTR_READ_ONLY: Final = 1 | 2 | 4  # read-only, nosuid, nodev
_OPTIONS: Final = "size=4m,nr_inodes=1024,mode=0755"
# Any folder will do: the scratch file system is mounted over it in this namespace only.
_SCRATCH: Final = ("/tmp", "/mnt", "/run", "/var")  # noqa: S108
_OLD: Final = "/old"
_NEW: Final = "/new"
_LINKS: Final = ("lib", "lib32", "lib64")
_COPIED_SIZE: Final = 512 * 1024
#: Of /proc only these: what a process may know of itself, and of its processor.
PROC_SELF: Final = ("statm", "maps")
CPUINFO: Final = "/proc/cpuinfo"


class _MountAttributes(ctypes.Structure):
    _fields_ = [
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    ]


def mapped_files() -> tuple[str, ...]:
    """Return the files that this process has mapped: the libraries it has loaded."""
    lines = Path("/proc/self/maps").read_bytes().splitlines()
    fields = [line.split(maxsplit=5) for line in lines]
    paths = {os.fsdecode(field[5]) for field in fields if len(field) == 6}
    return tuple(sorted(path for path in paths if path.startswith("/") and os.path.isfile(path)))


def minimal(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the existing absolute paths among ``paths``, without what lies below another one."""
    kept: list[str] = []
    for path in sorted({os.path.abspath(path) for path in paths}):
        inside = any(path.startswith(f"{folder}/") for folder in kept)
        if path != "/" and not inside and os.path.exists(path):
            kept.append(path)
    return tuple(kept)


def enter_root(paths: Iterable[str]) -> None:
    """Make a root with ``paths`` at their places, read-only, and nothing else; enter it.

    Needs a mount namespace of its own and the right to mount there. Raises OSError.
    """
    pairs = [(os.path.realpath(path), path) for path in paths]  # links mean another root's paths
    os.umask(0o022)
    _mount(None, "/", None, _REC | _PRIVATE)
    scratch = next(place for place in _SCRATCH if os.path.isdir(place))
    _mount("tmpfs", scratch, "tmpfs", _NOSUID | _NODEV, _OPTIONS)
    os.mkdir(scratch + _OLD)
    os.mkdir(scratch + _NEW)
    kernel.call("pivot_root", os.fsencode(scratch), os.fsencode(scratch + _OLD))
    os.chdir("/")
    _mount(_NEW, _NEW, None, _BIND)
    for source, path in pairs:
        _bind(source, path)
    _bind_process_files()
    for name in _LINKS:
        link = f"{_OLD}/{name}"
        if os.path.islink(link) and not os.path.lexists(f"{_NEW}/{name}"):
            os.symlink(os.readlink(link), f"{_NEW}/{name}")
    os.chdir(_NEW)
    kernel.call("pivot_root", b".", b".")
    kernel.function("umount2", b".", _DETACH)
    os.chdir("/")
    attributes = _MountAttributes(_ATTR_READ_ONLY, 0, 0, 0)
    kernel.call(
        "mount_setattr",
        _AT_FDCWD,
        b"/",
        _AT_RECURSIVE,
        ctypes.byref(attributes),
        ctypes.sizeof(attributes),
    )


def _bind_process_files() -> None:
    """Bind this process's own statm and maps, and the processor's description, one by one."""
    for name in PROC_SELF:
        _bind(f"/proc/self/{name}", f"/proc/self/{name}")
    if os.path.isfile(_OLD + CPUINFO):
        _bind(CPUINFO, CPUINFO)


def _bind(source: str, target: str) -> None:
    old, new = _OLD + source, _NEW + target
    if os.path.isdir(old):
        os.makedirs(new, exist_ok=True)
        _mount(old, new, None, _BIND | _REC)
        return
    os.makedirs(os.path.dirname(new), exist_ok=True)
    info = os.stat(old)
    if info.st_mode & stat.S_IROTH or info.st_size > _COPIED_SIZE:
        os.close(os.open(new, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444))
        _mount(old, new, None, _BIND)
    else:  # such as a compiled observer: nobody, who the child may become, has to read it
        shutil.copyfile(old, new)
        os.chmod(new, 0o444)


def _mount(
    source: str | None, target: str, kind: str | None, flags: int, options: str | None = None
) -> None:
    def word(text: str | None) -> bytes | None:
        return None if text is None else os.fsencode(text)

    try:
        kernel.function(
            "mount",
            word(source),
            word(target),
            word(kind),
            ctypes.c_ulong(flags),
            word(options),
        )
    except OSError as error:
        shown = target.removeprefix(_NEW)
        raise OSError(error.errno, f"mount on {shown}: {os.strerror(error.errno or 0)}") from None
