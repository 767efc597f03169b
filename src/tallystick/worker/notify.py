"""Telling the service manager how the worker is: datagrams to a socket, as sd_notify(3) says.

Our own, because it is one datagram, and the library for it is a binding of libsystemd.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

_SOCKET: Final = "NOTIFY_SOCKET"
_WATCHDOG: Final = "WATCHDOG_USEC"
_WATCHDOG_PID: Final = "WATCHDOG_PID"
_MAX_STATUS: Final = 200


@dataclass(frozen=True, slots=True)
class Notifier:
    """Speaks to the service manager at ``address``.

    ``watchdog_seconds``: the manager ends a worker that says nothing for so long; None: it does
    not watch.
    """

    address: str
    watchdog_seconds: float | None

    @classmethod
    def of(cls, environment: Mapping[str, str], pid: int) -> Self | None:
        """Return what the variables of the process ``pid`` ask for, None if that is nothing."""
        address = environment.get(_SOCKET, "")
        if address[:1] not in ("/", "@") or len(address) < 2:
            return None
        watched = environment.get(_WATCHDOG_PID, str(pid)) == str(pid)
        microseconds = environment.get(_WATCHDOG, "")
        seconds = int(microseconds) / 1e6 if microseconds.isdecimal() and watched else 0
        return cls(address, seconds or None)

    def ready(self) -> None:
        """Say that the worker works."""
        self._send("READY=1")

    def alive(self) -> None:
        """Say that the worker is not stuck."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Say that the worker ends."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Say what the worker does, in one line for people."""
        self._send("STATUS=" + text.replace("\n", " ")[:_MAX_STATUS])

    def _send(self, text: str) -> None:
        address = os.fsencode(self.address)
        if address.startswith(b"@"):  # of the abstract namespace
            address = b"\0" + address[1:]
        flags = socket.SOCK_DGRAM | getattr(socket, "SOCK_CLOEXEC", 0)
        # A manager that does not listen is no reason to leave a run undone, or to wait.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, flags) as speaker:
            speaker.setblocking(False)
            speaker.sendto(text.encode("utf-8", "backslashreplace"), address)
