"""Build and sign the compute receipt of a run, and the parts of its bundle.

Everything that a verifier would refuse is refused before anything is signed
(docs/spec/compute-receipt.md#building). Pure: keys, nonces and the time come in.
"""

from __future__ import annotations

from dataclasses import dataclass

from tallystick.attest.keys import SigningKey
from tallystick.canonical.hashing import parse_digest
from tallystick.compute.manifest import verify_manifest
from tallystick.contracts.assignment import credential_id, signed_assignment_id
from tallystick.contracts.bundle import (
    BUNDLE_VERSION,
    BundlePrivate,
    BundlePublic,
    receipt_binding,
)
from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.commitments import (
    execution_nullifier,
    job_nullifier,
    output_commitment_palw,
    prompt_commitment_palw,
)
from tallystick.contracts.compute_receipt import (
    LIFETIME_EPOCHS,
    RECEIPT_VERSION,
    ComputeReceipt,
    SignedReceipt,
    check_structure,
    encode,
    epoch_of,
    receipt_id,
    signing_digest,
)
from tallystick.contracts.digests import core_digest
from tallystick.contracts.manifest import RuntimeManifest
from tallystick.contracts.opening import Opening
from tallystick.contracts.receipt import Core
from tallystick.contracts.request import InferenceRun
from tallystick.evidence.gemm_trace import GemmTrace, encode_trace
from tallystick.evidence.portable import DerivedEvidence, PortableEvidence, derive, encode_portable
from tallystick.evidence.routes import ExpertRoutes, encode_routes
from tallystick.receipts.compute_steps_evidence import (
    committed_root,
    core_roots,
    refuse_kernel_trace,
)
from tallystick.receipts.compute_steps_manifest import expected_scheme
from tallystick.receipts.papers import JobPapers, check_assignment, check_worker, require_same


@dataclass(frozen=True, slots=True, repr=False)
class ComputeInputs:
    """What a compute receipt is made of. It holds the text's ids and shows nothing of itself.

    ``timestamp`` is in milliseconds since the Unix epoch: the end of the run, as the receipt's
    observed part says it. Both nonces are 32 fresh random bytes.
    """

    run: InferenceRun
    papers: JobPapers
    manifest: RuntimeManifest
    evidence: PortableEvidence
    core: Core
    prompt_ids: tuple[int, ...]
    sampled_ids: tuple[int, ...]
    prompt_nonce: bytes
    output_nonce: bytes
    timestamp: int

    def __repr__(self) -> str:
        return "<ComputeInputs>"


def papers_nullifier(papers: JobPapers) -> bytes:
    """Return the job nullifier of a job, which its evidence has to name."""
    request = papers.request.body
    return job_nullifier(request.network_id, request.scheduler_job_id, request.request_commitment)


def build_compute_receipt(inputs: ComputeInputs, worker_key: SigningKey) -> SignedReceipt:
    """Return the signed receipt of a run.

    Raises EvidenceError, as a verification would, naming the first thing that does not hold:
    manifest, papers, counts, evidence, its agreement with the core, or the worker's key. InputError
    for nonces that are not 32 bytes.
    """
    architecture = verify_manifest(inputs.manifest)
    evidence = inputs.evidence
    derived = derive(evidence, architecture)
    body = _body(inputs, derived)
    check_structure(body)
    refuse_kernel_trace(body.trace_evidence)
    check_assignment(body, inputs.papers, inputs.run)
    worker = check_worker(body, inputs.papers)
    require_same("the worker's key", worker.key_id, worker_key.public.key_id)
    inputs.manifest.shape_profile.verify_shape(body.prefill_tokens, body.decode_tokens)
    _check_evidence(inputs, body)
    _check_core(inputs, body)
    return SignedReceipt(body, worker_key.sign(signing_digest(body)))


def bundle_parts(
    inputs: ComputeInputs,
    receipt: SignedReceipt,
    opening: Opening,
    *,
    routes: ExpertRoutes | None,
    trace: GemmTrace | None,
) -> tuple[BundlePublic, BundlePrivate]:
    """Return both parts of the bundle of a receipt that was built from ``inputs``.

    ``routes`` and ``trace`` are those that the evidence has roots of, else None. They are not
    checked here: :func:`tallystick.receipts.compute_steps.require_all` does, before sealing.
    """
    papers = inputs.papers
    public = BundlePublic(
        version=BUNDLE_VERSION,
        receipt_binding=receipt_binding(encode(receipt)),
        receipt_id=receipt_id(receipt.body),
        verification_epoch=receipt.body.issued_epoch,
        scheduler_key=papers.scheduler_key,
        prompt_commitment=prompt_commitment_palw(inputs.prompt_nonce, inputs.prompt_ids),
        manifest=inputs.manifest.canonical_bytes,
        evidence=encode_portable(inputs.evidence),
    )
    private = BundlePrivate(
        version=BUNDLE_VERSION,
        signed_request=papers.request,
        signed_assignment=papers.assignment,
        credential=papers.credential,
        owner_key=papers.owner_key,
        owner_salt=papers.owner_salt,
        request_nonce=papers.request_nonce,
        prompt_nonce=inputs.prompt_nonce,
        output_nonce=inputs.output_nonce,
        opening=encode_bytes(opening),
        expert_routes=None if routes is None else encode_routes(routes),
        gemm_trace=None if trace is None else encode_trace(trace),
    )
    return public, private


