"""What a child streams of its answer: shown as it comes, and held against what it signs off."""

from __future__ import annotations

import hashlib
from typing import Final

from tallystick.errors import RunFailedError
from tallystick.execution.launch import OnText

# More than any bundle holds.
_MOST_BYTES: Final = 64 * 1024 * 1024


class Streamed:
    """Passes at most ``pieces`` pieces on to ``on_text``; keeps nothing of them but a digest."""

    def __init__(self, on_text: OnText, pieces: int) -> None:
        self._on_text = on_text
        self._pieces = pieces
        self._taken = 0
        self._bytes = 0
        self._digest = hashlib.sha256()

    def write(self, piece: bytes) -> None:
        """Take the next piece. Raises RunFailedError when there cannot be another one."""
        self._taken += 1
        self._bytes += len(piece)
        if self._taken > self._pieces or self._bytes > _MOST_BYTES:
            raise RunFailedError(
                "the child streamed more text than its job has",
                expected=f"at most {self._pieces} pieces, {_MOST_BYTES} B in all",
                found=f"{self._taken} pieces, {self._bytes} B",
            )
        self._digest.update(piece)
        self._on_text(piece)

    def require(self, output: bytes) -> None:
        """Raise RunFailedError unless ``output``, the child's result, is what it streamed."""
        if hashlib.sha256(output).digest() != self._digest.digest():
            raise RunFailedError(
                "the child's answer is not the one that it streamed",
                expected=f"the {self._bytes} bytes that were shown",
                found=f"{len(output)} bytes" + (", others" if len(output) == self._bytes else ""),
            )
