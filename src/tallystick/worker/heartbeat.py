"""Keeps a lease alive while its run goes on, and tells when it was lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from tallystick.errors import LostLeaseError, TallystickError, UnavailableError
from tallystick.queues.port import Lease, Queue

_BEATS_A_LEASE: Final = 3
_RETRY_SECONDS: Final = 0.5


class Heartbeat:
    """Extends ``lease`` three times in its length, from a thread of its own.

    A queue that cannot be reached for a while is tried again. A lost lease is told to ``on_lost``,
    from that thread, and :meth:`require` raises it.
    """

    def __init__(
        self, queue: Queue, lease: Lease, on_lost: Callable[[LostLeaseError], None]
    ) -> None:
        self._queue = queue
        self._lease = lease
        self._on_lost = on_lost
        self._over = threading.Event()
        self._lost: LostLeaseError | None = None
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def require(self, check: Callable[[], None]) -> None:
        """Make sure that the lease is ours, and for its whole length from now on.

        A queue that does not answer is asked again, for as long as a lease; each time ``check``
        may raise what ends that. Raises LostLeaseError, UnavailableError.
        """
        end = time.monotonic() + self._lease.seconds
        while self._lost is None:
            check()
            try:
                return self._queue.heartbeat(self._lease)
            except LostLeaseError:
                raise
            except UnavailableError:
                if time.monotonic() >= end:
                    raise
                self._over.wait(_RETRY_SECONDS)
        raise self._lost

    def _beat(self) -> None:
        while not self._over.wait(self._lease.seconds / _BEATS_A_LEASE):
            try:
                self._queue.heartbeat(self._lease)
            except LostLeaseError as error:
                self._lost = error
                self._on_lost(error)
                return
            except TallystickError:
                continue  # nobody else gets the job before the lease has run out

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
