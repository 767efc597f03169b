"""Transcripts to evidence: the golden one and its changes, through gate, reader and collector."""

from __future__ import annotations

import copy
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tallystick.canonical.hashing import domain_hash
from tallystick.compute.operations import (
    ElementwiseAdd,
    EmbeddingLookup,
    Gemm,
    KvCacheWrite,
)
from tallystick.errors import EvidenceError, IncomparableError
from tallystick.evidence.adapter.gates import QWEN36_35B_A3B_GATE, HeaderGate
from tallystick.evidence.adapter.transcript import AdaptedTranscript, adapt_transcript
from tallystick.evidence.gemm_trace import gemm_root
from tallystick.evidence.schedule import pack_indexes
from tests.golden import reference_observer as reference
from tests.support.evidence import BLIND, DECODE, PREFILL, SMALL_GATE, at, schedule_of, small_header

GOLDEN = Path(__file__).parents[4] / "docs" / "spec" / "vectors" / "observer.jsonl"
GATE = SMALL_GATE
Records = list[dict[str, Any]]


def records(observer: str = "sketch") -> Records:
    """Return the golden transcript's records with the header of a model that has a gate."""
    header = json.loads(small_header(observer))
    return [header, *copy.deepcopy(reference.records(observer)[1:])]


def adapted(found: Records) -> AdaptedTranscript:
    return adapt_transcript(map(reference.line, found), GATE, BLIND)


def test_the_golden_file_is_of_no_known_architecture() -> None:
    with pytest.raises(IncomparableError, match="qwen35moe") as refusal:
        adapt_transcript([GOLDEN.read_bytes()], QWEN36_35B_A3B_GATE, BLIND)
    assert refusal.value.exit_code == 3


def test_the_lines_of_the_golden_file_become_evidence() -> None:
    lines = GOLDEN.read_bytes().splitlines(keepends=True)
    assert lines[1:] == [*map(reference.line, records()[1:])]
    found = adapt_transcript([reference.line(records()[0]), *lines[1:]], GATE, BLIND)

    operations = [
        *at(0, EmbeddingLookup(4)),
        *at(1, Gemm(4, 1, 4, 1), KvCacheWrite(128), ElementwiseAdd(4)),
        *at(0, Gemm(11, 1, 4, 1)),
    ]
    expected = schedule_of(*[(phase, 1, operations) for phase in (PREFILL, PREFILL, DECODE)])
    assert found.evidence.schedule == expected
    assert found.evidence.trace is not None
    places = (1, 4, 6, 9, 11, 14)
    sketches = [
        reference.sketch(reference.product_data(name, step))
        for step in range(3)
        for name in ("Qcur-0", "result_output")
    ]
    groups = b"".join(
        struct.pack("<I", place) + bytes.fromhex(digits)
        for place, digits in zip(places, sketches, strict=True)
    )
    assert found.evidence.trace.groups == groups
    assert found.gemm_root == gemm_root(BLIND, found.evidence.trace)
    assert found.routes is not None
    assert (found.routes.rows, found.routes.ids) == (3, pack_indexes([3, 1, 0, 2, 1, 0]))
    parts = [b"\1\0\0\0", b"\4\0\0\0", b"\2\0\0\0", b"\3" + bytes(7), found.routes.ids]
    assert found.expert_route_root == domain_hash("palw.expert-routes", 1, [BLIND, *parts])
    assert (found.transcript.events, found.transcript.gemms, found.transcript.routes) == (18, 6, 3)


def test_a_graph_has_no_trace_and_no_routes() -> None:
    found = adapted(records("graph"))
    assert found.evidence.schedule == adapted(records()).evidence.schedule
    assert (found.evidence.trace, found.routes) == (None, None)
    assert (found.gemm_root, found.expert_route_root) == (None, None)


def test_an_unobserved_run_has_no_evidence() -> None:
    with pytest.raises(EvidenceError, match="unobserved"):
        adapted(records("off"))


def test_pieces_of_any_size_give_the_same() -> None:
    data = b"".join(map(reference.line, records()))
    whole = adapted(records())
    pieces = [data[start : start + 7] for start in range(0, len(data), 7)]
    assert adapt_transcript(pieces, GATE, BLIND) == whole


def test_a_transcript_cut_short_has_no_evidence() -> None:
    lines = [*map(reference.line, records())]
    for count in range(len(lines)):
        with pytest.raises(EvidenceError):
            adapt_transcript(lines[:count], GATE, BLIND)


def test_a_header_that_contradicts_its_profile() -> None:
    found = records()
    found[0]["model"]["n_vocab"] = 12
    with pytest.raises(EvidenceError, match=r"model\.n_vocab contradicts"):
        adapted(found)


def everywhere(found: Records, which: str, **changes: Any) -> Records:
    """Change a tensor in every step."""
    for record in found:
        if record["record"] == "event" and record["tensor"]["name"] == which:
            record["tensor"].update(changes)
    return found


def test_an_operation_without_a_canonical_one() -> None:
    found = everywhere(records(), "l_out-0", op="ADD_ID")
    for record in found:
        if record["record"] == "event" and record["tensor"]["name"] == "l_out-0":
            record["categories"] = ["other", "layer_output"]
    with pytest.raises(EvidenceError, match="without a canonical one"):
        adapted(found)


def test_a_layer_that_the_model_does_not_have() -> None:
    found = everywhere(records(), "l_out-0", name="l_out-1")
    for record in found:
        if record["record"] == "event" and record["tensor"]["name"] == "l_out-1":
            record["layer"] = 1
    with pytest.raises(EvidenceError, match="layer that the model does not have"):
        adapted(found)


def test_routes_among_other_experts() -> None:
    gate = {"experts": 8}
    found = records()
    for entry in found[0]["model"]["metadata"]:
        if entry["key"] == "qwen35moe.expert_count":
            entry["value"] = "8"
    wider = HeaderGate(**{name: getattr(GATE, name) for name in HeaderGate.__slots__} | gate)
    with pytest.raises(EvidenceError, match="other experts"):
        adapt_transcript(map(reference.line, found), wider, BLIND)


def test_a_step_without_its_routes_is_refused() -> None:
    """The reader ties a route to its event, so both are left out."""
    found = [r for r in records() if r["record"] != "route"]
    found = [r for r in found if r.get("tensor", {}).get("name") != "ffn_moe_topk-0"]
    events = [r for r in found if r["record"] == "event"]
    for number, record in enumerate(events, start=1):
        record["event_seq"] = number
    found[-1]["event_count"] = len(events)
    with pytest.raises(EvidenceError, match="do not cover a batch"):
        adapted(found)


def test_the_blind_changes_the_roots_only() -> None:
    one, other = (
        adapted(records()),
        adapt_transcript(map(reference.line, records()), GATE, BLIND[::-1]),
    )
    assert one.evidence == other.evidence
    assert one.gemm_root != other.gemm_root
    assert one.expert_route_root != other.expert_route_root


def test_nothing_private_is_shown() -> None:
    shown = repr(adapted(records()))
    assert "routes" not in shown
    assert "prompt_token_ids" not in shown
    assert json.dumps(reference.PROMPT_IDS) not in shown
