"""Run a program of this installation as a user without rights, though it lies in a private home.

``python -m tests.support.readable_runtime WORD...`` executes this interpreter with the words, as
nobody, in a mount namespace in which the home around the runtime is readable. Needs root.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from pathlib import Path
from typing import Final

from tests.support.ordinary_user import ORDINARY_UID

_NEWNS: Final = 0x20000
_BIND: Final = 4096
_REC: Final = 16384
_PRIVATE: Final = 1 << 18


def _mount(source: str, target: str, kind: str, flags: int, options: str | None = None) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    data = None if options is None else options.encode()
    if library.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data):
        raise OSError(ctypes.get_errno(), f"mount on {target}")


def _private_folder(path: Path) -> Path | None:
    """Return the uppermost folder above ``path`` that other users may not enter."""
    folders = [folder for folder in reversed(path.parents) if not _others_enter(folder)]
    return folders[0] if folders else None


def _others_enter(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IXOTH)


def _open_up(runtime: Path) -> None:
    private = _private_folder(runtime)
    if private is None:
        return
    held = os.open(runtime, os.O_PATH)
    _mount("tmpfs", str(private), "tmpfs", 0, "mode=0755")
    runtime.mkdir(parents=True)
    _mount(f"/proc/self/fd/{held}", str(runtime), "none", _BIND | _REC)
    os.close(held)


def main() -> None:
    """Become nobody and execute the interpreter."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEWNS):
        raise OSError("no mount namespace")
    _mount("none", "/", "none", _REC | _PRIVATE)
    os.umask(0o022)
    for runtime in dict.fromkeys((Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve())):
        _open_up(runtime)
    os.setgroups([])
    os.setresgid(ORDINARY_UID, ORDINARY_UID, ORDINARY_UID)
    os.setresuid(ORDINARY_UID, ORDINARY_UID, ORDINARY_UID)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    main()
