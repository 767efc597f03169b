"""Compute receipt, public document and bundle: every part changed alone is refused by its step.

The forger holds the audit key and makes every digest agree again; only what he cannot know or sign
is left to find him.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from tallystick.canonical.hashing import sha256
from tallystick.canonical.json import jcs
from tallystick.contracts.bundle import BundlePrivate
from tallystick.contracts.codec import decode_bytes
from tallystick.contracts.compute_receipt import (
    BODY_BYTES,
    ComputeReceipt,
    EvidenceLevel,
    JobClass,
    SignedReceipt,
    TraceEvidence,
    encode,
    encode_body,
)
from tallystick.contracts.layout import BUNDLE, COMPUTE_RECEIPT, PUBLIC_JSON, STATE
from tallystick.contracts.public_receipt import PublicReceipt
from tallystick.errors import EvidenceError
from tallystick.receipts.report import VerificationReport
from tallystick.receipts.verify import verify_set
from tests.support.forgery import Forger, changed_leaf, edited, flipped, leaves, other_value_of
from tests.support.sets import AUDIT_KEY, NOW, SIGNER, STRANGER, TRUST, make_set, make_traced

OTHER = sha256(b"another value")
STATES = Forger(make_set().files())
ALL = Forger(make_traced("states", "graph", "gemm", experts=True).files())
LIVE = Forger(make_traced("gemm", experts=True, sequential=True).files())
FORGERS = {"states": STATES, "all": ALL, "live": LIVE}

# The step that refuses each of the 30 fields when the worker itself signs another value and all
# that names the receipt agrees again.
FIELD_STEPS = {
    "receipt_version": 1,
    "network_id": 2,
    "request_commitment": 3,
    "scheduler_job_id": 3,
    "signed_assignment_id": 3,
    "replica_slot": 1,
    "model_profile_id": 3,
    "runtime_class_id": 6,
    "runtime_manifest_hash": 6,
    "shape_profile_id": 6,
    "cu_ruleset_id": 7,
    "trace_scheme_id": 8,
    "trace_evidence": 3,
    "operation_schedule_commitment": 9,
    "schedule_event_count": 9,
    "canonical_compute_units": 9,
    "prefill_tokens": 9,
    "decode_tokens": 9,
    "output_commitment": 13,
    "gemm_trace_root": 10,
    "trace_event_count": 10,
    "owner_commitment": 4,
    "worker_credential_id": 4,
    "job_nullifier": 8,
    "execution_nullifier": 8,
    "job_class": 3,
    "evidence_level": 3,
    "timestamp": 13,
    "issued_epoch": 1,
    "expires_epoch": 1,
}
NAMES = [field.name for field in fields(ComputeReceipt)]
# A value that no check of the form alone refuses, where there is one.
SUBTLE: dict[str, Any] = {
    "trace_evidence": TraceEvidence.CUDA_KERNEL_LAUNCH,
    "evidence_level": EvidenceLevel.GEMM_TRACED,
    "job_class": JobClass.SOLO_UNPAID,
}
SUBTLE_STEPS = {**FIELD_STEPS, "trace_evidence": 10}


def check(files: dict[str, bytes]) -> VerificationReport:
    return verify_set(files, TRUST, now=NOW, key=AUDIT_KEY)


def failing_step(files: dict[str, bytes]) -> int:
    report = check(files)
    assert not report.verified
    assert report.failure is not None
    return report.failure.number


def without_bundle(files: dict[str, bytes]) -> VerificationReport:
    kept = {n: d for n, d in files.items() if not n.endswith((BUNDLE.suffix, STATE.name("")))}
    return verify_set(kept, TRUST, now=NOW)


def other_value(forger: Forger, name: str) -> Any:
    value = SUBTLE.get(name)
    return other_value_of(forger.compute.body, name) if value is None else value


def test_every_field_has_its_step() -> None:
    assert list(FIELD_STEPS) == NAMES
    assert len(NAMES) == 30
    assert {*FIELD_STEPS.values()} == {1, 2, 3, 4, 6, 7, 8, 9, 10, 13}


@pytest.mark.parametrize("name", NAMES)
def test_a_field_that_is_edited_in_the_file_is_refused(name: str) -> None:
    body = edited(ALL.compute.body, name, other_value(ALL, name))
    forged = encode_body(body) + ALL.compute.signature
    assert failing_step(ALL.in_place(COMPUTE_RECEIPT, forged)) == 1
    # the marker adapted: bundle and receipt still name the file that was signed
    assert failing_step(ALL.with_member(COMPUTE_RECEIPT, forged)) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_field_under_the_old_signature_is_refused(name: str) -> None:
    """Bundle, receipt, public document and marker agree with it; nobody signed it."""
    changed = edited(ALL.compute.body, name, other_value(ALL, name))
    files = ALL.with_compute(SignedReceipt(changed, ALL.compute.signature))
    assert failing_step(files) == min(SUBTLE_STEPS[name], 4)


@pytest.mark.parametrize("name", NAMES)
def test_a_field_signed_by_a_stranger_is_refused(name: str) -> None:
    compute = ALL.signed(STRANGER, **{name: other_value(ALL, name)})
    files = ALL.with_compute(compute, key=STRANGER)
    assert failing_step(files) == min(SUBTLE_STEPS[name], 4)
    report = without_bundle(files)
    assert report.failure is not None
    step = SUBTLE_STEPS[name]
    assert report.failure.number == (4 if step == 3 else min(step, 4))  # 3 needs the bundle


@pytest.mark.parametrize("name", NAMES)
def test_a_field_signed_by_the_worker_itself_is_refused(name: str) -> None:
    compute = ALL.signed(SIGNER, **{name: other_value(ALL, name)})
    assert failing_step(ALL.with_compute(compute, key=SIGNER)) == SUBTLE_STEPS[name]


def test_a_receipt_that_its_worker_signs_again_unchanged_holds() -> None:
    """So the refusals above are about the values."""
    files = ALL.with_compute(ALL.signed(SIGNER), key=SIGNER)
    check(files).require_complete()


def test_every_flipped_byte_of_a_receipt_is_refused() -> None:
    palw = ALL.data(COMPUTE_RECEIPT)
    for at in range(len(palw)):
        forged = bytearray(palw)
        forged[at] ^= 1 << at % 8
        assert failing_step(ALL.with_member(COMPUTE_RECEIPT, bytes(forged))) == 1
        if at >= BODY_BYTES:
            signature = bytes(forged[BODY_BYTES:])
            files = ALL.with_compute(SignedReceipt(ALL.compute.body, signature), key=SIGNER)
            assert failing_step(files) == 4


PUBLIC_PATHS = tuple(leaves(ALL.document(PUBLIC_JSON.suffix)))
# What the receipts alone do not say; with the bundle at hand all of it is derived again.
FROM_THE_BUNDLE = {
    ("verification_bundle_id",),
    ("semantic_schedule", "commitment"),
    ("semantic_schedule", "operations"),
    ("semantic_schedule", "expert_route_ops"),
    ("expert_route", "route_event_count"),
    ("artifacts", "model_bytes"),
}


@pytest.mark.parametrize("path", PUBLIC_PATHS, ids=lambda path: ".".join(map(str, path)))
def test_a_changed_public_field_is_refused(path: tuple[Any, ...]) -> None:
    data = jcs(changed_leaf(ALL.document(PUBLIC_JSON.suffix), path))
    assert failing_step(ALL.in_place(PUBLIC_JSON, data)) == 1
    files = ALL.with_member(PUBLIC_JSON, data)
    step = failing_step(files)
    assert step == (1 if path[0] in ("schema", "producer") or not is_document(data) else 13)
    report = without_bundle(files)
    if path in FROM_THE_BUNDLE and step == 13:
        assert report.verified
        assert "only what the receipts say" in report.steps[12].detail
    else:
        assert report.failure is not None
        assert report.failure.number == step


def is_document(data: bytes) -> bool:
    try:
        decode_bytes(PublicReceipt, data, max_bytes=1 << 20)
    except EvidenceError:
        return False
    return True


def test_no_refusal_shows_what_is_private() -> None:
    private, opening = ALL.private, ALL.document("opening")
    secrets = [
        value.hex()
        for value in (
            private.owner_salt,
            private.request_nonce,
            private.prompt_nonce,
            private.output_nonce,
            AUDIT_KEY.raw,
        )
    ]
    secrets += [opening["request"]["prompt"], opening["request"]["blind"]]
    texts = []
    for field in fields(BundlePrivate):
        value = getattr(private, field.name)
        if isinstance(value, bytes):
            forged = edited(private, field.name, flipped(value, len(value) // 2))
            texts.append(repr(check(ALL.with_bundle(ALL.sealed(forged)))))
    for name in NAMES:
        compute = ALL.signed(SIGNER, **{name: other_value(ALL, name)})
        texts.append(repr(check(ALL.with_compute(compute, key=SIGNER))))
    assert len(texts) > 30
    assert not [secret for secret in secrets if secret in "\n".join(texts)]
    assert encode(ALL.compute) == ALL.data(COMPUTE_RECEIPT)
