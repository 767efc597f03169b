"""Transcripts of sealing passes: what their reader takes, every rule by itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.contracts.runtime import RowClass
from tallystick.errors import EvidenceError
from tallystick.evidence.adapter.transcript import adapt_transcript
from tallystick.evidence.observer.reader import TranscriptReader, read_transcript
from tallystick.evidence.observer.sealing import sealing_policy, sealing_steps
from tallystick.execution.schedule import Chunk, batch, chunks
from tests.golden import reference_observer as live
from tests.golden import reference_sealing_pass as reference
from tests.golden.reference_sealing_pass import Pass
from tests.support.evidence import BLIND, SEALING_GATE

Records = list[dict[str, Any]]
Change = Callable[[Records], object]
RUN = Pass()
FIRST = reference.records(RUN)
# Places in the transcript: the first product, the route behind the first choice, and of the second
# step the choice of the last layer, whose batch has rows with outputs that nobody samples from.
PRODUCT = 2
ROUTE = next(i for i, x in enumerate(FIRST) if x["record"] == "route")
LAST = next(i for i, x in enumerate(FIRST) if x.get("tensor", {}).get("name") == "ffn_moe_topk-1")
PASSES = st.builds(
    Pass,
    prompt=st.lists(st.integers(0, 10), min_size=1, max_size=12).map(tuple),
    generated=st.lists(st.integers(0, 10), min_size=1, max_size=9).map(tuple),
    floor=st.integers(1, 4),
    top=st.integers(4, 9),
)


def lines(records: Records) -> list[bytes]:
    return [*map(live.line, records)]


def changed(change: Change) -> list[bytes]:
    records = copy.deepcopy(FIRST)
    change(records)
    return lines(records)


def setting(index: int, *path: str | int, to: object) -> Change:
    def change(records: Records) -> None:
        place: Any = records[index]
        for key in path[:-1]:
            place = place[key]
        assert place[path[-1]] != to
        place[path[-1]] = to

    return change


@given(PASSES, st.sampled_from(["graph", "sketch"]))
def test_any_pass_is_read_and_gives_its_evidence(run: Pass, observer: str) -> None:
    data = reference.transcript(run, observer)
    read = read_transcript([data])
    expected = reference.chunks(run)
    assert read.sealing_steps == len(expected)
    found = adapt_transcript([data], SEALING_GATE, BLIND)
    steps = [(s.first_position, s.tokens) for s in found.evidence.schedule.steps]
    assert steps == [(c.positions.start, len(c.positions)) for c in expected]
    if observer == "graph":
        assert (found.routes, found.evidence.trace) == (None, None)
        return
    assert found.routes is not None
    rows = [
        reference.chosen(position, layer)
        for position in range(run.positions)
        for layer in range(reference.LAYERS)
        if layer == 0 or position >= len(run.prompt) - 1
    ]
    assert found.routes.ids == b"".join(i.to_bytes(4, "little") for row in rows for i in row)


@given(PASSES)
def test_the_steps_are_the_batches_that_are_evaluated(run: Pass) -> None:
    row_class = RowClass(run.floor, run.top)
    policy = sealing_policy(
        row_class, len(run.prompt), len(run.generated), cells=256, threads=1, sampler="greedy"
    )
    outputs_from = len(run.prompt) - 1
    wanted = []
    for chunk in chunks(run.positions, row_class):
        rows = batch((0,) * chunk.rows, Chunk(chunk.first, chunk.end), outputs_from, row_class)
        wanted.append((chunk.first, chunk.rows, len(rows.tokens), sum(rows.outputs)))
    steps = sealing_steps(policy)
    assert [(s.first, s.tokens, s.rows, s.outputs) for s in steps] == wanted
    assert sum(step.due for step in steps) == len(run.generated)


def test_no_line_can_be_dropped_repeated_or_swapped() -> None:
    whole = lines(FIRST)
    for i in range(len(whole)):
        others = [whole[:i] + whole[i + 1 :], whole[: i + 1] + whole[i:]]
        if i:
            others.append([*whole[: i - 1], whole[i], whole[i - 1], *whole[i + 1 :]])
        for other in others:
            with pytest.raises(EvidenceError):
                read_transcript(other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (setting(0, "observer", to="off"), "observer"),
        (setting(0, "execution_policy", "policy", to="sequential"), "policy"),
        (setting(0, "execution_policy", "row_floor", to=5), "floor above"),
        (setting(0, "execution_policy", "row_floor", to=1), "execution_policy"),
        (setting(0, "execution_policy", "row_max", to=5), "execution_policy"),
        (setting(0, "execution_policy", "n_batch", to=3), "execution_policy"),
        (setting(0, "execution_policy", "n_ubatch", to=3), "execution_policy"),
        (setting(0, "execution_policy", "n_seq_max", to=1), "execution_policy"),
        (setting(0, "execution_policy", "n_threads_batch", to=1), "execution_policy"),
        (setting(0, "execution_policy", "flash_attn", to="enabled"), "execution_policy"),
        (setting(0, "execution_policy", "type_k", to="q8_0"), "execution_policy"),
        (setting(0, "execution_policy", "use_mmap", to=False), "execution_policy"),
        (setting(0, "execution_policy", "n_ctx", to=8), "does not hold"),
        (setting(0, "execution_policy", "sampler", to="best"), "sampler"),
        (setting(0, "execution_policy", "prompt_tokens", to=0), "prompt_tokens"),
        (setting(0, "execution_policy", "prompt_tokens", to=6), "rows than its step"),
        (setting(0, "execution_policy", "generated_tokens", to=4), "rows than its step"),
        (setting(0, "execution_policy", "generated_tokens", to=2), "rows than its step"),
        (setting(0, "execution_policy", "generated_tokens", to=40), "rows than its step"),
        (setting(1, "phase", to="prefill"), "steps are out of order"),
        (setting(1, "phase", to="decode"), "steps are out of order"),
        (setting(1, "phase_step", to=1), "steps are out of order"),
        (setting(ROUTE, "position", to=1), "does not fit the event"),
        (setting(ROUTE + 1, "position", to=0), "does not fit the event"),
        (setting(ROUTE, "expert_ids", to=[1]), "does not fit the event"),
        (setting(LAST + 1, "position", to=5), "does not fit the event"),
        (setting(LAST, "tensor", "shape", to=[2, 1, 1, 1]), "rows than its step"),
        (setting(LAST, "tensor", "shape", to=[2, 2, 2, 1]), "rows than its step"),
        (setting(ROUTE - 1, "tensor", "shape", to=[2, 2, 1, 1]), "rows than its step"),
        (setting(-1, "prompt_token_ids", to=[1] * 6), "other tokens"),
        (setting(-1, "generated_token_ids", to=[1] * 4), "other tokens"),
    ],
)
def test_every_rule_by_itself(change: Change, message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        read_transcript(changed(change))


def test_a_run_is_no_pass_and_a_pass_is_no_run() -> None:
    run = lines(live.records("sketch"))
    whole = lines(FIRST)
    for mixed in ([run[0], *whole[1:]], [whole[0], *run[1:]]):
        with pytest.raises(EvidenceError, match="out of order"):
            read_transcript(mixed)


def test_a_pass_ends_with_its_last_chunk() -> None:
    """Neither a chunk too few nor one too many is taken, where all else is as it should be."""
    short, long = Pass(generated=(2,)), Pass(generated=(2, 6))
    assert [len(c.positions) for c in reference.chunks(short)] == [4, 3]
    header, last = reference.records(short)[0], reference.records(short)[-1]
    fewer = [r for r in reference.records(short)[1:-1] if r["phase_step"] == 0]
    events = sum(record["record"] == "event" for record in fewer)
    with pytest.raises(EvidenceError, match="fewer steps"):
        read_transcript(lines([header, *fewer, {**last, "event_count": events}]))
    more = [dict(record) for record in reference.records(short)[1:-1]]
    extra = {**reference.records(long)[1], "phase_step": 2, "event_seq": 1 + last["event_count"]}
    with pytest.raises(EvidenceError, match="more steps"):
        read_transcript(lines([header, *more, extra]))


def test_after_an_error_nothing_is_taken() -> None:
    reader = TranscriptReader()
    reader.feed(live.line(FIRST[0]))
    with pytest.raises(EvidenceError):
        reader.feed(live.line({**FIRST[1], "phase": "prefill"}))
    for line in lines(FIRST)[1:]:
        with pytest.raises(EvidenceError, match="refused before"):
            reader.feed(line)
