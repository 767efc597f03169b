"""Steps 1 to 13 about the compute receipt: each fails for its own reason, none passes unseen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from tallystick.attest.keys import PublicKey
from tallystick.canonical.hashing import sha256
from tallystick.compute.rules import RULES_V2
from tallystick.contracts.bundle import BundlePublic
from tallystick.contracts.compute_receipt import (
    ComputeReceipt,
    EvidenceLevel,
    JobClass,
    TraceEvidence,
    decode_strict,
)
from tallystick.contracts.manifest import RuntimeManifest
from tallystick.errors import EvidenceError
from tallystick.evidence.gemm_trace import TRACE_SCHEME_LIVE
from tallystick.receipts.compute_case import (
    ComputeCase,
    ComputeContext,
    ComputeDocuments,
    NotChecked,
)
from tallystick.receipts.compute_steps import COMPUTE_STEPS, require_all
from tests.support.compute_sets import (
    KINDS,
    STRANGER,
    WORKER,
    MadeReceipt,
    make_receipt,
    rebound,
)

OTHER = sha256(b"another value")
LOCAL = ComputeContext()
ALL = make_receipt("states", "graph", "gemm", experts=True)
LIVE = make_receipt("gemm", experts=True, sequential=True)
NOT_RUN = "not run"


def run(documents: ComputeDocuments, context: ComputeContext = LOCAL) -> dict[int, str]:
    """Return what each step says: its words, ``failed: ...``, or why it was not run."""
    case = ComputeCase(documents, context)
    said = {}
    for number, step in COMPUTE_STEPS.items():
        try:
            outcome = step(case)
        except EvidenceError as error:
            said[number] = f"failed: {error.message}"
            continue
        said[number] = (
            f"{NOT_RUN}: {outcome.reason}" if isinstance(outcome, NotChecked) else outcome
        )
    return said


def failed(said: dict[int, str]) -> list[int]:
    return [number for number, words in said.items() if words.startswith("failed")]


def public(**changes: Any) -> Callable[[MadeReceipt], ComputeDocuments]:
    return lambda made: replace(made.documents, public=replace(made.public, **changes))


def private(**changes: Any) -> Callable[[MadeReceipt], ComputeDocuments]:
    return lambda made: replace(made.documents, private=replace(made.private, **changes))


def body(**changes: Any) -> Callable[[MadeReceipt], ComputeDocuments]:
    """Change the signed body, and sign it anew with the worker's key."""
    return lambda made: made.resigned(**changes)


def observed(**changes: Any) -> Callable[[MadeReceipt], ComputeDocuments]:
    return lambda made: replace(
        made.documents, observed=replace(made.documents.observed, **changes)
    )


def flipped(data: bytes | None, at: int) -> bytes:
    assert data is not None
    edited = bytearray(data)
    edited[at] ^= 1
    return bytes(edited)


def unsigned(what: str) -> Callable[[MadeReceipt], ComputeDocuments]:
    """Break the scheduler's signature on the request or the assignment."""

    def tamper(made: MadeReceipt) -> ComputeDocuments:
        paper = getattr(made.private, what)
        edited = replace(paper, signature=flipped(paper.signature, 40))
        return private(**{what: edited})(made)

    return tamper


def by_stranger(made: MadeReceipt) -> ComputeDocuments:
    return rebound(made.documents, made.signed.body, STRANGER)


def other_credential(made: MadeReceipt) -> ComputeDocuments:
    return private(credential=replace(made.private.credential, issued_epoch=1))(made)


def manifest_of(made: MadeReceipt, change: Callable[[RuntimeManifest], RuntimeManifest]) -> Any:
    """Return the documents with another manifest, to whose hash the receipt is signed anew."""
    manifest = change(made.inputs.manifest)
    documents = replace(
        made.documents, public=replace(made.public, manifest=manifest.canonical_bytes)
    )
    changed = replace(made.signed.body, runtime_manifest_hash=manifest.runtime_manifest_hash)
    return rebound(documents, changed, WORKER)


def bad_manifest(made: MadeReceipt) -> Any:
    return manifest_of(made, lambda m: replace(m, digests=replace(m.digests, wheel_digest=OTHER)))


def kernel_manifest(made: MadeReceipt) -> Any:
    return manifest_of(made, lambda m: replace(m, trace_capability=TraceEvidence.METAL_KERNEL))


