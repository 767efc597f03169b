"""Showing that a worker is alive, and what it does: health file and service manager."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final

from tallystick.errors import UnavailableError
from tallystick.worker.notify import Notifier

_HEALTH_SECONDS: Final = 5.0
_PUBLIC_MODE: Final = 0o644


class Reporter:
    """Tells who watches a worker. ``health`` None: no file; ``notifier`` None: no manager.

    :meth:`tick` is meant for :class:`~tallystick.worker.stopping.StopSwitch`.
    """

    def __init__(self, worker_id: str, health: Path | None, notifier: Notifier | None) -> None:
        self._worker_id = worker_id
        self._health = health
        self._notifier = notifier
        watchdog = None if notifier is None else notifier.watchdog_seconds
        self._watchdog_seconds = None if watchdog is None else watchdog / 3
        self._doing: str | None = None  # not begun yet
        self._told = 0.0
        self._written = 0.0

    def begin(self) -> None:
        """Say that the worker works. Raises UnavailableError when the health file cannot be."""
        self._doing = "idle"
        try:
            self._write()
        except OSError as error:
            raise UnavailableError(
                f"the health file {self._health} cannot be written", found=error.strerror
            ) from None
        if self._notifier is not None:
            self._notifier.ready()

    def doing(self, what: str) -> None:
        """Say what the worker does now, if that is something else than before."""
        if what == self._doing:
            return
        self._doing = what
        self._written = 0.0
        self.tick()
        if self._notifier is not None:
            self._notifier.status(what)

    def end(self) -> None:
        """Say that the worker ends; the health file goes."""
        self._doing = None
        if self._health is not None:
            with contextlib.suppress(OSError):
                self._health.unlink()
        if self._notifier is not None:
            self._notifier.stopping()

    def tick(self) -> None:
        """Say that the worker is not stuck, as often as that is due."""
        now = time.monotonic()
        if self._doing is not None and now - self._written >= _HEALTH_SECONDS:
            # A file that cannot be written grows old, which says enough.
            with contextlib.suppress(OSError):
                self._write()
        interval = self._watchdog_seconds
        if self._notifier is not None and interval is not None and now - self._told >= interval:
            self._told = now
            self._notifier.alive()

    def _write(self) -> None:
        self._written = time.monotonic()
        if self._health is None:
            return
        data = f"{int(time.time())} {self._worker_id} {self._doing}\n".encode()
        # Calls may come in the midst of one another: each has a file of its own to rename.
        temporary = self._health.with_name(f".{self._health.name}.{os.urandom(4).hex()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, _PUBLIC_MODE)
        try:
            os.write(descriptor, data)
            temporary.replace(self._health)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
