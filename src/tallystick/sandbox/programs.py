"""How a child's interpreter is started: its flags, its environment, its three standard streams."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tallystick.canonical.json import JSONValue

# The child's whole environment; callers add what the engine reads when it is loaded.
_BASE_ENVIRONMENT = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin", "TZ": "UTC"}


@dataclass(frozen=True, slots=True)
class Start:
    """How to start a program; the request may be private.

    ``environment`` is what it has besides the base; ``pass_fds`` stay open in it under the same
    numbers.
    """

    program: str
    request: JSONValue = field(repr=False)
    environment: Mapping[str, str]
    pass_fds: tuple[int, ...]


class Process(Protocol):
    """A started process, as far as its supervisor handles it; ``returncode`` as Popen has it."""

    pid: int
    returncode: int | None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the code. Raises subprocess.TimeoutExpired."""


def python_flags() -> list[str]:
    """Imports come from where this process's come from, and never from the current directory."""
    flags = ["-P", "-X", "utf8"]
    return flags if site.ENABLE_USER_SITE else ["-s", *flags]


def import_environment() -> dict[str, str]:
    """Return the variables without which an install outside the interpreter is not found."""
    found = {}
    if not sys.flags.ignore_environment and (path := os.environ.get("PYTHONPATH")):
        found["PYTHONPATH"] = path
    if site.ENABLE_USER_SITE:
        found["PYTHONUSERBASE"] = site.getuserbase()
    return found


def spawn(
    program: str,
    words: Sequence[str],
    *,
    environment: Mapping[str, str],
    stdin: int,
    stderr: int,
    pass_fds: Sequence[int],
) -> subprocess.Popen[bytes]:
    """Start a program's module in an interpreter of its own, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, *python_flags(), "-m", program, *words],
        stdin=stdin,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        pass_fds=tuple(pass_fds),
        env={**_BASE_ENVIRONMENT, **import_environment(), **environment},
        start_new_session=True,
    )
