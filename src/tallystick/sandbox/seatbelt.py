"""A sandbox profile as text for macOS's ``sandbox-exec``: a weaker class, and said to be so.

It is generated for whoever wraps this program there; nothing here enforces or probes it, and no
receipt names a level above ``none`` because of it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from tallystick.contracts.sandbox_profile import SandboxProfile, at_least, profile_digest
from tallystick.errors import SandboxError

#: The first words of every text.
WEAKER: Final = "WEAKER CLASS"
_HEAD: Final = """\
(version 1)
; {weaker}: a seatbelt profile is no namespace, has no filter of system calls of
; its own making, is not probed by this program, and raises no enforcement level.
; profile {name}, {digest}
(deny default)
(deny network*)
(deny file-write*)
(deny process-exec*)
(deny process-fork)
(deny mach-lookup)
(deny ipc-posix-shm*)
(deny iokit-open)
(allow process-info* (target self))
(allow signal (target self))
(allow sysctl-read)
(allow file-read-metadata)
"""
# What the dynamic loader and the C library read in every process.
_SYSTEM: Final = ("/usr/lib", "/System/Library")
_DEVICES: Final = ("/dev/null", "/dev/random", "/dev/urandom")


def seatbelt_text(profile: SandboxProfile, files: Sequence[str]) -> str:
    """Return the text for ``profile``; ``files`` (absolute paths) are readable besides the system.

    Raises SandboxError for a profile below level ``namespaces``, which nothing there corresponds
    to, and for a path that is not absolute or has a character that the text cannot carry.
    """
    if not at_least(profile.level, "namespaces"):
        raise SandboxError(
            "there is no seatbelt text for this profile",
            expected="level namespaces or full",
            found=profile.level,
        )
    head = _HEAD.format(weaker=WEAKER, name=profile.name, digest=profile_digest(profile))
    lines = [f"(allow file-read* (subpath {_quoted(path)}))" for path in (*_SYSTEM, *files)]
    lines += [f"(allow file-read* (literal {_quoted(path)}))" for path in _DEVICES]
    return head + "\n".join(lines) + "\n"


def _quoted(path: str) -> str:
    if not os.path.isabs(path) or not path.isprintable():
        raise SandboxError(
            "a path cannot go into a seatbelt text",
            expected="an absolute path of printable characters",
            found=ascii(path[:200]),
        )
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'
