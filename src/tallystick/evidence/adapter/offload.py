"""Whether layers ran elsewhere than on the processor, by the engine library's own log lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tallystick.errors import EvidenceError

_MARKER: Final = re.compile(r"offloaded\s+(\d{1,6})/(\d{1,6})\s+layers\s+to\s+gpu", re.IGNORECASE)
_MENTION: Final = re.compile(r"offloaded\b[^\n]{0,80}\blayers\b", re.IGNORECASE)
_BEGUN: Final = re.compile(
    r"offloading\s+(?:(\d{1,6})\s+repeating\s+layers|output\s+layer)\s+to\s+gpu", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Offload:
    """How many layers of how many were put on a GPU; ``total`` is None when the log says nothing.

    A library without a GPU says nothing or 0.
    """

    layers: int
    total: int | None

    @property
    def on_processor(self) -> bool:
        """Whether every layer ran on the processor."""
        return self.layers == 0


def scan_offload(log: str) -> Offload:
    """Return what the library's log says of offloaded layers: none or all of them.

    Raises EvidenceError when only a part was offloaded, when lines contradict each other, and when
    a line speaks of it in another form.
    """
    markers = {(int(done), int(total)) for done, total in _MARKER.findall(log)}
    if len(_MARKER.findall(log)) != len(_MENTION.findall(log)):
        raise _refusal("is not understood", "offloaded N/M layers to GPU", "another form")
    if len(markers) > 1:
        raise _refusal("contradicts itself", "one answer", f"{len(markers)} answers")
    begun = any(layers != "0" for layers in _BEGUN.findall(log))
    if not markers:
        if begun:
            raise _refusal("is incomplete", "offloaded N/M layers to GPU", "only its beginning")
        return Offload(0, None)
    ((done, total),) = markers
    if not total or done not in (0, total):
        raise _refusal("tells of a part of the layers", f"0 or {total} of {total}", str(done))
    if not done and begun:
        raise _refusal("contradicts itself", "no offloading", "offloading that was begun")
    return Offload(done, total)


def _refusal(what: str, expected: str, found: str) -> EvidenceError:
    return EvidenceError(
        f"the engine's log of offloaded layers {what}", expected=expected, found=found
    )
