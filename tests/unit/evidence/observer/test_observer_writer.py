"""The spliced lines are the canonical lines, and the bounds hold."""

from __future__ import annotations

import struct

import pytest

from tallystick.contracts.codec import decode
from tallystick.errors import RunFailedError
from tallystick.evidence.observer import writer as module
from tallystick.evidence.observer.records import Header, Result, SourceRecord, TensorRecord
from tallystick.evidence.observer.writer import Step, TranscriptWriter, step_template, template
from tests.golden import reference_observer as reference


def written(observer: str) -> bytes:
    """Return the reference transcript, written by the program."""
    writer = TranscriptWriter()
    first, *_, last = reference.records(observer)
    lines = [writer.header(decode(Header, first))]
    for position, (phase, number) in enumerate(reference.steps() if observer != "off" else []):
        nodes, read = [], []
        for made, sources, _, _ in reference.graph():
            nodes.append(
                template(
                    observer, decode(TensorRecord, made), [decode(SourceRecord, s) for s in sources]
                )
            )
            data = None
            if observer == "sketch" and made["op"] == "MUL_MAT":
                data = reference.product_data(made["name"], position)
            elif observer == "sketch" and made["name"] == "ffn_moe_topk-0":
                data = struct.pack("<2i", *reference.CHOSEN[position])
            read.append(data)
        lines.append(writer.step(step_template(nodes), Step(phase, number, position), read))
    lines.append(writer.result(decode(Result, last)))
    return b"".join(lines)


@pytest.mark.parametrize("observer", ["off", "graph", "sketch"])
def test_it_writes_what_the_second_implementation_writes(observer: str) -> None:
    assert written(observer) == reference.transcript(observer)


def test_names_are_escaped_like_any_other_text() -> None:
    name = 'a"b\\c%d\x01 日本'
    tensor = TensorRecord(name, "ADD", "f32", (1, 1, 1, 1), 4)
    plan = step_template([template("graph", tensor, [])])
    line = TranscriptWriter().step(plan, Step("prefill", 0, 0), [None])
    expected = {
        "record": "event",
        "event_seq": 1,
        "phase": "prefill",
        "phase_step": 0,
        "stage": "ask_metadata",
        "layer": None,
        "categories": ["elementwise"],
        "tensor": {"name": name, "op": "ADD", "type": "f32", "shape": [1, 1, 1, 1], "n_bytes": 4},
        "sources": [],
    }
    assert line == reference.line(expected)


@pytest.mark.parametrize(
    ("bound", "value"), [("MAX_EVENTS", 17), ("MAX_TRANSCRIPT", 9000), ("MAX_LINE", 400)]
)
def test_a_bound_is_not_passed(bound: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, bound, value)
    with pytest.raises(RunFailedError, match="larger than its readers accept"):
        written("sketch")
