"""Run a program where no user namespace can be made, as where an administrator forbids them.

``python -m tests.support.no_user_namespaces WORD...`` executes this interpreter with the words in
a user namespace of its own whose limit of further ones is zero.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

_NEWUSER: Final = 0x10000000


def main() -> None:
    """Enter the namespace, forbid others, execute the interpreter."""
    uid, gid = os.getuid(), os.getgid()
    if ctypes.CDLL(None, use_errno=True).unshare(_NEWUSER):
        raise OSError(ctypes.get_errno(), "no user namespace to forbid others in")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    Path("/proc/sys/user/max_user_namespaces").write_text("0")
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    main()
