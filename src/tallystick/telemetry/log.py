"""The telemetry file: one canonical JSON line per event (docs/spec/telemetry.md).

Every line has one of three exact forms, so reading is a match against them: canonical by
construction, and fast enough to be part of every verification.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import le, lt
from types import MappingProxyType

from tallystick.canonical.json import jcs
from tallystick.errors import EvidenceError
from tallystick.telemetry.events import LAYER_EVENTS, MAX_LAYER_EVENTS, Event, EventKind

MAX_LINE = 224  # bytes, newline included: the bound per token
_U64 = 2**64
_U64_DIGITS = len(str(_U64))
_U32 = 2**32
_NUMBER = r"(0|[1-9][0-9]{0,19})"
_COUNT = r"(0|[1-9][0-9]{0,9})"
_LINE = (
    r'\{"event":"([A-Za-z]{1,20})",(?:"index":'
    + _COUNT
    + r',|"layer":'
    + _COUNT
    + r',)?"monotonic_ns":"'
    + _NUMBER
    + r'","rss":"'
    + _NUMBER
    + r'","seq":'
    + _COUNT
    + r',"wall_ns":"'
    + _NUMBER
    + r'"\}\n'
)
_ONE_LINE = re.compile(_LINE)
_EVERY_LINE = re.compile("^" + _LINE, re.MULTILINE)
_TOKEN = str(EventKind.TOKEN_EMITTED)
_KNOWN = frozenset(map(str, EventKind))
_OF_LAYERS = frozenset(map(str, LAYER_EVENTS))
# What a run goes through, in order; everything else lies between LoadComplete and the end.
_FRAME = ("Init", "Loading", "LoadComplete", "ShutdownComplete")
_INNER = frozenset({"TokenEmitted", "ArenaReset"}) | _OF_LAYERS
Row = tuple[str, str, str, str, str, str, str]


@dataclass(frozen=True, slots=True)
class TelemetryLog:
    """A checked log. ``tokens`` counts TokenEmitted lines, ``dropped`` numbers without a line.

    ``layers`` counts the lines of each event of a layer ring, None when there are none at all.
    """

    tokens: int
    dropped: int
    rows: tuple[Row, ...] = field(repr=False)
    layers: Mapping[EventKind, int] | None = None

    def events(self) -> Iterator[Event]:
        """Yield the events; made on demand, because a verification needs only the counts."""
        for name, index, layer, monotonic, rss, seq, wall in self.rows:
            yield Event(
                kind=EventKind(name),
                seq=int(seq),
                monotonic_ns=int(monotonic),
                wall_ns=int(wall),
                rss=int(rss),
                index=int(index) if index else None,
                layer=int(layer) if layer else None,
            )


def encode_event(event: Event) -> bytes:
    """Return the line of one event, newline included. Raises ValueError for values out of range."""
    document: dict[str, str | int] = {
        "event": str(event.kind),
        "monotonic_ns": str(event.monotonic_ns),
        "rss": str(event.rss),
        "seq": event.seq,
        "wall_ns": str(event.wall_ns),
    }
    if event.index is not None:
        document["index"] = event.index
    if event.layer is not None:
        document["layer"] = event.layer
    line = jcs({**document}) + b"\n"
    if not _ONE_LINE.fullmatch(line.decode("ascii")):
        raise ValueError("an event value is out of range")
    return line


def encode_log(events: Iterable[Event]) -> bytes:
    """Return the telemetry file of ``events``."""
    return b"".join(map(encode_event, events))


def parse_log(data: bytes) -> TelemetryLog:
    """Parse a whole telemetry file.

    Sequence numbers grow, the monotonic clock never goes back, and token indexes grow. When no
    number is missing, the log begins with Init, Loading, LoadComplete and ends with
    ShutdownComplete, and token indexes are 0, 1, 2 and so on. Raises EvidenceError naming the line.
    """
    if not data.endswith(b"\n"):
        raise EvidenceError("the telemetry is truncated", expected="a newline at the end")
    text = data.decode("latin-1")  # every other byte than ASCII fails to match a line
    rows = _EVERY_LINE.findall(text)
    if len(rows) != text.count("\n"):
        lines = enumerate(text.split("\n"), 1)
        number = next(n for n, line in lines if not _ONE_LINE.fullmatch(line + "\n"))
        raise _bad(number, "one of the line forms of docs/spec/telemetry.md", "another form")
    names, indexes, layers, monotonic, rss, seqs, wall = zip(*rows, strict=True)
    numbers = list(map(int, seqs))
    times = list(map(int, monotonic))
    # Fewer digits are below 2^64, which leaves few numbers, or none, to be converted.
    long = [text for text in (*rss, *wall) if len(text) == _U64_DIGITS]
    _check_ranges([*times, *map(int, long)], numbers)
    _check_growth(numbers, times)
    dropped = numbers[-1] + 1 - len(rows)
    tokens = _check_tokens(names, indexes, dropped)
    counts = None if _OF_LAYERS.isdisjoint(names) and not any(layers) else _layers(names, layers)
    _check_kinds(names, dropped)
    return TelemetryLog(tokens=tokens, dropped=dropped, rows=tuple(rows), layers=counts)


def _check_ranges(large: Sequence[int], counters: Sequence[int]) -> None:
    if max(large) >= _U64 or max(counters) >= _U32:
        raise EvidenceError(
            "the telemetry holds a number out of range",
            expected="64-bit times and sizes, 32-bit counters",
        )


def _check_growth(numbers: Sequence[int], monotonic: Sequence[int]) -> None:
    if all(map(lt, numbers, numbers[1:])) and all(map(le, monotonic, monotonic[1:])):
        return
    for line, (before, seq) in enumerate(pairwise(numbers), 2):
        if seq <= before:
            raise _bad(line, f"a sequence number above {before}", str(seq))
    for line, (earlier, time) in enumerate(pairwise(monotonic), 2):
        if time < earlier:
            raise _bad(line, "a monotonic clock", "an earlier time than the line before")


def _check_tokens(names: Sequence[str], indexes: Sequence[str], dropped: int) -> int:
    """Return the number of tokens; their indexes grow, and by one when nothing was dropped."""
    whole = [*map(str, range(names.count(_TOKEN)))]
    on_tokens = [text for name, text in zip(names, indexes, strict=True) if name == _TOKEN]
    if [*filter(None, indexes)] == whole == on_tokens:
        return len(whole)  # as almost always; other logs are gone through line by line
    least = tokens = 0
    for line, (name, text) in enumerate(zip(names, indexes, strict=True), 1):
        if (name == _TOKEN) != (text != ""):
            raise _bad(line, "an index exactly on TokenEmitted", "the opposite")
        if text == "":
            continue
        index = int(text)
        if index < least or (dropped == 0 and index != least):
            raise _bad(line, f"token index {least}", str(index))
        least = index + 1
        tokens += 1
    _check_ranges([0], [least - 1])
    return tokens


def _layers(names: Sequence[str], layers: Sequence[str]) -> Mapping[EventKind, int]:
    """Return how many lines each event of a layer ring has; every one of them names its layer."""
    for line, (name, layer) in enumerate(zip(names, layers, strict=True), 1):
        if (name in _OF_LAYERS) != (layer != ""):
            raise _bad(line, "a layer exactly on events of a layer ring", "the opposite")
    _check_ranges([0], [int(layer or "0") for layer in layers])
    counts = {kind: names.count(str(kind)) for kind in sorted(LAYER_EVENTS)}
    if sum(counts.values()) > MAX_LAYER_EVENTS:
        raise EvidenceError(
            "the telemetry has too many events of layers",
            expected=f"at most {MAX_LAYER_EVENTS}",
            found=str(sum(counts.values())),
        )
    return MappingProxyType(counts)


def _check_kinds(names: Sequence[str], dropped: int) -> None:
    if not _KNOWN.issuperset(names):
        line = next(line for line, name in enumerate(names, 1) if name not in _KNOWN)
        raise _bad(line, "a known event", "another name")
    if dropped:
        return  # the receipt says how many; which ones nobody knows
    frame = (*names[:3], *names[3:][-1:])
    if frame != _FRAME:
        raise EvidenceError(
            "the telemetry does not show a whole run",
            expected="Init, Loading, LoadComplete, ..., ShutdownComplete",
            found=", ".join(frame),
        )
    inner = names[3:-1]
    if not _INNER.issuperset(inner):
        line, name = next((at, name) for at, name in enumerate(inner, 4) if name not in _INNER)
        raise _bad(line, "an event between LoadComplete and the end", name)


def _bad(number: int, expected: str, found: str) -> EvidenceError:
    return EvidenceError(f"telemetry line {number} is not valid", expected=expected, found=found)
