"""Events whose lines differ from an accepted one in numbers only, without parsing them again.

The lines of one node are the same in every step but for the event's number, the step, and the
digits of a sketch. In a canonical line none of the texts around those can stand inside a string
(its quotes would be escaped), and no inner object of an event has such keys. So once a line was
parsed and checked, another that has all the same bytes around them differs in just these values.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

from tallystick.errors import EvidenceError
from tallystick.evidence.observer.records import AnyEvent, Event, GemmEvent, Sketch, SketchEvent

_LINE: Final = re.compile(
    rb'(\{"categories":\[[^\]]*\],"event_seq":)([1-9][0-9]{0,5})'
    rb'(,[^\n]*?"phase":")(prefill|decode|sealing)","phase_step":(0|[1-9][0-9]{0,8}),"record":"event"'
    rb'(?:(,"sketch":\{"bits":256,"elements":[0-9]{1,2},"hex":")([0-9a-f]{64}))?(.*)',
    re.DOTALL,
)
_MAX_KEPT: Final = 16_384  # more nodes than a graph has
_PHASES: Final = {b"prefill": "prefill", b"decode": "decode", b"sealing": "sealing"}

Frame: TypeAlias = tuple[bytes, bytes, bytes, bytes]


class EventLines:
    """Remembers accepted events by what their lines have in common."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[Frame, AnyEvent] = {}

    def find(self, line: bytes) -> AnyEvent | None:
        """Return the event of ``line`` when one that differs in numbers only was kept, else None.

        Equal tensors are the same object. Raises EvidenceError for a sketch with digits too many.
        """
        match = _LINE.fullmatch(line)
        if match is None:
            return None
        start, number, middle, phase, step, before, digits, end = match.groups()
        kept = self._kept.get((start, middle, before, end))
        if kept is None:
            return None
        head = (kept.record, int(number), _PHASES[phase], int(step), kept.stage, kept.layer)
        rest = (kept.categories, kept.tensor, kept.sources)
        if isinstance(kept, Event):
            return Event(*head, *rest)
        if isinstance(kept, GemmEvent):
            return GemmEvent(*head, *rest, kept.gemm)
        old = kept.sketch
        sketch = Sketch(old.scheme, old.bits, old.elements, digits.decode("ascii"))
        check_digits(sketch)
        return SketchEvent(*head, *rest, kept.gemm, sketch, kept.tile, kept.kernel_trace)

    def keep(self, line: bytes, event: AnyEvent) -> None:
        """Keep an event that passed every check."""
        match = _LINE.fullmatch(line)
        if match is not None:
            start, _, middle, _, _, before, _, end = match.groups()
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            self._kept[start, middle, before, end] = event


def check_digits(sketch: Sketch) -> None:
    """Require that elements which do not exist have the digit 0. Raises EvidenceError."""
    if sketch.hex[sketch.elements :].strip("0"):
        raise EvidenceError("a sketch has digits for elements that do not exist")
