from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tallystick.canonical.json import parse_canonical
from tallystick.contracts.layout import TELEMETRY
from tallystick.errors import EvidenceError
from tallystick.telemetry.events import MAX_LAYER_EVENTS, Event, EventKind, Stamper
from tallystick.telemetry.log import MAX_LINE, encode_event, encode_log, parse_log
from tallystick.telemetry.rss import resident_bytes
from tallystick.worker.request import MAX_TOKENS
from tests.support.sets import make_events

LOG = encode_log(make_events(3))
LINES = LOG.splitlines(keepends=True)


def test_a_whole_log_round_trips() -> None:
    log = parse_log(LOG)
    assert (log.tokens, log.dropped) == (3, 0)
    assert list(log.events()) == make_events(3)


def test_every_line_is_canonical_json() -> None:
    for line in LINES:
        parse_canonical(line[:-1], max_bytes=MAX_LINE)


def test_the_longest_line_stays_within_its_bound() -> None:
    top = 2**64 - 1
    line = encode_event(Event(EventKind.TOKEN_EMITTED, 2**32 - 1, top, top, top, 2**32 - 1))
    assert len(line) <= MAX_LINE


@pytest.mark.parametrize("field", ["seq", "monotonic_ns", "wall_ns", "rss", "index"])
def test_a_negative_number_is_not_written(field: str) -> None:
    change: dict[str, Any] = {field: -1}
    event = dataclasses.replace(make_events(1)[4], **change)
    with pytest.raises(ValueError, match="out of range"):
        encode_event(event)


@pytest.mark.parametrize(("index", "accepted"), [(2**32 - 1, True), (2**32, False)])
def test_an_index_beyond_32_bits_is_refused_where_others_were_dropped(
    index: int, accepted: bool
) -> None:
    first, *_, token, _last = LINES
    old = b'"index":2,'
    assert old in token
    data = first + token.replace(old, b'"index":%d,' % index)
    if accepted:
        assert parse_log(data).tokens == 1
        return
    with pytest.raises(EvidenceError, match="out of range"):
        parse_log(data)


def test_an_index_belongs_to_tokens_only() -> None:
    with pytest.raises(ValueError, match="TokenEmitted"):
        Event(EventKind.INIT, 0, 0, 0, 0, index=0)
    with pytest.raises(ValueError, match="TokenEmitted"):
        Event(EventKind.TOKEN_EMITTED, 0, 0, 0, 0)


def test_a_layer_belongs_to_its_events_only() -> None:
    with pytest.raises(ValueError, match="layer"):
        Event(EventKind.INIT, 0, 0, 0, 0, layer=0)
    with pytest.raises(ValueError, match="layer"):
        Event(EventKind.LAYER_EVICTED, 0, 0, 0, 0)


def with_layers(*kinds: EventKind) -> list[Event]:
    """Return a whole run with events of layers after its load."""
    events = make_events(3)
    loaded = events[2]
    moved = [Event(kind, 0, loaded.monotonic_ns, 1, 2, layer=n) for n, kind in enumerate(kinds)]
    whole = [*events[:3], *moved, *events[3:]]
    return [dataclasses.replace(event, seq=seq) for seq, event in enumerate(whole)]


def test_events_of_layers_round_trip_and_are_counted() -> None:
    events = with_layers(EventKind.LAYER_EVICTED, EventKind.PREFETCH_HIT, EventKind.LAYER_EVICTED)
    log = parse_log(encode_log(events))
    assert list(log.events()) == events
    assert log.layers == {
        EventKind.LAYER_EVICTED: 2,
        EventKind.PREFETCH_HIT: 1,
        EventKind.PREFETCH_MISS: 0,
        EventKind.LAYER_INSTALLED: 0,
    }
    assert parse_log(LOG).layers is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"layer":1,', b"", "line 5"),
        (b'"layer":1,', b'"index":1,', "line 5"),
        (b'"layer":1,', b'"layer":01,', "line 5"),
        (b'"layer":1,', b'"layer":4294967296,', "range"),
        (b'"index":1,', b'"layer":1,', "line 8"),
        (b'"LayerEvicted"', b'"ArenaReset"', "line 4"),
        (b'"event":"ArenaReset",', b'"event":"ArenaReset","layer":0,', "line 6"),
    ],
)
def test_an_edited_log_with_layers_is_refused(old: bytes, new: bytes, message: str) -> None:
    whole = encode_log(with_layers(EventKind.LAYER_EVICTED, EventKind.PREFETCH_MISS))
    edited = whole.replace(old, new, 1)
    assert edited != whole
    with pytest.raises(EvidenceError, match=message):
        parse_log(edited)