ALONE: dict[str, tuple[int, Callable[[MadeReceipt], ComputeDocuments], str]] = {
    "binding": (1, public(receipt_binding=OTHER), "bundle.receipt_binding"),
    "id": (1, public(receipt_id=OTHER), "bundle.receipt_id"),
    "early": (2, public(verification_epoch=498_899), "bundle.verification_epoch"),
    "late": (2, public(verification_epoch=498_924), "bundle.verification_epoch"),
    "request unsigned": (3, unsigned("signed_request"), "did not sign the request"),
    "assignment unsigned": (3, unsigned("signed_assignment"), "did not sign the assignment"),
    "scheduler": (3, public(scheduler_key=STRANGER.public.raw), "did not sign the request"),
    "weak scheduler": (3, public(scheduler_key=bytes(32)), "scheduler's key is a weak"),
    "request nonce": (3, private(request_nonce=OTHER), "request_commitment"),
    "assignment id": (3, body(signed_assignment_id=OTHER), "signed_assignment_id"),
    "signature": (4, by_stranger, "signature does not hold"),
    "owner salt": (4, private(owner_salt=OTHER), "owner_commitment"),
    "owner key": (4, private(owner_key=STRANGER.public.raw), "owner_commitment"),
    "weak owner": (4, private(owner_key=b"\x01" + bytes(31)), "owner's key is a weak"),
    "owner commitment": (4, body(owner_commitment=OTHER), "owner_commitment"),
    "credential": (4, other_credential, "worker_credential_id"),
    "worker id": (4, observed(worker_id=STRANGER.public.key_id), "observed.worker_id"),
    "class id": (6, body(runtime_class_id=OTHER), "runtime_class_id"),
    "manifest hash": (6, body(runtime_manifest_hash=OTHER), "runtime_manifest_hash"),
    "execution nullifier": (8, body(execution_nullifier=OTHER), "execution_nullifier"),
    "schedule": (9, body(operation_schedule_commitment=OTHER), "operation_schedule_commitment"),
    "schedule count": (9, body(schedule_event_count=7), "schedule_event_count"),
    "root": (10, body(gemm_trace_root=OTHER), "gemm_trace_root"),
    "no trace": (10, private(gemm_trace=None), "do not agree on the trace"),
    "no routes": (10, private(expert_routes=None), "do not agree on the expert routes"),
    "prompt commitment": (11, public(prompt_commitment=OTHER), "bundle.prompt_commitment"),
    "prompt nonce": (11, private(prompt_nonce=OTHER), "bundle.prompt_commitment"),
    "output nonce": (13, private(output_nonce=OTHER), "output_commitment"),
    "output commitment": (13, body(output_commitment=OTHER), "output_commitment"),
    "digest": (13, observed(compute_receipt_digest="sha256:" + "0" * 64), "compute_receipt_digest"),
    "no digest": (13, observed(compute_receipt_digest=None), "compute_receipt_digest"),
    "end": (13, observed(end_time="2026-11-30T12:00:01.251Z"), "timestamp"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_of_an_honest_receipt_passes(kind: str) -> None:
    made = KINDS[kind]()
    words = require_all(made.case())

    assert len(words) == len(COMPUTE_STEPS) == 12
    assert all(words)


@pytest.mark.parametrize("name", ALONE)
def test_a_step_fails_alone(name: str) -> None:
    number, tamper, message = ALONE[name]
    said = run(tamper(ALL))

    assert failed(said) == [number], said
    assert message in said[number]


@pytest.mark.parametrize("made", [ALL, LIVE], ids=["sealed", "live"])
@pytest.mark.parametrize(
    ("part", "at"), [("gemm_trace", -1), ("gemm_trace", 40), ("expert_routes", -8)]
)
def test_a_changed_sketch_or_route_fails_step_10_alone(
    made: MadeReceipt, part: str, at: int
) -> None:
    data = getattr(made.private, part)
    said = run(private(**{part: flipped(data, at)})(made))

    assert failed(said) == [10], said


FIRST: dict[str, tuple[int, Callable[[MadeReceipt], Any], str]] = {
    "job class": (3, body(job_class=JobClass.SOLO_UNPAID), "request.job_class"),
    "job": (3, body(scheduler_job_id=OTHER), "request.scheduler_job_id"),
    "network": (2, body(network_id=OTHER), "network_id"),
    "model": (3, body(model_profile_id=OTHER), "request.model_profile_id"),
    "request": (3, body(request_commitment=OTHER), "request_commitment"),
    "level": (
        3,
        body(evidence_level=EvidenceLevel.GEMM_TRACED),
        "request.required_evidence_level",
    ),
    "prefill": (9, body(prefill_tokens=5), "evidence.prefill_tokens"),
    "decode": (9, body(decode_tokens=2), "evidence.decode_tokens"),
    "more than asked": (3, body(decode_tokens=4), "decode_tokens is more than was asked for"),
    "epochs": (
        2,
        lambda made: made.resigned(
            timestamp=made.signed.body.timestamp + 3_600_000,
            issued_epoch=498_901,
            expires_epoch=498_925,
        ),
        "bundle.verification_epoch",
    ),
    "manifest digest": (5, bad_manifest, "wheel_digest"),
    "capability": (5, kernel_manifest, "trace_capability"),
    "no manifest": (5, public(manifest=b""), "runtime manifest"),
    "shape": (6, body(shape_profile_id=OTHER), "shape_profile_id"),
    "unknown ruleset": (7, body(cu_ruleset_id=OTHER), "names no known ruleset"),
    "other ruleset": (7, body(cu_ruleset_id=RULES_V2.ruleset_id), "manifest.cu_ruleset_id"),
    "scheme": (8, body(trace_scheme_id=TRACE_SCHEME_LIVE), "trace_scheme_id"),
    "job nullifier": (8, body(job_nullifier=OTHER), "job_nullifier"),
    "units": (9, body(canonical_compute_units=1), "canonical_compute_units"),
    "no evidence": (9, public(evidence=b""), "portable evidence"),
    "trace count": (10, body(trace_event_count=2), "trace_event_count"),
    "kernel claim": (10, body(trace_evidence=TraceEvidence.METAL_KERNEL), "beyond what any"),
    "sketch claim": (10, body(trace_evidence=TraceEvidence.KERNEL_SKETCH), "beyond what any"),
    "equal nonces": (
        11,
        lambda made: private(output_nonce=made.private.prompt_nonce)(made),
        "not fresh",
    ),
    "zero nonce": (11, private(output_nonce=bytes(32)), "not fresh"),
}


@pytest.mark.parametrize("name", FIRST)
def test_a_step_is_the_first_to_fail(name: str) -> None:
    number, tamper, message = FIRST[name]
    said = run(tamper(ALL))

    assert failed(said)[0] == number, said
    assert message in said[number]


def test_another_core_fails_steps_10_and_13_only_where_it_differs() -> None:
    documents = replace(ALL.documents, core_digest="sha256:" + "0" * 64)
    assert failed(run(documents)) == [13]
    evidence = replace(ALL.documents.core.evidence, state_root="sha256:" + "0" * 64)
    documents = replace(ALL.documents, core=replace(ALL.documents.core, evidence=evidence))
    assert failed(run(documents)) == [10]
    for name, value in (
        ("prompt_tokens", 5),
        ("sampled_tokens", 2),
        ("canonical_compute_units", 1),
        ("model_digest", "sha256:" + "0" * 64),
        ("context_tokens", 513),
        ("chat_template_digest", "sha256:" + "0" * 64),
    ):
        changes: dict[str, Any] = {name: value}
        core = replace(ALL.documents.core, **changes)
        said = run(replace(ALL.documents, core=core))
        assert failed(said) == [13], (name, said)
        assert name in said[13]


def test_an_engine_that_is_not_that_of_the_manifest_fails_step_13() -> None:
    core = ALL.documents.core
    for name in ("name", "version", "library"):
        changes: dict[str, Any] = {name: "sha256:" + "0" * 64}
        other = replace(core, engine=replace(core.engine, **changes))
        said = run(replace(ALL.documents, core=other))
        assert failed(said) == [13], said
        assert f"core.engine.{name}" in said[13]


#: Which steps refuse a receipt of which this one field was changed, and that was signed anew.
REFUSED_IN: dict[str, list[int]] = {
    "receipt_version": [1],
    "network_id": [2, 3, 4, 8],
    "request_commitment": [3, 8],
    "scheduler_job_id": [3, 8],
    "signed_assignment_id": [3],
    "replica_slot": [1, 3, 8],
    "model_profile_id": [3, 6],
    "runtime_class_id": [6],
    "runtime_manifest_hash": [6],
    "shape_profile_id": [6, 9],
    "cu_ruleset_id": [7, 9],
    "trace_scheme_id": [8, 10],
    "trace_evidence": [1, 3, 8, 10],
    "operation_schedule_commitment": [9],
    "schedule_event_count": [9],
    "canonical_compute_units": [9, 13],
    "prefill_tokens": [9, 10, 11, 13],
    "decode_tokens": [9, 11, 13],
    "output_commitment": [13],
    "gemm_trace_root": [10],
    "trace_event_count": [10],
    "owner_commitment": [4],
    "worker_credential_id": [4, 8],
    "job_nullifier": [8, 9],
    "execution_nullifier": [8],
    "job_class": [3],
    "evidence_level": [3, 9, 10, 13],
    "timestamp": [13],
    "issued_epoch": [1, 2],
    "expires_epoch": [1],
}


def test_every_field_has_its_steps() -> None:
    assert list(REFUSED_IN) == [field.name for field in fields(ComputeReceipt)]


@pytest.mark.parametrize("name", REFUSED_IN)
def test_every_field_changed_alone_is_refused_in_its_steps_even_when_signed_anew(name: str) -> None:
    value = getattr(ALL.signed.body, name)
    changes: dict[str, Any] = {name: OTHER if isinstance(value, bytes) else type(value)(value ^ 1)}

    said = run(ALL.resigned(**changes))
    assert failed(said) == REFUSED_IN[name], said


def test_every_flipped_byte_of_the_file_is_refused_by_decoder_or_signature() -> None:
    context = ComputeContext(worker_keys=(WORKER.public,))
    decoded = 0
    for at in range(len(ALL.documents.palw)):
        edited = bytearray(ALL.documents.palw)
        edited[at] ^= 1 << at % 8
        data = bytes(edited)
        try:
            receipt = decode_strict(data)
        except EvidenceError:
            continue
        decoded += 1
        documents = replace(ALL.documents, palw=data, receipt=receipt, public=None, private=None)
        with pytest.raises(EvidenceError, match="signature does not hold"):
            COMPUTE_STEPS[4](ComputeCase(documents, context))
    assert decoded > 500


def test_without_a_bundle_only_the_signature_and_the_receipt_itself_are_checked() -> None:
    documents = replace(ALL.documents, public=None, private=None)
    said = run(documents)

    assert failed(said) == []
    assert all(words.startswith(NOT_RUN) for words in said.values())
    said = run(documents, ComputeContext(now_epoch=498_901, worker_keys=(WORKER.public,)))
    assert [n for n, words in said.items() if not words.startswith(NOT_RUN)] == [2, 4]


@pytest.mark.parametrize(
    ("number", "changes"),
    [
        (2, {"network_id": OTHER}),
        (7, {"cu_ruleset_id": OTHER}),
        (8, {"job_nullifier": OTHER}),
        (8, {"execution_nullifier": OTHER}),
        (8, {"trace_scheme_id": TRACE_SCHEME_LIVE}),
        (10, {"gemm_trace_root": OTHER}),
        (10, {"trace_evidence": TraceEvidence.CUDA_KERNEL_LAUNCH}),
        (13, {"canonical_compute_units": 1}),
    ],
)
def test_what_needs_no_bundle_is_refused_without_one(number: int, changes: dict[str, Any]) -> None:
    documents = replace(ALL.resigned(**changes), public=None, private=None)

    assert number in failed(run(documents))


def test_with_a_locked_private_part_what_opens_is_not_checked() -> None:
    said = run(replace(ALL.documents, private=None))

    assert failed(said) == []
    assert [n for n, words in said.items() if words.startswith(NOT_RUN)] == [3, 4, 10, 11, 13]
    trusted = run(
        replace(ALL.documents, private=None), ComputeContext(worker_keys=(WORKER.public,))
    )
    assert not trusted[4].startswith(NOT_RUN)
    assert "owner and credential not opened" in trusted[4]


def test_another_worker_id_is_refused_without_the_private_part_too() -> None:
    documents = replace(observed(worker_id="anything at all")(ALL), private=None)
    said = run(documents, ComputeContext(worker_keys=(STRANGER.public, WORKER.public)))

    assert failed(said) == [4]
    assert "observed.worker_id" in said[4]


def test_states_alone_need_no_private_part_for_their_root() -> None:
    said = run(replace(make_receipt("states").documents, private=None))

    assert said[10] == "the roots are those of the core; states are recomputed by replay"


def test_a_trusted_key_is_asked_for_even_when_the_bundle_is_open() -> None:
    said = run(ALL.documents, ComputeContext(worker_keys=(STRANGER.public,)))
    assert failed(said) == [4]
    assert "not one of the trusted keys" in said[4]
    both = ComputeContext(worker_keys=(STRANGER.public, WORKER.public))
    assert failed(run(ALL.documents, both)) == []


def signer_error(documents: ComputeDocuments, *trusted: PublicKey) -> EvidenceError:
    """What step 4 raises while the private part is locked."""
    case = ComputeCase(replace(documents, private=None), ComputeContext(worker_keys=trusted))
    with pytest.raises(EvidenceError) as caught:
        COMPUTE_STEPS[4](case)
    return caught.value


@pytest.mark.parametrize("public_half", [ALL.documents.public, None], ids=["locked", "withheld"])
def test_a_signer_that_nobody_trusts_is_named_as_the_receipt_names_him(
    public_half: BundlePublic | None,
) -> None:
    """A key id is no key: whether the signature is his cannot be told, and is not said."""
    documents = replace(ALL.documents, private=None, public=public_half)
    error = signer_error(documents, STRANGER.public)

    assert "the signer is not one of the trusted keys" in error.message
    assert error.found == f"the receipt names {WORKER.public.key_id}, whose key is not here"
    assert "--key" in str(error.hint)


def test_an_opened_bundle_says_who_signed_and_how_to_trust_him() -> None:
    case = ComputeCase(ALL.documents, ComputeContext(worker_keys=(STRANGER.public,)))
    with pytest.raises(EvidenceError, match="not one of the trusted keys") as caught:
        COMPUTE_STEPS[4](case)

    assert caught.value.found == WORKER.public.key_id
    assert "--key" in str(caught.value.hint)


def test_a_bad_signature_in_the_name_of_a_trusted_key_does_not_hold() -> None:
    error = signer_error(by_stranger(ALL), WORKER.public)

    assert "the signature does not hold" in error.message
    assert (error.found, error.hint) == (None, None)


@pytest.mark.parametrize(("epoch", "holds"), [(498_899, False), (498_923, True), (498_924, False)])
def test_now_takes_the_place_of_the_bundles_epoch(epoch: int, holds: bool) -> None:
    said = run(ALL.documents, ComputeContext(now_epoch=epoch))

    assert failed(said) == ([] if holds else [2])


def test_the_bundles_epoch_is_that_of_the_issue_whatever_now_is() -> None:
    """No signature covers it: it may only repeat a number that one does."""
    documents = public(verification_epoch=ALL.signed.body.issued_epoch + 1)(ALL)
    for context in (ComputeContext(), ComputeContext(now_epoch=498_901)):
        said = run(documents, context)
        assert failed(said) == [2]
        assert "bundle.verification_epoch" in said[2]


def test_a_receipt_of_another_network_is_refused() -> None:
    said = run(ALL.documents, ComputeContext(network_id=OTHER))
    assert failed(said) == [2]


def test_evidence_that_was_not_asked_for_is_refused() -> None:
    """A graph that the request did not ask for, under a level that it did ask for."""
    graph, states = make_receipt("states", "graph"), make_receipt("states")
    documents = replace(
        graph.documents, private=replace(graph.private, opening=states.private.opening)
    )
    said = run(documents)

    assert failed(said)[0] == 3
    assert "not of the kind that was asked for" in said[10]


def test_routes_of_a_model_without_experts_are_refused() -> None:
    dense = make_receipt("states")
    said = run(private(expert_routes=ALL.private.expert_routes)(dense))

    assert failed(said) == [10]


def test_sealing_stops_at_a_step_that_fails_or_could_not_run() -> None:
    with pytest.raises(EvidenceError, match="did not run"):
        require_all(ALL.case(private=None))
    with pytest.raises(EvidenceError, match="execution_nullifier"):
        require_all(ComputeCase(ALL.resigned(execution_nullifier=OTHER), LOCAL))


def test_a_private_part_without_the_public_one_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="public"):
        replace(ALL.documents, public=None)


def test_errors_and_words_hold_no_private_value() -> None:
    secrets = [
        ALL.private.owner_salt.hex(),
        ALL.private.request_nonce.hex(),
        ALL.private.prompt_nonce.hex(),
        ALL.private.output_nonce.hex(),
        ALL.inputs.run.blind,
        ALL.inputs.run.prompt,
    ]
    texts = []
    for _, tamper, _ in (*ALONE.values(), *FIRST.values()):
        case = ComputeCase(tamper(ALL), LOCAL)
        for step in COMPUTE_STEPS.values():
            try:
                texts.append(str(step(case)))
            except EvidenceError as error:
                texts.append(str(error))
    assert len(texts) > 500
    joined = "\n".join(texts)
    assert not [secret for secret in secrets if secret in joined]
    assert repr(ALL.inputs) == "<ComputeInputs>"
    assert repr(ALL.inputs.papers) == "<JobPapers>"


def test_the_parts_of_a_bundle_are_those_of_the_case() -> None:
    assert isinstance(ALL.public, BundlePublic)
    assert ALL.case().body == ALL.signed.body
