"""The strict reader: every rule by itself, and no way back from an error."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import EvidenceError
from tallystick.evidence.observer.reader import Limits, TranscriptReader, read_transcript
from tallystick.evidence.observer.sealing import Record
from tests.golden import reference_observer as reference

Records = list[dict[str, Any]]
Change = Callable[[Records], object]
MODES = ["off", "graph", "sketch"]
# Records of the sketch transcript: a header, and 7 a step with a product and a route early on.
PRODUCT, ROUTE, STEP = 2, 5, 7


def changed(change: Change, observer: str = "sketch") -> bytes:
    records = copy.deepcopy(reference.records(observer))
    change(records)
    return b"".join(map(reference.line, records))


def setting(index: int, *path: str | int, to: object) -> Change:
    def change(records: Records) -> None:
        place: Any = records[index]
        for key in path[:-1]:
            place = place[key]
        assert place[path[-1]] != to
        place[path[-1]] = to

    return change


@pytest.mark.parametrize("observer", MODES)
@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 20])
def test_pieces_of_any_size(observer: str, size: int) -> None:
    data = reference.transcript(observer)
    reader = TranscriptReader()
    found: list[Record] = []
    for start in range(0, len(data), size):
        found += reader.feed(data[start : start + size])
    assert [record.record for record in found] == [
        record["record"] for record in reference.records(observer)
    ]
    assert reader.finish().header.observer == observer


@pytest.mark.parametrize("observer", MODES)
def test_no_line_can_be_dropped_repeated_or_swapped(observer: str) -> None:
    lines = [*map(reference.line, reference.records(observer))]
    for i in range(len(lines)):
        others = [lines[:i] + lines[i + 1 :], lines[: i + 1] + lines[i:]]
        if i:
            others.append([*lines[: i - 1], lines[i], lines[i - 1], *lines[i + 1 :]])
        for other in others:
            with pytest.raises(EvidenceError):
                read_transcript(other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (setting(0, "schema", to="misaka.palw.other"), "schema"),
        (setting(0, "schema_version", to=1), "schema_version"),
        (setting(0, "trace_variant", to="metal_kernel"), "trace_variant"),
        (setting(0, "cuda_kernel_trace", to=True), "cuda_kernel_trace"),
        (setting(0, "execution_policy", "n_batch", to=2), "execution_policy"),
        (setting(0, "execution_policy", "flash_attn", to="enabled"), "execution_policy"),
        (setting(0, "observation_policy", "kernel_trace_claim", to="cuda"), "observation_policy"),
        (setting(0, "observer", to="graph"), "has not the parts"),
        (setting(0, "observer", to="all"), "observer"),
        (setting(1, "event_seq", to=2), "number is out of order"),
        (setting(1, "phase", to="decode"), "steps are out of order"),
        (setting(1, "phase_step", to=1), "steps are out of order"),
        (setting(STEP + 1, "phase_step", to=2), "steps are out of order"),
        (setting(2 * STEP + 1, "phase_step", to=1), "steps are out of order"),
        (setting(2 * STEP + 2, "phase", to="prefill"), "steps are out of order"),
        (setting(1, "layer", to=0), "layer or categories"),
        (setting(PRODUCT, "layer", to=1), "layer or categories"),
        (setting(1, "categories", to=["gemm"]), "layer or categories"),
        (setting(1, "tensor", "shape", to=[4, 1, 1]), "four extents"),
        (setting(1, "tensor", "shape", to=[0, 1, 1, 1]), "shape"),
        (setting(1, "sources", 0, "shape", to=[4]), "four extents"),
        (setting(PRODUCT, "tensor", "op", to="MUL_MAT_ID"), "has not the parts"),
        (setting(PRODUCT, "gemm", "m", to=5), "gemm does not follow"),
        (setting(PRODUCT, "gemm", "batch_shape", to=[1]), "gemm does not follow"),
        (setting(PRODUCT, "sources", 0, "shape", to=[5, 4, 1, 1]), "do not fit"),
        (setting(PRODUCT, "sketch", "elements", to=5), "another number of elements"),
        (setting(PRODUCT, "tile", "elements", to=5), "another number of elements"),
        (setting(PRODUCT, "sketch", "hex", to="0" * 63 + "1"), "do not exist"),
        (setting(PRODUCT, "sketch", "hex", to="0" * 63), "hex"),
        (setting(PRODUCT, "kernel_trace", "available", to=True), "kernel trace"),
        (setting(PRODUCT, "kernel_trace", "claim", to="cuda_kernel_trace"), "kernel trace"),
        (setting(PRODUCT, "stage", to="ask_metadata"), "kernel_trace"),
        (setting(ROUTE, "route_seq", to=2), "does not fit the event"),
        (setting(ROUTE, "event_seq", to=3), "does not fit the event"),
        (setting(ROUTE, "position", to=1), "does not fit the event"),
        (setting(ROUTE, "layer", to=1), "does not fit the event"),
        (setting(ROUTE, "expert_count", to=5), "does not fit the event"),
        (setting(ROUTE, "expert_ids", to=[3]), "does not fit the event"),
        (setting(ROUTE, "expert_ids", to=[3, 3]), "twice"),
        (setting(ROUTE, "expert_ids", to=[3, 4]), "does not exist"),
        (setting(-1, "status", to="failed"), "status"),
        (setting(-1, "stop_reason", to="other"), "stop_reason"),
        (setting(-1, "event_count", to=17), "counts other events"),
        (setting(-1, "prompt_token_ids", to=[3]), "other tokens"),
        (setting(-1, "generated_token_ids", to=[5]), "other tokens"),
        (setting(-1, "generated_token_ids", to=[]), "impossible number"),
        (setting(-1, "generated_token_ids", to=[5, 11]), "beyond the vocabulary"),
        (setting(-1, "output_n_bytes", to=3), "output bytes"),
        (lambda records: records[1].pop("layer"), "layer"),
        (lambda records: records[1].update(more=1), "more"),
        (lambda records: records[1].update(record="header"), "one header"),
        (lambda records: records[1].pop("record"), "no known kind"),
        (lambda records: records.append(records[-1]), "behind its result"),
    ],
)
def test_each_rule(change: Change, message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        read_transcript([changed(change)])


def test_ids_that_do_not_fit_the_context() -> None:
    change = setting(-1, "prompt_token_ids", to=[0] * 4095)
    with pytest.raises(EvidenceError, match="impossible number"):
        read_transcript([changed(change, "off")])


def test_a_line_that_is_not_canonical() -> None:
    data = reference.transcript("sketch").replace(b'"event_seq":1,', b'"event_seq": 1,', 1)
    with pytest.raises(EvidenceError, match="canonical"):
        read_transcript([data])


@pytest.mark.parametrize("end", [0, 1, -1, -200])
def test_a_transcript_that_is_cut_short(end: int) -> None:
    with pytest.raises(EvidenceError, match="cut short"):
        read_transcript([reference.transcript("graph")[:end]])


def test_poison_is_for_ever() -> None:
    reader = TranscriptReader()
    lines = [*map(reference.line, reference.records("graph"))]
    reader.feed(lines[0] + lines[1])
    with pytest.raises(EvidenceError, match="out of order"):
        reader.feed(lines[1])
    for later in (b"", lines[2], *lines):
        with pytest.raises(EvidenceError, match="refused before"):
            reader.feed(later)
    with pytest.raises(EvidenceError, match="refused before"):
        reader.finish()


def test_an_early_finish_poisons_too() -> None:
    reader = TranscriptReader()
    with pytest.raises(EvidenceError, match="cut short"):
        reader.finish()
    with pytest.raises(EvidenceError, match="refused before"):
        reader.feed(reference.transcript("off"))


def test_the_bounds_hold_exactly() -> None:
    data = reference.transcript("sketch")
    longest = max(map(len, data.splitlines(keepends=True)))
    read_transcript([data], Limits(events=18, line=longest, total=len(data)))
    for limits, message in (
        (Limits(events=17), "too many events"),
        (Limits(line=longest - 1), "line is too large"),
        (Limits(total=len(data) - 1), "transcript is too large"),
    ):
        with pytest.raises(EvidenceError, match=message):
            read_transcript([data], limits)


def test_a_line_without_end_is_refused_before_it_is_kept() -> None:
    reader = TranscriptReader(Limits(line=100))
    reader.feed(b"{" * 99)
    with pytest.raises(EvidenceError, match="line is too large"):
        reader.feed(b"{")


def test_private_values_are_in_no_error_and_no_repr() -> None:
    secret = 987654321
    change = setting(-1, "prompt_token_ids", to=[3, secret])
    with pytest.raises(EvidenceError) as caught:
        read_transcript([changed(change)])
    assert str(secret) not in str(caught.value)
    read = read_transcript([reference.transcript("off")])
    assert "token_ids" not in repr(read)
    assert "token_ids" not in repr(read.result)


@given(st.lists(st.tuples(st.sampled_from(["prefill", "decode"]), st.integers(0, 3)), max_size=6))
def test_steps_are_accepted_in_one_order_only(steps: list[tuple[str, int]]) -> None:
    reader = TranscriptReader()
    first, event = reference.records("graph")[:2]
    reader.feed(reference.line(first))
    allowed = [("prefill", 0)]
    for number, (phase, step) in enumerate(steps, start=1):
        line = reference.line({**event, "event_seq": number, "phase": phase, "phase_step": step})
        if (phase, step) not in allowed:
            with pytest.raises(EvidenceError, match="out of order"):
                reader.feed(line)
            return
        reader.feed(line)
        allowed = [(phase, step), (phase, step + 1)]
        if phase == "prefill":
            allowed.append(("decode", 0))


@pytest.mark.parametrize(
    "data",
    [
        b'{"core":{"schema":"another"}}',
        b'{"core":{"a":[[[[[[[[[[1]]]]]]]]]]}}',
        b'{"core":1}\n',
        b"[1]",
        b"# A page\n\nWith text.\n",
        b"# A page",
        b"\n",
        b"GGUF\x00\xff",
    ],
)
def test_a_file_of_another_kind_is_no_transcript(data: bytes) -> None:
    with pytest.raises(EvidenceError, match="not a transcript") as caught:
        read_transcript([data])
    assert "header" in str(caught.value.expected)
    assert caught.value.hint is not None


@pytest.mark.parametrize("end", [1, 9, -1, -200])
def test_a_transcript_that_is_cut_short_says_what_to_do(end: int) -> None:
    with pytest.raises(EvidenceError, match="cut short") as caught:
        read_transcript([reference.transcript("graph")[:end]])
    assert caught.value.hint is not None
