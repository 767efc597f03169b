"""Step 1, second half: the fields of the receipt agree with each other.

Every check compares one field with what the others say it must be; a failure names the field.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from tallystick.contracts.digests import (
    no_bundle_digest,
    runtime_class_id,
    sandbox_profile_digest,
)
from tallystick.contracts.exec_envelope import RECEIPT_SCHEMA_DIGEST
from tallystick.contracts.receipt import Core, Observed
from tallystick.contracts.request import PRODUCER
from tallystick.contracts.runtime import ROW_CLASS, RowClass
from tallystick.contracts.sandbox_profile import NO_SANDBOX
from tallystick.errors import EvidenceError
from tallystick.evidence.state_tree import leaf_count
from tallystick.receipts.documents import SetDocuments
from tallystick.receipts.fields import require_equal
from tallystick.receipts.steps_residency import check_layer_events, check_residency

STATE_COMMITTED: Final = "state_committed"
GEMM_TRACED: Final = "gemm_traced"
_MILLISECOND: Final = 1_000_000  # in nanoseconds


def check_structure(documents: SetDocuments) -> str:
    """1 structure and bounds: cross-field consistency. Returns what was seen, in words."""
    core, observed = documents.receipt.core, documents.receipt.observed
    for check_core in _CORE_CHECKS:
        check_core(core)
    for check_observed in _OBSERVED_CHECKS:
        check_observed(observed)
    _check_sandbox(core, observed)
    _check_worker_root(core, observed)
    _check_execution(documents)
    check_residency(core, observed)
    _check_telemetry(documents)
    check_layer_events(observed, documents.telemetry)
    return f"every file named by the marker, {len(documents.telemetry.rows)} telemetry events"


def timestamp_ns(text: str) -> int:
    """Return a document timestamp as nanoseconds since the Unix epoch."""
    elapsed = datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)
    return elapsed // timedelta(microseconds=1) * 1000


def _check_runtime(core: Core) -> None:
    runtime = core.runtime_class
    require_equal("core.runtime_class_id", runtime_class_id(runtime), core.runtime_class_id)
    require_equal("core.runtime_class.engine_library", core.engine.library, runtime.engine_library)
    require_equal("core.runtime_class.decode_class", runtime.prompt_class, runtime.decode_class)
    row_class = runtime.prompt_class
    if row_class.floor > row_class.max_rows:
        raise EvidenceError(
            "core.runtime_class.prompt_class.floor is above max_rows",
            expected=f"at most {row_class.max_rows}",
            found=str(row_class.floor),
        )
    if runtime.policy != ROW_CLASS:
        require_equal("core.runtime_class.prompt_class", RowClass(1, 1), row_class)


def _check_counts(core: Core) -> None:
    needed = core.prompt_tokens + core.sampled_tokens
    if needed > core.context_tokens:
        raise EvidenceError(
            "core.context_tokens is too small for the tokens",
            expected=f"at least {needed}",
            found=str(core.context_tokens),
        )


def _check_evidence(core: Core) -> None:
    evidence = core.evidence
    committed = evidence.state_root is not None
    if committed is not (evidence.level == STATE_COMMITTED):
        raise EvidenceError(
            "core.evidence.level is not what the roots say",
            expected=f"{STATE_COMMITTED} exactly with a state root",
            found=evidence.level,
        )
    traced = evidence.gemm_trace_root is not None
    if not committed and traced is not (evidence.level == GEMM_TRACED):
        raise EvidenceError(
            "core.evidence.level is not what the roots say",
            expected=f"{GEMM_TRACED} exactly with a trace and no states",
            found=evidence.level,
        )
    if evidence.expert_route_root is not None and not (committed or traced):
        raise EvidenceError(
            "core.evidence.expert_route_root has no place at this level",
            expected="null",
            found=evidence.expert_route_root,
        )
    if committed and evidence.layers < 1:
        raise EvidenceError("core.evidence.layers is zero", expected="the model's layers")
    leaves = (
        leaf_count(core.prompt_tokens, core.sampled_tokens, evidence.layers) if committed else 0
    )
    require_equal("core.evidence.state_leaves", leaves, evidence.state_leaves)


def _check_disclosure(core: Core) -> None:
    if (core.disclosed is not None) != (core.disclosure == "public"):
        raise EvidenceError(
            "core.disclosed is not what the other fields say",
            expected="plain digests exactly with disclosure public",
            found=f"disclosure {core.disclosure}",
        )


def _check_times(observed: Observed) -> None:
    start, end = timestamp_ns(observed.start_time), timestamp_ns(observed.end_time)
    total = observed.durations_ns.total
    # Both texts are cut to milliseconds, so their distance is off by less than one.
    if abs(end - start - total) >= _MILLISECOND:
        raise EvidenceError(
            "observed.end_time is not start_time plus durations_ns.total",
            expected=f"{total} ns after the start",
            found=f"{end - start} ns",
        )
    parts = observed.durations_ns
    if parts.load + parts.prefill + parts.decode + parts.seal > total:
        raise EvidenceError("observed.durations_ns.total is less than the sum of its parts")


def _check_absent_parts(observed: Observed) -> None:
    # What is not in the set could not be checked, so it is no evidence.
    require_equal("observed.gpu_memory", None, observed.gpu_memory)


def _check_audited(observed: Observed) -> None:
    """A sandbox that is claimed was probed, and passed; step 12 looks at the probes themselves."""
    if observed.enforcement_level == "none":
        raise EvidenceError(
            "observed.enforcement_level is none, and the core names a sandbox",
            expected="the level that was reached",
            found="none",
        )
    require_equal("observed.egress_audit.result", "passed", observed.egress_audit.result)
    if observed.egress_audit.statement_digest is None:
        raise EvidenceError(
            "observed.egress_audit names no statement",
            expected="the digest of the audit's statement",
            found="null",
        )


def _check_sandbox(core: Core, observed: Observed) -> None:
    if core.sandbox.profile != NO_SANDBOX:
        _check_audited(observed)
        return
    known = sandbox_profile_digest(NO_SANDBOX, "none")
    require_equal("core.sandbox.profile_digest", known, core.sandbox.profile_digest)
    # A run cannot have been enforced more than its profile declares.
    require_equal("observed.enforcement_level", "none", observed.enforcement_level)
    require_equal("observed.egress_audit.result", "not_run", observed.egress_audit.result)
    require_equal(
        "observed.egress_audit.statement_digest", None, observed.egress_audit.statement_digest
    )


def _check_worker_root(core: Core, observed: Observed) -> None:
    """The worker's own root is there exactly when the core's is, and never the same."""
    own, common = observed.worker_state_root, core.evidence.state_root
    if (own is None) is not (common is None):
        raise EvidenceError(
            "observed.worker_state_root is not what the core says",
            expected="a root exactly when the core has a state root",
            found="none" if own is None else own,
        )
    if own is not None and own == common:
        raise EvidenceError(
            "observed.worker_state_root is the core's root",
            expected="a root that is bound to the worker's credential",
            found=own,
        )


def _check_execution(documents: SetDocuments) -> None:
    """The execution envelope is the one that the receipt names, and about this very receipt."""
    core, observed = documents.receipt.core, documents.receipt.observed
    envelope = documents.execution
    chain, validator = envelope.provenance_chain, envelope.receipt_validator
    bundled = core.bundle_digest != no_bundle_digest()
    for field, expected, found in (
        (
            "observed.exec_envelope_digest",
            documents.execution_digest,
            observed.exec_envelope_digest,
        ),
        ("execution envelope: model_digest", core.model_digest, envelope.model_digest),
        (
            "execution envelope: sandbox_profile.name",
            core.sandbox.profile,
            envelope.sandbox_profile.name,
        ),
        (
            "execution envelope: sandbox_profile.digest",
            core.sandbox.profile_digest,
            envelope.sandbox_profile.digest,
        ),
        (
            "execution envelope: provenance_chain.run_digest",
            observed.run_digest,
            chain.run_digest,
        ),
        ("execution envelope: receipt_validator.name", PRODUCER, validator.name),
        (
            "execution envelope: receipt_validator.schema_digest",
            RECEIPT_SCHEMA_DIGEST,
            validator.schema_digest,
        ),
    ):
        require_equal(field, expected, found)
    if (core.task_digest != no_bundle_digest()) is not bundled:
        raise EvidenceError(
            "core.task_digest is not what the other fields say",
            expected="a task exactly with a bundle",
            found=core.task_digest,
        )
    if (chain.manifest_digest is not None) is not bundled:
        raise EvidenceError(
            "execution envelope: provenance_chain.manifest_digest is not what the core says",
            expected="a digest exactly with a bundle",
            found=chain.manifest_digest or "null",
        )
    if chain.source_attestation_digest is not None and not bundled:
        raise EvidenceError(
            "execution envelope: provenance_chain.source_attestation_digest has no bundle",
            expected="null",
            found=chain.source_attestation_digest,
        )


def _check_telemetry(documents: SetDocuments) -> None:
    core, observed, log = documents.receipt.core, documents.receipt.observed, documents.telemetry
    require_equal(
        "observed.telemetry_digest", documents.telemetry_digest, observed.telemetry_digest
    )
    require_equal("observed.dropped_events", log.dropped, observed.dropped_events)
    least = core.sampled_tokens - log.dropped
    if not least <= log.tokens <= core.sampled_tokens:
        raise EvidenceError(
            "core.sampled_tokens is not the number of TokenEmitted events",
            expected=str(log.tokens),
            found=str(core.sampled_tokens),
        )


_CORE_CHECKS: Final[tuple[Callable[[Core], None], ...]] = (
    _check_runtime,
    _check_counts,
    _check_evidence,
    _check_disclosure,
)
_OBSERVED_CHECKS: Final[tuple[Callable[[Observed], None], ...]] = (
    _check_times,
    _check_absent_parts,
)
