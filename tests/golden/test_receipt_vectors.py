"""The vectors of compute receipts, papers and bundle parts: the program gives these bytes too."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from enum import IntEnum
from typing import Any

import pytest

from tallystick.attest.keys import PublicKey, SigningKey
from tallystick.contracts import commitments
from tallystick.contracts.assignment import (
    Assignment,
    Request,
    SignedAssignment,
    SignedRequest,
    WorkerCredential,
    assignment_signing_digest,
    credential_id,
    decode_credential,
    decode_signed_assignment,
    decode_signed_request,
    encode_credential,
    encode_signed_assignment,
    encode_signed_request,
    request_signing_digest,
    signed_assignment_id,
    signed_request_id,
)
from tallystick.contracts.bundle import (
    decode_private,
    decode_public,
    encode_private,
    encode_public,
    receipt_binding,
)
from tallystick.contracts.compute_receipt import (
    ComputeReceipt,
    SignedReceipt,
    body_id,
    decode_strict,
    encode,
    receipt_id,
    signing_digest,
)
from tallystick.errors import EvidenceError
from tallystick.evidence.gemm_trace import TRACE_SCHEME_LIVE, TRACE_SCHEME_SEALING
from tests.golden.independent import bundles, receipts
from tests.golden.independent.basics import RefusedError, signed
from tests.golden.write_receipt_vectors import text
from tests.support.vectors import spec_vectors

TEXT = (spec_vectors() / "compute_receipt.json").read_text(encoding="utf-8")
VECTORS: Any = json.loads(TEXT)
RECEIPTS = [pytest.param(vector, id=vector["name"]) for vector in VECTORS["receipts"]]


def raw(value: str) -> bytes:
    return bytes.fromhex(value)


def made(kind: Callable[..., Any], vector: dict[str, Any]) -> Any:
    """Return the record of the program with the fields of a vector."""
    found: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        value = vector[field.name]
        is_digest = isinstance(value, str) and len(value) == 64
        found[field.name] = raw(value) if is_digest else int(value)
    return kind(**found)


def test_the_independent_implementation_gives_the_vectors() -> None:
    assert text() == TEXT


def test_keys() -> None:
    for pair in VECTORS["keys"].values():
        assert SigningKey.from_seed(raw(pair["seed"])).public.raw.hex() == pair["public_key"]


def test_commitments() -> None:
    cases = VECTORS["commitments"]
    request, prompt, output, owner = (cases[x] for x in ("request", "prompt", "output", "owner"))
    body = request["request_body"].encode()
    found = {
        "request_commitment": commitments.request_commitment(raw(request["nonce"]), body),
        "prompt_commitment": commitments.prompt_commitment_palw(
            raw(prompt["nonce"]), prompt["ids"]
        ),
        "output_commitment": commitments.output_commitment_palw(
            raw(output["nonce"]), output["ids"], raw(output["core_digest"])
        ),
        "owner_commitment": commitments.owner_commitment(raw(owner["salt"]), raw(owner["key"])),
    }
    expected = {name: value for case in cases.values() for name, value in case.items()}
    assert {name: value.hex() for name, value in found.items()}.items() <= expected.items()


def test_roots() -> None:
    roots = VECTORS["roots"]
    names = {
        "local_network_id": commitments.local_network_id(),
        "no_states": commitments.empty_state_root(),
        "no_routes": commitments.empty_route_root(),
        "no_gemm": commitments.empty_gemm_root(),
        "no_trace_scheme": commitments.no_trace_scheme(),
        "trace_scheme_live": TRACE_SCHEME_LIVE,
        "trace_scheme_sealing": TRACE_SCHEME_SEALING,
    }
    composed = roots.pop("state_evidence")
    assert {name: value.hex() for name, value in names.items()} == roots
    for case in composed.values():
        parts = [raw(case[name]) for name in ("state_root", "expert_route_root", "gemm_root")]
        assert commitments.state_evidence_root(*parts).hex() == case["gemm_trace_root"]
    absent = commitments.state_evidence_root(raw(composed["states"]["state_root"]), None, None)
    assert absent.hex() == composed["states"]["gemm_trace_root"]


@pytest.mark.parametrize("vector", RECEIPTS)
def test_papers(vector: dict[str, Any]) -> None:
    papers = vector["papers"]
    credential = made(WorkerCredential, papers["credential"]["fields"])
    request, assignment = (papers[name] for name in ("request", "assignment"))
    signed_request = SignedRequest(made(Request, request["fields"]), raw(request["signature"]))
    signed_assignment = SignedAssignment(
        made(Assignment, assignment["fields"]), raw(assignment["signature"])
    )
    encoded = {
        "credential": encode_credential(credential),
        "request": encode_signed_request(signed_request),
        "assignment": encode_signed_assignment(signed_assignment),
    }
    for name, data in encoded.items():
        assert data.hex() == papers[name]["encoding"] + papers[name].get("signature", "")
    assert decode_credential(encoded["credential"]) == credential
    assert decode_signed_request(encoded["request"]) == signed_request
    assert decode_signed_assignment(encoded["assignment"]) == signed_assignment
    assert credential_id(credential).hex() == papers["credential"]["id"]
    assert signed_request_id(signed_request).hex() == request["id"]
    assert signed_assignment_id(signed_assignment).hex() == assignment["id"]
    digests = {
        "request": request_signing_digest(signed_request.body),
        "assignment": assignment_signing_digest(signed_assignment.body),
    }
    scheduler = PublicKey.from_raw(raw(VECTORS["keys"]["scheduler"]["public_key"]))
    for name, digest in digests.items():
        assert digest.hex() == papers[name]["signing_digest"]
        scheduler.verify(raw(papers[name]["signature"]), digest)


@pytest.mark.parametrize("vector", RECEIPTS)
def test_receipts(vector: dict[str, Any]) -> None:
    body: ComputeReceipt = made(ComputeReceipt, vector["fields"])
    palw = raw(vector["palw"])
    worker = SigningKey.from_seed(raw(VECTORS["keys"]["worker"]["seed"]))

    decoded = decode_strict(palw)

    assert decoded.body == body
    assert encode(SignedReceipt(body, worker.sign(signing_digest(body)))) == palw
    found = {
        "signing_digest": signing_digest(body),
        "receipt_id": receipt_id(body),
        "body_id": body_id(body),
        "receipt_binding": receipt_binding(palw),
    }
    assert {name: value.hex() for name, value in found.items()}.items() <= vector.items()
    job = commitments.job_nullifier(body.network_id, body.scheduler_job_id, body.request_commitment)
    assert body.job_nullifier == job
    execution = commitments.execution_nullifier(job, body.worker_credential_id, body.replica_slot)
    assert body.execution_nullifier == execution
    assert all(isinstance(value, bytes | int | IntEnum) for value in asdict(body).values())


@pytest.mark.parametrize(
    "edit", VECTORS["refused_edits_of_the_first"], ids=lambda edit: str(edit["name"])
)
def test_refused_edits(edit: dict[str, Any]) -> None:
    palw = bytearray(raw(VECTORS["receipts"][0]["palw"]))
    other = raw(edit["bytes"])
    palw[edit["offset"] : edit["offset"] + len(other)] = other
    assert len(palw) == 670
    with pytest.raises(EvidenceError):
        decode_strict(bytes(palw))
    with pytest.raises(RefusedError):
        receipts.read_receipt(bytes(palw))


@pytest.mark.parametrize("vector", VECTORS["bundle_parts"], ids=lambda vector: vector["receipt"])
def test_bundle_parts(vector: dict[str, Any]) -> None:
    public_bytes, private_bytes = raw(vector["public_part"]), raw(vector["private_part"])
    public, private = decode_public(public_bytes), decode_private(private_bytes)

    assert encode_public(public) == public_bytes
    assert encode_private(private) == private_bytes
    own_public, own = bundles.read_public(public_bytes), bundles.read_private(private_bytes)
    assert own_public.items() <= asdict(public).items()
    for name in ("manifest", "evidence"):
        assert getattr(public, name).hex() == vector[name]
    assert public.verification_epoch == int(vector["verification_epoch"])
    for name in ("owner_key", *bundles.SALTS, "opening"):
        assert own[name] == getattr(private, name)
    assert private.opening.hex() == vector["opening"]
    for own_name, name in (("routes", "expert_routes"), ("trace", "gemm_trace")):
        part = getattr(private, name)
        assert own[own_name] == part
        assert vector[name] == (None if part is None else part.hex())
    request = own["papers"]["request"]
    assert signed(own_public["scheduler_key"], request["signature"], request["message"])
    assert request["id"] == signed_request_id(private.signed_request)
