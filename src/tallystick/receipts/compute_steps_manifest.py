"""Steps 5 to 8 about the compute receipt: manifest, ids, ruleset, trace scheme and nullifiers."""

from __future__ import annotations

from typing import Final

from tallystick.compute.rules import matching_ruleset_id
from tallystick.contracts.commitments import (
    execution_nullifier,
    job_nullifier,
    no_trace_scheme,
)
from tallystick.contracts.compute_receipt import ComputeReceipt, TraceEvidence
from tallystick.contracts.runtime import SEQUENTIAL
from tallystick.errors import EvidenceError
from tallystick.evidence.gemm_trace import TRACE_SCHEME_LIVE, TRACE_SCHEME_SEALING
from tallystick.receipts.compute_case import (
    BUNDLE_WITHHELD,
    ComputeCase,
    NotChecked,
    StepOutcome,
)
from tallystick.receipts.papers import require_same

#: Named alike in the receipt and as properties of the manifest.
_IDS: Final = (
    "model_profile_id",
    "runtime_class_id",
    "runtime_manifest_hash",
    "shape_profile_id",
)


def check_manifest(case: ComputeCase) -> StepOutcome:
    """5 manifest: every digest of it recomputed from its facts, its parts against each other."""
    public = case.documents.public
    if public is None:
        return NotChecked(BUNDLE_WITHHELD)
    architecture = case.architecture(public)
    return f"{architecture.name}, {len(architecture.layers)} layers; all digests follow from facts"


def check_identities(case: ComputeCase) -> StepOutcome:
    """6 profile, class, manifest and shape ids, recomputed from the manifest."""
    public = case.documents.public
    if public is None:
        return NotChecked(BUNDLE_WITHHELD)
    identities = case.identities(public)
    for name in _IDS:
        expected, found = getattr(identities, name), getattr(case.body, name)
        require_same(f"compute receipt: {name}", expected, found)
    return f"{len(_IDS)} ids recomputed"


def check_ruleset(case: ComputeCase) -> StepOutcome:
    """7 ruleset binding: receipt, manifest and a ruleset that is known here name one id."""
    public = case.documents.public
    rules = matching_ruleset_id(case.body.cu_ruleset_id)
    if rules is None:
        raise EvidenceError(
            "compute receipt: cu_ruleset_id names no known ruleset",
            expected="the id of version 1, 2 or 3",
            found=case.body.cu_ruleset_id.hex(),
        )
    if public is None:
        return NotChecked(BUNDLE_WITHHELD)
    manifest = case.manifest(public)
    require_same("manifest.cu_ruleset_id", rules.ruleset_id, manifest.cu_ruleset_id)
    return f"ruleset v{rules.version} in receipt and manifest"


def check_scheme_and_nullifiers(case: ComputeCase) -> StepOutcome:
    """8 trace scheme, nullifiers derived again, token counts within the shape."""
    body, public = case.body, case.documents.public
    policy = case.documents.core.runtime_class.policy
    require_same(
        "compute receipt: trace_scheme_id", expected_scheme(body, policy), body.trace_scheme_id
    )
    check_nullifiers(body)
    if public is None:
        return NotChecked(f"{BUNDLE_WITHHELD}: the nullifiers hold, the shape is unknown")
    case.manifest(public).shape_profile.verify_shape(body.prefill_tokens, body.decode_tokens)
    return "both nullifiers derived again; the counts fit the shape"


def expected_scheme(body: ComputeReceipt, policy: str) -> bytes:
    """Return the scheme that a trace has under a policy: live, or of the sealing pass."""
    if body.trace_evidence is TraceEvidence.ABSENT:
        return no_trace_scheme()
    return TRACE_SCHEME_LIVE if policy == SEQUENTIAL else TRACE_SCHEME_SEALING


def check_nullifiers(body: ComputeReceipt) -> None:
    """Derive both nullifiers from the other fields. Raises EvidenceError naming the one."""
    job = job_nullifier(body.network_id, body.scheduler_job_id, body.request_commitment)
    require_same("compute receipt: job_nullifier", job, body.job_nullifier)
    execution = execution_nullifier(job, body.worker_credential_id, body.replica_slot)
    require_same("compute receipt: execution_nullifier", execution, body.execution_nullifier)
