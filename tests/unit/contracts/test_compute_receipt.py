"""The 30 fields: order and widths, structure, ids; nothing but the one encoding is taken."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.canonical.hashing import sha256
from tallystick.contracts import compute_receipt as contract
from tallystick.contracts.commitments import empty_gemm_root, no_trace_scheme
from tallystick.contracts.compute_receipt import (
    ComputeReceipt,
    EvidenceLevel,
    JobClass,
    SignedReceipt,
    TraceEvidence,
)
from tallystick.errors import EvidenceError, InputError

# The order and widths of the specification, written down a second time.
WIRE = (
    ("receipt_version", "H"),
    ("network_id", "32s"),
    ("request_commitment", "32s"),
    ("scheduler_job_id", "32s"),
    ("signed_assignment_id", "32s"),
    ("replica_slot", "B"),
    ("model_profile_id", "32s"),
    ("runtime_class_id", "32s"),
    ("runtime_manifest_hash", "32s"),
    ("shape_profile_id", "32s"),
    ("cu_ruleset_id", "32s"),
    ("trace_scheme_id", "32s"),
    ("trace_evidence", "B"),
    ("operation_schedule_commitment", "32s"),
    ("schedule_event_count", "Q"),
    ("canonical_compute_units", "Q"),
    ("prefill_tokens", "I"),
    ("decode_tokens", "I"),
    ("output_commitment", "32s"),
    ("gemm_trace_root", "32s"),
    ("trace_event_count", "Q"),
    ("owner_commitment", "32s"),
    ("worker_credential_id", "32s"),
    ("job_nullifier", "32s"),
    ("execution_nullifier", "32s"),
    ("job_class", "B"),
    ("evidence_level", "B"),
    ("timestamp", "Q"),
    ("issued_epoch", "Q"),
    ("expires_epoch", "Q"),
)
DIGESTS = tuple(name for name, code in WIRE if code == "32s")
HOUR = 3_600_000
LIMIT = 250_000


def receipt(**changes: Any) -> ComputeReceipt:
    """Return a traced receipt; its digests stand for their names."""
    digests = {name: sha256(name.encode()) for name in DIGESTS}
    body = ComputeReceipt(
        receipt_version=1,
        **digests,
        replica_slot=0,
        trace_evidence=TraceEvidence.GRAPH_FALLBACK,
        schedule_event_count=13770,
        canonical_compute_units=41692,
        prefill_tokens=5,
        decode_tokens=2,
        trace_event_count=2466,
        job_class=JobClass.SELF_LOCAL,
        evidence_level=EvidenceLevel.GEMM_TRACED,
        timestamp=1_796_040_001_250,
        issued_epoch=498_900,
        expires_epoch=498_924,
    )
    return replace(body, **changes)


BODY = receipt()
UNTRACED = {
    "trace_evidence": TraceEvidence.ABSENT,
    "trace_event_count": 0,
    "trace_scheme_id": no_trace_scheme(),
}
STATES = receipt(**UNTRACED, evidence_level=EvidenceLevel.STATE_COMMITTED)
GRAPH = receipt(**UNTRACED, evidence_level=EvidenceLevel.GRAPH, gemm_trace_root=empty_gemm_root())
SIGNED = SignedReceipt(BODY, bytes(range(64)))

digests = st.binary(min_size=32, max_size=32).filter(any)


@st.composite
def receipts(draw: st.DrawFn) -> ComputeReceipt:
    """Draw a receipt whose fields agree."""
    values: dict[str, Any] = {name: draw(digests) for name in DIGESTS}
    level = draw(st.sampled_from(EvidenceLevel))
    traced = level is EvidenceLevel.GEMM_TRACED or (
        level is EvidenceLevel.STATE_COMMITTED and draw(st.booleans())
    )
    job_class = draw(st.sampled_from(JobClass))
    schedule = draw(st.integers(1, LIMIT))
    timestamp = draw(st.integers(0, 2**64 - 1 - 24 * HOUR))
    if not traced:
        values["trace_scheme_id"] = no_trace_scheme()
    if level in (EvidenceLevel.NONE, EvidenceLevel.GRAPH):
        values["gemm_trace_root"] = empty_gemm_root()
    kinds = st.sampled_from([kind for kind in TraceEvidence if kind])
    return ComputeReceipt(
        receipt_version=1,
        **values,
        replica_slot=draw(st.integers(0, job_class.slots - 1)),
        trace_evidence=draw(kinds) if traced else TraceEvidence.ABSENT,
        schedule_event_count=schedule,
        canonical_compute_units=draw(st.integers(1, 2**64 - 1)),
        prefill_tokens=draw(st.integers(1, 2**32 - 1)),
        decode_tokens=draw(st.integers(1, 2**32 - 1)),
        trace_event_count=draw(st.integers(1, schedule)) if traced else 0,
        job_class=job_class,
        evidence_level=level,
        timestamp=timestamp,
        issued_epoch=timestamp // HOUR,
        expires_epoch=timestamp // HOUR + 24,
    )


@settings(deadline=None)
@given(receipts(), st.binary(min_size=64, max_size=64))
def test_a_valid_receipt_comes_back(body: ComputeReceipt, signature: bytes) -> None:
    signed = SignedReceipt(body, signature)
    data = contract.encode(signed)

    assert len(data) == 670
    assert contract.decode_strict(data) == signed


def test_fields_stand_in_the_order_and_width_of_the_specification() -> None:
    layout = struct.Struct("<" + "".join(code for _, code in WIRE))
    expected = layout.pack(*(getattr(BODY, name) for name, _ in WIRE))

    assert tuple(field.name for field in fields(ComputeReceipt)) == tuple(n for n, _ in WIRE)
    assert len(WIRE) == 30
    assert layout.size == contract.BODY_BYTES == 606
    assert contract.encode_body(BODY) == expected
    assert contract.encode(SIGNED) == expected + bytes(range(64))
    assert contract.DIGEST_FIELDS == DIGESTS
    assert len(DIGESTS) == 17


def test_ids_are_framed_hashes_of_the_body() -> None:
    body = contract.encode_body(BODY)

    def framed(domain: bytes, *parts: bytes) -> bytes:
        data = len(domain).to_bytes(2, "big") + domain + b"\x00\x01" + len(parts).to_bytes(4, "big")
        for part in parts:
            data += len(part).to_bytes(8, "big") + part
        return hashlib.sha256(data).digest()

    assert contract.receipt_id(BODY) == framed(b"palw.receipt-id", body)
    assert contract.body_id(BODY) == framed(b"palw.receipt-body", body)
    assert contract.signing_digest(BODY) == framed(b"palw.receipt-signing", BODY.network_id, body)


@pytest.mark.parametrize("name", [name for name, _ in WIRE])
def test_every_field_is_part_of_every_id(name: str) -> None:
    value = getattr(BODY, name)
    other = bytes(32) if isinstance(value, bytes) else type(value)(value ^ 1)
    changes: dict[str, Any] = {name: other}
    changed = replace(BODY, **changes)

    for digest in (contract.receipt_id, contract.body_id, contract.signing_digest):
        assert digest(changed) != digest(BODY)


@pytest.mark.parametrize("body", [BODY, STATES, GRAPH], ids=["traced", "states", "graph"])
def test_structure_holds(body: ComputeReceipt) -> None:
    contract.check_structure(body)


@pytest.mark.parametrize("name", DIGESTS)
def test_a_digest_of_zeros_is_refused(name: str) -> None:
    with pytest.raises(EvidenceError, match=name) as caught:
        contract.check_structure(replace(BODY, **{name: bytes(32)}))  # type: ignore[arg-type]
    assert caught.value.found == "32 zero bytes"


@pytest.mark.parametrize(
    ("body", "changes", "named"),
    [
        (BODY, {"receipt_version": 2}, "receipt_version"),
        (BODY, {"receipt_version": 0}, "receipt_version"),
        (BODY, {"replica_slot": 1}, "replica_slot"),
        (BODY, {"replica_slot": 1, "job_class": JobClass.SOLO_UNPAID}, "replica_slot"),
        (BODY, {"replica_slot": 2, "job_class": JobClass.REPLICA_EXTERNAL}, "replica_slot"),
        (BODY, {"replica_slot": 2, "job_class": JobClass.REPLICA_SELF_ORDERED}, "replica_slot"),
        (BODY, {"issued_epoch": 498_899, "expires_epoch": 498_923}, "issued_epoch"),
        (BODY, {"timestamp": 1_796_040_001_250 + HOUR}, "issued_epoch"),
        (BODY, {"expires_epoch": 498_925}, "expires_epoch"),
        (BODY, {"expires_epoch": 498_899}, "expires_epoch"),
        (BODY, {"prefill_tokens": 0}, "prefill_tokens"),
        (BODY, {"decode_tokens": 0}, "decode_tokens"),
        (BODY, {"schedule_event_count": 0, "trace_event_count": 0}, "schedule_event_count"),
        (BODY, {"schedule_event_count": LIMIT + 1}, "schedule_event_count"),
        (BODY, {"canonical_compute_units": 0}, "canonical_compute_units"),
        (BODY, {"trace_event_count": 13_771}, "trace_event_count"),
        (BODY, {"trace_event_count": 0}, "trace_event_count"),
        (BODY, UNTRACED, "trace_evidence"),
        (BODY, {"trace_scheme_id": no_trace_scheme()}, "trace_scheme_id"),
        (BODY, {"gemm_trace_root": empty_gemm_root()}, "gemm_trace_root"),
        (STATES, {"gemm_trace_root": empty_gemm_root()}, "gemm_trace_root"),
        (STATES, {"trace_event_count": 1}, "trace_event_count"),
        (STATES, {"trace_scheme_id": sha256(b"a scheme")}, "trace_scheme_id"),
        (STATES, {"trace_evidence": TraceEvidence.GRAPH_FALLBACK}, "trace_event_count"),
        (GRAPH, {"gemm_trace_root": sha256(b"a root")}, "gemm_trace_root"),
        (GRAPH, {"trace_evidence": TraceEvidence.GRAPH_FALLBACK}, "trace_evidence"),
        (GRAPH, {"evidence_level": EvidenceLevel.GEMM_TRACED}, "trace_evidence"),
        (BODY, {"evidence_level": EvidenceLevel.NONE}, "trace_evidence"),
    ],
)
def test_fields_that_contradict_each_other_are_named(
    body: ComputeReceipt, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(EvidenceError, match=f"compute receipt: {named} does not hold") as caught:
        contract.check_structure(replace(body, **changes))
    assert caught.value.expected is not None
    assert caught.value.found is not None


@pytest.mark.parametrize("slot", [0, 1])
def test_a_replica_has_two_slots(slot: int) -> None:
    contract.check_structure(receipt(job_class=JobClass.REPLICA_EXTERNAL, replica_slot=slot))


@pytest.mark.parametrize("length", [0, 606, 669, 671])
def test_another_length_is_refused(length: int) -> None:
    with pytest.raises(EvidenceError, match="another length") as caught:
        contract.decode_strict((contract.encode(SIGNED) + b"\x00")[:length])
    assert caught.value.expected == "670 bytes"


@pytest.mark.parametrize(("name", "most"), [("trace_evidence", 4), ("job_class", 3)])
def test_numbers_that_name_no_kind_are_refused(name: str, most: int) -> None:
    data = bytearray(contract.encode(SIGNED))
    codes = [code for _, code in WIRE]
    at = struct.calcsize("<" + "".join(codes[: [n for n, _ in WIRE].index(name)]))
    data[at] = most + 1
    with pytest.raises(EvidenceError, match=f"{name} is no known kind"):
        contract.decode_strict(bytes(data))


def test_an_encoder_refuses_what_could_not_be_read() -> None:
    for signed in (
        SignedReceipt(BODY, bytes(63)),
        SignedReceipt(receipt(prefill_tokens=2**32), bytes(64)),
        SignedReceipt(receipt(network_id=bytes(31)), bytes(64)),
    ):
        with pytest.raises(InputError):
            contract.encode(signed)


@settings(deadline=None)
@given(st.binary(max_size=700) | st.binary(min_size=670, max_size=670))
def test_random_bytes_raise_nothing_but_the_projects_error(data: bytes) -> None:
    with pytest.raises(EvidenceError):
        contract.decode_strict(data)
