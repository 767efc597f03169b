"""Requests, assignments, credentials: encodings, signing digests, names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from tallystick.canonical.hashing import sha256
from tallystick.contracts import assignment as contract
from tallystick.contracts.assignment import (
    Assignment,
    Request,
    SignedAssignment,
    SignedRequest,
    WorkerCredential,
)
from tallystick.contracts.compute_receipt import EvidenceLevel, JobClass
from tallystick.errors import EvidenceError, InputError

NETWORK = sha256(b"network")
CREDENTIAL = WorkerCredential(1, NETWORK, sha256(b"worker"), sha256(b"owner"), 7, 31)
REQUEST = SignedRequest(
    Request(
        version=1,
        network_id=NETWORK,
        scheduler_job_id=sha256(b"job"),
        request_commitment=sha256(b"request"),
        model_profile_id=sha256(b"model"),
        job_class=JobClass.REPLICA_EXTERNAL,
        required_evidence_level=EvidenceLevel.STATE_COMMITTED,
        max_prefill_tokens=4096,
        max_decode_tokens=256,
        replicas=2,
        issued_epoch=7,
        expires_epoch=31,
    ),
    bytes(range(64)),
)
ASSIGNMENT = SignedAssignment(
    Assignment(
        version=1,
        network_id=NETWORK,
        scheduler_job_id=sha256(b"job"),
        request_commitment=sha256(b"request"),
        signed_request_id=contract.signed_request_id(REQUEST),
        replica_slot=1,
        worker_key=sha256(b"worker"),
        job_class=JobClass.REPLICA_EXTERNAL,
        required_evidence_level=EvidenceLevel.STATE_COMMITTED,
        issued_epoch=7,
        expires_epoch=31,
    ),
    bytes(range(64, 128)),
)
CASES: dict[str, tuple[Any, Callable[[Any], bytes], Callable[[bytes], Any], int]] = {
    "credential": (
        CREDENTIAL,
        contract.encode_credential,
        contract.decode_credential,
        114,
    ),
    "request": (REQUEST, contract.encode_signed_request, contract.decode_signed_request, 221),
    "assignment": (
        ASSIGNMENT,
        contract.encode_signed_assignment,
        contract.decode_signed_assignment,
        245,
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_paper_comes_back(kind: str) -> None:
    paper, encode, decode, size = CASES[kind]
    data = encode(paper)

    assert len(data) == size
    assert decode(data) == paper


@pytest.mark.parametrize("kind", CASES)
def test_another_length_is_refused(kind: str) -> None:
    paper, encode, decode, _ = CASES[kind]
    data = encode(paper)
    for wrong in (b"", data[:-1], data + b"\x00"):
        with pytest.raises(EvidenceError, match="another length"):
            decode(wrong)


@pytest.mark.parametrize("kind", CASES)
def test_another_version_is_refused(kind: str) -> None:
    paper, encode, decode, _ = CASES[kind]
    data = b"\x02" + encode(paper)[1:]
    with pytest.raises(EvidenceError, match="unknown version"):
        decode(data)


def changed(body: Any, name: str) -> Any:
    value = getattr(body, name)
    other = sha256(b"other") if isinstance(value, bytes) else type(value)(value ^ 1)
    return replace(body, **{name: other})


@pytest.mark.parametrize("name", [field.name for field in fields(WorkerCredential)])
def test_every_field_of_a_credential_names_it(name: str) -> None:
    assert contract.credential_id(changed(CREDENTIAL, name)) != contract.credential_id(CREDENTIAL)


@pytest.mark.parametrize("name", [field.name for field in fields(Request)])
def test_every_field_of_a_request_is_signed(name: str) -> None:
    other = changed(REQUEST.body, name)

    assert contract.request_signing_digest(other) != contract.request_signing_digest(REQUEST.body)
    assert contract.signed_request_id(replace(REQUEST, body=other)) != contract.signed_request_id(
        REQUEST
    )


@pytest.mark.parametrize("name", [field.name for field in fields(Assignment)])
def test_every_field_of_an_assignment_is_signed(name: str) -> None:
    other = changed(ASSIGNMENT.body, name)
    digest = contract.assignment_signing_digest

    assert digest(other) != digest(ASSIGNMENT.body)
    assert contract.signed_assignment_id(
        replace(ASSIGNMENT, body=other)
    ) != contract.signed_assignment_id(ASSIGNMENT)


def test_the_signature_is_part_of_the_name() -> None:
    request = replace(REQUEST, signature=bytes(64))
    assignment = replace(ASSIGNMENT, signature=bytes(64))

    assert contract.signed_request_id(request) != contract.signed_request_id(REQUEST)
    assert contract.signed_assignment_id(assignment) != contract.signed_assignment_id(ASSIGNMENT)


def test_a_signature_of_another_length_is_not_written() -> None:
    with pytest.raises(InputError, match="signature"):
        contract.encode_signed_request(replace(REQUEST, signature=bytes(63)))
    with pytest.raises(InputError, match="signature"):
        contract.encode_signed_assignment(replace(ASSIGNMENT, signature=b""))