def _body(inputs: ComputeInputs, derived: DerivedEvidence) -> ComputeReceipt:
    """Put the 30 fields together; ids and commitments are computed here, never taken over."""
    papers, manifest, evidence = inputs.papers, inputs.manifest, inputs.evidence
    request, assignment = papers.request.body, papers.assignment.body
    credential = credential_id(papers.credential)
    nullifier = papers_nullifier(papers)
    issued = epoch_of(inputs.timestamp)
    return ComputeReceipt(
        receipt_version=RECEIPT_VERSION,
        network_id=request.network_id,
        request_commitment=request.request_commitment,
        scheduler_job_id=request.scheduler_job_id,
        signed_assignment_id=signed_assignment_id(papers.assignment),
        replica_slot=assignment.replica_slot,
        model_profile_id=manifest.model_profile_id,
        runtime_class_id=manifest.runtime_class_id,
        runtime_manifest_hash=manifest.runtime_manifest_hash,
        shape_profile_id=manifest.shape_profile_id,
        cu_ruleset_id=evidence.claimed_ruleset_id,
        trace_scheme_id=evidence.trace_scheme_id,
        trace_evidence=evidence.trace_evidence,
        operation_schedule_commitment=derived.schedule_commitment,
        schedule_event_count=derived.schedule_events,
        canonical_compute_units=derived.compute_units,
        prefill_tokens=len(inputs.prompt_ids),
        decode_tokens=len(inputs.sampled_ids),
        output_commitment=output_commitment_palw(
            inputs.output_nonce, inputs.sampled_ids, parse_digest(core_digest(inputs.core))
        ),
        gemm_trace_root=evidence.gemm_trace_root,
        trace_event_count=evidence.trace_events,
        owner_commitment=papers.credential.owner_commitment,
        worker_credential_id=credential,
        job_nullifier=nullifier,
        execution_nullifier=execution_nullifier(nullifier, credential, assignment.replica_slot),
        job_class=request.job_class,
        evidence_level=evidence.level,
        timestamp=inputs.timestamp,
        issued_epoch=issued,
        expires_epoch=issued + LIFETIME_EPOCHS,
    )


def _check_evidence(inputs: ComputeInputs, body: ComputeReceipt) -> None:
    """The evidence is that of this job, shape and these tokens, under the manifest's ruleset."""
    evidence = inputs.evidence
    for name, expected, found in (
        ("job_nullifier", body.job_nullifier, evidence.job_nullifier),
        ("shape_profile_id", body.shape_profile_id, evidence.shape_profile_id),
        ("prefill_tokens", body.prefill_tokens, evidence.prefill_tokens),
        ("decode_tokens", body.decode_tokens, evidence.decode_tokens),
        ("claimed_ruleset_id", inputs.manifest.cu_ruleset_id, evidence.claimed_ruleset_id),
    ):
        require_same(f"evidence.{name}", expected, found)
    scheme = expected_scheme(body, inputs.core.runtime_class.policy)
    require_same("evidence.trace_scheme_id", scheme, body.trace_scheme_id)


def _check_core(inputs: ComputeInputs, body: ComputeReceipt) -> None:
    """The core that the output commitment binds says what the receipt says."""
    core = inputs.core
    for name, expected, found in (
        ("prompt_tokens", body.prefill_tokens, core.prompt_tokens),
        ("sampled_tokens", body.decode_tokens, core.sampled_tokens),
        (
            "canonical_compute_units",
            body.canonical_compute_units,
            core.canonical_compute_units,
        ),
        ("evidence.level", body.evidence_level.name.lower(), core.evidence.level),
        (
            "evidence roots",
            committed_root(body.evidence_level, core_roots(core.evidence)),
            body.gemm_trace_root,
        ),
    ):
        require_same(f"core.{name}", expected, found)