def test_no_more_events_of_layers_than_the_bound() -> None:
    kinds = [EventKind.LAYER_INSTALLED] * MAX_LAYER_EVENTS
    assert parse_log(encode_log(with_layers(*kinds))).dropped == 0
    with pytest.raises(EvidenceError, match="too many events of layers"):
        parse_log(encode_log(with_layers(*kinds, EventKind.PREFETCH_HIT)))


def test_the_largest_file_fits_its_bound() -> None:
    # Tokens, events of layers, and the few others, each on a line of the largest size.
    assert TELEMETRY.max_bytes > MAX_LINE * (MAX_TOKENS + MAX_LAYER_EVENTS + 8)
    top = 2**64 - 1
    longest = Event(EventKind.LAYER_INSTALLED, 2**32 - 1, top, top, top, layer=2**32 - 1)
    assert len(encode_event(longest)) <= MAX_LINE


def test_a_stamper_numbers_and_stamps() -> None:
    stamp = Stamper(resident_bytes, first_seq=5)
    first, second = stamp(EventKind.INIT), stamp(EventKind.TOKEN_EMITTED, 0)
    assert (first.seq, second.seq, second.index) == (5, 6, 0)
    assert 0 < first.monotonic_ns <= second.monotonic_ns
    assert first.rss > 1 << 20


def test_every_cut_is_noticed() -> None:
    for end in range(len(LOG)):
        with pytest.raises(EvidenceError):
            parse_log(LOG[:end])


@pytest.mark.parametrize("missing", range(1, len(LINES) - 1))
def test_a_missing_line_is_counted(missing: int) -> None:
    log = parse_log(b"".join(LINES[:missing] + LINES[missing + 1 :]))
    assert log.dropped == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"Loading"', b'"Lodging"', "line 2"),
        (b'"Loading"', b'"LayerEvicted"', "line 2"),
        (b'"event":"Loading"', b'"event": "Loading"', "line 2"),
        (b'"seq":1,', b'"seq":01,', "line 2"),
        (b'"seq":1,', b'"seq":0,', "line 2"),
        (b'"seq":4,', b'"seq":99999999999,', "line 5"),
        (b'"seq":7', b'"seq":9999999999', "range"),
        (b'"index":1,', b'"index":2,', "line 6"),
        (b'"index":1,', b"", "line 6"),
        (b'"index":1,', b'"index":1,"id":7,', "line 6"),
        (b'"rss":"30000000"', b'"rss":30000000', "line 1"),
        (b'"rss":"30000000"', b'"rss":"18446744073709551616"', "range"),
        (b'"monotonic_ns":"1003000"', b'"monotonic_ns":"1001999"', "line 4"),
        (b"\n", b"\r\n", "line 1"),
        (b"\n", b"\n\n", "line 2"),
        (b'"Init"', b'"ArenaReset"', "whole run"),
        (b'"ArenaReset"', b'"Loading"', "line 4"),
        (b'"ShutdownComplete"', b'"ArenaReset"', "whole run"),
    ],
)
def test_an_edited_log_is_refused(old: bytes, new: bytes, message: str) -> None:
    edited = LOG.replace(old, new, 1)
    assert edited != LOG
    with pytest.raises(EvidenceError, match=message):
        parse_log(edited)


def test_an_empty_log_is_refused() -> None:
    for data in (b"", b"\n"):
        with pytest.raises(EvidenceError):
            parse_log(data)
