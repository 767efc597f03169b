"""Reading a child's messages: bounded JSON lines and data from a pipe, in form or an error."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tallystick.canonical.json import parse_strict
from tallystick.errors import (
    EvidenceError,
    IncomparableError,
    InputError,
    RunFailedError,
    TallystickError,
    UnavailableError,
)

MAX_MESSAGE = 96 * 1024 * 1024
MAX_DATA = 8 * 1024 * 1024
_MAX_TEXT = 4000
ErrorClasses = Sequence[type[TallystickError]]
#: What a child may report. A verdict on evidence is for jobs that judge some, and says so.
CHILD_ERRORS: Final[ErrorClasses] = (
    InputError,
    IncomparableError,
    UnavailableError,
    RunFailedError,
)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a child: ``kind`` and a JSON object, which may be private.

    ``data`` are the bytes that follow a message of the kind "data".
    """

    kind: str
    body: dict[str, Any] = field(repr=False)
    data: bytes = field(default=b"", repr=False)


class MessageReader:
    """Reads messages from ``descriptor``, which stays the caller's to close."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()  # select() refuses descriptors from 1024 on
        self._poll.register(descriptor, select.POLLIN)
        self._buffer = bytearray()
        self._searched = 0

    def next(self, idle_timeout: float | None = None) -> Message | None:
        """Return the next message, None when the writer has closed the pipe.

        Raises RunFailedError for a message out of form, and when nothing comes for
        ``idle_timeout`` seconds.
        """
        while True:
            end = self._buffer.find(b"\n", self._searched)
            if end >= 0:
                message = parse_message(self._take(end + 1)[:-1])
                return self._with_data(message, idle_timeout) if message.kind == "data" else message
            self._searched = len(self._buffer)
            if self._searched > MAX_MESSAGE:
                raise RunFailedError(
                    "the child sent an oversized message", expected=f"at most {MAX_MESSAGE} B"
                )
            if not self._fill(idle_timeout):
                return None

    def _with_data(self, message: Message, idle_timeout: float | None) -> Message | None:
        size = message.body.get("size")
        if type(size) is not int or not 0 <= size <= MAX_DATA or len(message.body) != 1:
            raise RunFailedError(
                "the child announced data out of form", expected=f"at most {MAX_DATA} B"
            )
        while len(self._buffer) < size:
            if not self._fill(idle_timeout):
                return None
        return Message(message.kind, message.body, self._take(size))

    def _take(self, size: int) -> bytes:
        taken = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        self._searched = 0
        return taken

    def _fill(self, idle_timeout: float | None) -> bool:
        if not self._poll.poll(None if idle_timeout is None else idle_timeout * 1000):
            raise RunFailedError(
                "the child made no progress",
                expected=f"a message every {idle_timeout:.0f} s",
                hint="try again on a less busy machine, or raise the deadline",
            )
        chunk = os.read(self._descriptor, 1 << 20)
        self._buffer += chunk
        return bool(chunk)


def parse_message(line: bytes) -> Message:
    """Return the message that ``line`` is. Raises RunFailedError."""
    try:
        value = parse_strict(line, max_bytes=MAX_MESSAGE)
    except TallystickError as error:
        raise RunFailedError("the child sent something that is not JSON") from error
    if (
        not isinstance(value, dict)
        or set(value) != {"kind", "body"}
        or not isinstance(value["kind"], str)
        or not isinstance(value["body"], dict)
    ):
        raise RunFailedError("the child sent a message of unknown form")
    return Message(kind=value["kind"], body=value["body"])


@contextlib.contextmanager
def well_formed(what: str) -> Iterator[None]:
    """Decode what a child sent in the body: an EvidenceError there becomes a RunFailedError.

    It was no evidence yet: the child is broken.
    """
    try:
        yield
    except EvidenceError as error:
        raise RunFailedError(
            f"the child sent {what} that is malformed",
            expected=error.expected,
            found=error.message,
        ) from None


def error_from(body: dict[str, Any], classes: ErrorClasses = CHILD_ERRORS) -> TallystickError:
    """Return the error that an ``error`` message describes, of one of ``classes``.

    Whatever else it calls itself, it is a RunFailedError: the class decides the exit code.
    """
    kind = next((one for one in classes if one.__name__ == body.get("type")), RunFailedError)

    def text(name: str) -> str | None:
        value = body.get(name)
        return value[:_MAX_TEXT] if isinstance(value, str) else None

    return kind(
        text("message") or "the child failed",
        expected=text("expected"),
        found=text("found"),
        hint=text("hint"),
    )
