"""Keeps a lease alive while its run goes on, and tells when it was lost."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from tallystick.errors import LostLeaseError, UnavailableError
from tallystick.queues.port import Lease, Queue

_BEATS_A_LEASE = 3


class Heartbeat:
    """Extends ``lease`` three times in its length, from a thread of its own.

    A queue that cannot be reached for a while is tried again; a lost lease is remembered, and
    :meth:`require` raises it.
    """

    def __init__(self, queue: Queue, lease: Lease) -> None:
        self._queue = queue
        self._lease = lease
        self._over = threading.Event()
        self._lost: LostLeaseError | None = None
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def require(self) -> None:
        """Make sure that the lease is still ours, now. Raises LostLeaseError, UnavailableError."""
        if self._lost is not None:
            raise self._lost
        self._queue.heartbeat(self._lease)

    def _beat(self) -> None:
        while not self._over.wait(self._lease.seconds / _BEATS_A_LEASE):
            try:
                self._queue.heartbeat(self._lease)
            except LostLeaseError as error:
                self._lost = error
                return
            except UnavailableError:
                continue

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
