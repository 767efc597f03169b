from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tallystick.canonical.json import parse_canonical
from tallystick.errors import EvidenceError
from tallystick.telemetry.events import Event, EventKind, Stamper
from tallystick.telemetry.log import MAX_LINE, encode_event, encode_log, parse_log
from tallystick.telemetry.rss import resident_bytes
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


def test_an_index_belongs_to_tokens_only() -> None:
    with pytest.raises(ValueError, match="TokenEmitted"):
        Event(EventKind.INIT, 0, 0, 0, 0, index=0)
    with pytest.raises(ValueError, match="TokenEmitted"):
        Event(EventKind.TOKEN_EMITTED, 0, 0, 0, 0)


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
