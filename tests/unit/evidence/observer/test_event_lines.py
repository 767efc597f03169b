"""Lines of known nodes: what is read the quick way is what the plain way reads."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.canonical.json import parse_canonical
from tallystick.errors import EvidenceError
from tallystick.evidence.observer.event_lines import EventLines
from tallystick.evidence.observer.reader import TranscriptReader
from tallystick.evidence.observer.records import AnyEvent
from tallystick.evidence.observer.sealing import Record
from tests.golden import reference_observer as reference

READER = TranscriptReader.__module__
#: The events of later steps, which the quick way reads.
LINES = [reference.line(record) for record in reference.records("sketch")]
STEP = 7
LATER = [i for i in range(STEP + 1, len(LINES) - 1) if b'"record":"route"' not in LINES[i]]


class Plain(EventLines):
    """Knows nothing, ever."""

    def find(self, line: bytes) -> AnyEvent | None:
        return None


def read(lines: list[bytes]) -> list[Record] | None:
    reader = TranscriptReader()
    found: list[Record] = []
    try:
        for line in lines:
            found += reader.feed(line)
        reader.finish()
    except EvidenceError:
        return None
    return found


def read_plainly(lines: list[bytes]) -> list[Record] | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(READER + ".EventLines", Plain)
        return read(lines)


@pytest.mark.parametrize("observer", ["graph", "sketch"])
def test_both_ways_read_the_same(observer: str) -> None:
    lines = [reference.line(record) for record in reference.records(observer)]
    found = read(lines)
    assert found is not None
    assert found == read_plainly(lines)


def test_the_quick_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    def count(line: bytes, **bounds: Any) -> Any:
        parsed.append(line)
        return parse_canonical(line, **bounds)

    monkeypatch.setattr(READER + ".parse_canonical", count)
    found = read(LINES)
    assert found is not None
    # The header, one step, the routes of the others, and the result.
    assert len(parsed) == 1 + STEP + 2 + 1
    again = [record for record in found if record.record == "event"]
    first, later = again[1], again[1 + STEP - 1]
    assert isinstance(first, AnyEvent)
    assert isinstance(later, AnyEvent)
    assert first.tensor is later.tensor


@settings(deadline=None)
@given(st.data())
def test_a_changed_line_is_read_alike(draw: st.DataObject) -> None:
    index = draw.draw(st.sampled_from(LATER))
    line = bytearray(LINES[index])
    start = draw.draw(st.integers(0, len(line) - 1))
    end = draw.draw(st.integers(start, min(len(line), start + 3)))
    line[start:end] = draw.draw(
        st.one_of(
            st.binary(max_size=3), st.text('0123456789abcdef,:"{}[]', max_size=3).map(str.encode)
        )
    )
    lines = [*LINES[:index], bytes(line), *LINES[index + 1 :]]
    assert read(lines) == read_plainly(lines)


def changed(index: int, old: bytes, new: bytes) -> list[bytes]:
    assert LINES[index].count(old) == 1
    return [*LINES[:index], LINES[index].replace(old, new), *LINES[index + 1 :]]


PRODUCT = next(i for i in LATER if b"Qcur-0" in LINES[i] and b"post_compute" in LINES[i])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"event_seq":8', b'"event_seq":08'),
        (b'"event_seq":8', b'"event_seq":9'),
        (b'"event_seq":8', b'"event_seq":8.0'),
        (b'"event_seq":8', b'"event_seq":-8'),
        (b'"event_seq":8', b'"event_seq":' + b"8" * 30),
        (b'"phase_step":1', b'"phase_step":01'),
        (b'"phase_step":1', b'"phase_step":4294967296'),
        (b'"phase":"prefill"', b'"phase":"sealing"'),
        (b'"phase":"prefill"', b'"phase":"decode"'),
        (b'00","scheme"', b'0","scheme"'),
        (b'00","scheme"', b'0A","scheme"'),
        (b'00","scheme"', b'01","scheme"'),
    ],
)
def test_the_numbers_themselves_are_checked(old: bytes, new: bytes) -> None:
    lines = changed(PRODUCT, old, new)
    assert read(lines) is None
    assert read_plainly(lines) is None


def test_digits_may_be_others() -> None:
    start = LINES[PRODUCT].index(b'"hex":"') + len('"hex":"')
    lines = [*LINES]
    lines[PRODUCT] = LINES[PRODUCT][:start] + b"f" + LINES[PRODUCT][start + 1 :]
    found = read(lines)
    assert found is not None
    assert found == read_plainly(lines) != read(LINES)


def test_decoys_inside_texts_are_not_taken_for_keys() -> None:
    """A source's name may look like the parts that the quick way goes by."""
    records = copy.deepcopy(reference.records("sketch"))
    decoys = ['","phase":"decode","phase_step":7,"record":"event"', '"hex":"' + "0" * 64, "]"]
    for number, record in enumerate(records):
        if record["record"] == "event" and record["tensor"]["op"] == "MUL_MAT":
            record["sources"][0]["name"] = decoys[number % len(decoys)]
    lines = [*map(reference.line, records)]
    found = read(lines)
    assert found is not None
    assert found == read_plainly(lines)
