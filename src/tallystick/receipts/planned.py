"""Whether a job can give a receipt at all: asked before anything is executed for it. Pure."""

from __future__ import annotations

from typing import Final

from tallystick.contracts.assignment import credential_id, signed_assignment_id
from tallystick.contracts.commitments import (
    empty_gemm_root,
    execution_nullifier,
    job_nullifier,
    no_trace_scheme,
)
from tallystick.contracts.compute_receipt import (
    LIFETIME_EPOCHS,
    RECEIPT_VERSION,
    ComputeReceipt,
    EvidenceLevel,
    TraceEvidence,
    check_structure,
    epoch_of,
)
from tallystick.contracts.request import InferenceRun
from tallystick.errors import EvidenceError, InputError
from tallystick.evidence.gemm_trace import TRACE_SCHEME_LIVE
from tallystick.receipts.papers import JobPapers, check_assignment, check_worker, required_level

#: Stands for what only the execution can say; neither zero nor any root.
_LATER: Final = b"\xff" * 32


def check_planned(papers: JobPapers, run: InferenceRun, timestamp: int) -> None:
    """Hold ``papers`` against ``run`` as the receipt of that job will be held against them.

    ``timestamp`` is the current time in milliseconds. The tokens to generate count as if all of
    them came; the prompt's are not known yet, and count as one. Raises InputError naming the field.
    """
    planned = _planned(papers, run, timestamp)
    try:
        check_structure(planned)
        check_assignment(planned, papers, run)
        check_worker(planned, papers)
    except EvidenceError as error:
        raise InputError(
            f"the job cannot give a receipt: {error.message}",
            expected=error.expected,
            found=error.found,
            hint="nothing was executed; ask whoever made the job for one that holds",
        ) from None


def _planned(papers: JobPapers, run: InferenceRun, timestamp: int) -> ComputeReceipt:
    """Return the receipt of the job as far as it is known."""
    request, assignment = papers.request.body, papers.assignment.body
    credential, traced = credential_id(papers.credential), "gemm" in run.evidence
    level, issued = required_level(run), epoch_of(timestamp)
    rooted = level in (EvidenceLevel.GEMM_TRACED, EvidenceLevel.STATE_COMMITTED)
    nullifier = job_nullifier(
        request.network_id, request.scheduler_job_id, request.request_commitment
    )
    return ComputeReceipt(
        receipt_version=RECEIPT_VERSION,
        network_id=request.network_id,
        request_commitment=request.request_commitment,
        scheduler_job_id=request.scheduler_job_id,
        signed_assignment_id=signed_assignment_id(papers.assignment),
        replica_slot=assignment.replica_slot,
        model_profile_id=request.model_profile_id,
        runtime_class_id=_LATER,
        runtime_manifest_hash=_LATER,
        shape_profile_id=_LATER,
        cu_ruleset_id=_LATER,
        trace_scheme_id=TRACE_SCHEME_LIVE if traced else no_trace_scheme(),
        trace_evidence=TraceEvidence.GRAPH_FALLBACK if traced else TraceEvidence.ABSENT,
        operation_schedule_commitment=_LATER,
        schedule_event_count=1,
        canonical_compute_units=1,
        prefill_tokens=1,
        decode_tokens=run.max_tokens,
        output_commitment=_LATER,
        gemm_trace_root=_LATER if rooted else empty_gemm_root(),
        trace_event_count=1 if traced else 0,
        owner_commitment=papers.credential.owner_commitment,
        worker_credential_id=credential,
        job_nullifier=nullifier,
        execution_nullifier=execution_nullifier(nullifier, credential, assignment.replica_slot),
        job_class=request.job_class,
        evidence_level=level,
        timestamp=timestamp,
        issued_epoch=issued,
        expires_epoch=issued + LIFETIME_EPOCHS,
    )
