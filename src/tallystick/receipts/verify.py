"""Stateless verification of one artifact set (docs/spec/verification.md).

Pure: bytes and a trust policy go in, a report comes out. No file is read, no clock is asked, no
engine is imported. The steps have the numbers of the specification, their order is fixed, and
the first failure is the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from tallystick.attest.bundlekeys import AuditKey, BundleKey
from tallystick.attest.keys import PublicKey
from tallystick.attest.trust import TrustPolicy
from tallystick.contracts.commitments import local_network_id
from tallystick.contracts.compute_receipt import epoch_of
from tallystick.errors import EvidenceError, NoTrustError
from tallystick.receipts.compute_case import (
    BUNDLE_WITHHELD,
    PRIVATE_LOCKED,
    ComputeCase,
    ComputeContext,
    ComputeDocuments,
    NotChecked,
)
from tallystick.receipts.compute_steps import COMPUTE_STEPS
from tallystick.receipts.documents import SetDocuments, find_id, read_documents
from tallystick.receipts.fields import require_equal
from tallystick.receipts.halves import does_not_prove, proves
from tallystick.receipts.public_json import PublicNames, check_public_receipt
from tallystick.receipts.report import (
    EARLIER_FAILURE,
    STEP_NAMES,
    Status,
    Step,
    TrustScope,
    VerificationReport,
)
from tallystick.receipts.steps_attestation import Attested, check_attestations
from tallystick.receipts.steps_match import Parties
from tallystick.receipts.steps_openings import check_openings
from tallystick.receipts.steps_structure import check_structure

STRUCTURE: Final = 1
UNITS: Final = 9
OPENINGS: Final = 11
ATTESTATIONS: Final = 12
CORE: Final = 13
_EPOCH_START: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class VerifyContext:
    """What a verifier brings besides the files.

    ``trust`` None takes the worker's key out of the opened bundle: scope
    ``embedded_local_snapshot``. ``key`` opens the bundle. ``now`` (aware) is when it is verified;
    the compute receipt's window is held against it only with ``window`` "now", else against the
    epoch at which its worker verified it. ``network_id`` is the network whose receipts count.
    ``parties`` are held against the receipt in step 12.
    """

    trust: TrustPolicy | None
    now: datetime
    key: AuditKey | BundleKey | None = None
    window: Literal["bundle", "now"] = "bundle"
    network_id: bytes = field(default_factory=local_network_id)
    parties: Parties = field(default_factory=Parties)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What the steps have produced so far."""

    steps: tuple[Step, ...]
    documents: SetDocuments | None = None
    attested: Attested | None = None


def verify_set(
    files: Mapping[str, bytes],
    trust: TrustPolicy | None,
    *,
    now: datetime,
    key: AuditKey | BundleKey | None = None,
) -> VerificationReport:
    """Verify a set as :func:`verify_with` does, with the common choices."""
    return verify_with(files, VerifyContext(trust, now, key))


def verify_with(files: Mapping[str, bytes], context: VerifyContext) -> VerificationReport:
    """Verify the set whose ``files`` are given by name, the completion marker included.

    A private member may be absent; the steps that need it then say ``not checked``.

    Raises NothingToVerifyError when there is no set or a public member is missing, and NoTrustError
    when there is neither trust with a key for the execution link nor a key for the bundle. Evidence
    that does not hold is no exception but a report whose :attr:`~VerificationReport.failure` names
    the step.
    """
    if context.now.tzinfo is None:
        raise ValueError("now has to be an aware time")
    if context.trust is None and context.key is None:
        raise NoTrustError(
            "no trust was given, and there is no default",
            expected="a public key, a trust policy, or the key that opens the bundle",
        )
    if context.trust is not None and not context.trust.execution_keys():
        raise NoTrustError("the trust policy has no key for the execution link")
    set_id = find_id(files)
    return _report(set_id, _run_steps(files, set_id, context), context)


def failed_report(set_id: str, error: EvidenceError) -> VerificationReport:
    """Return the report of a set whose files could not even be read as a set (step 1)."""
    return VerificationReport(set_id, _stopped((), STRUCTURE, error))


def _run_steps(files: Mapping[str, bytes], set_id: str, context: VerifyContext) -> _Outcome:
    documents: SetDocuments | None = None
    attested: Attested | None = None
    steps: tuple[Step, ...] = ()
    try:
        documents = read_documents(files, set_id, context.key)
        case = compute_case(documents, context)
        for number in range(STRUCTURE, len(STEP_NAMES) + 1):
            if number == STRUCTURE:
                step = _structure(case, documents)
            elif number == OPENINGS:
                step = _openings(case, documents)
            elif number == ATTESTATIONS:
                attested = check_attestations(
                    documents,
                    _trust(documents, context),
                    now=context.now,
                    parties=context.parties,
                )
                step = Step(number, Status.PASSED, attested.detail)
            elif number == CORE:
                step = _core(case, documents)
            else:
                step = _compute_step(number, case)
            steps += (step,)
    except EvidenceError as error:
        return _Outcome(_stopped(steps, len(steps) + 1, error), documents)
    return _Outcome(steps, documents, attested)


def compute_case(documents: SetDocuments, context: VerifyContext) -> ComputeCase:
    """Return what the steps about the compute receipt look at."""
    bundle, receipt = documents.bundle, documents.receipt
    milliseconds = (context.now - _EPOCH_START) // timedelta(milliseconds=1)
    return ComputeCase(
        ComputeDocuments(
            palw=documents.compute_bytes,
            receipt=documents.compute,
            public=None if bundle is None else bundle.public,
            private=None if bundle is None else bundle.private,
            core=receipt.core,
            core_digest=documents.core_digest,
            observed=receipt.observed,
        ),
        ComputeContext(
            network_id=context.network_id,
            now_epoch=epoch_of(milliseconds) if context.window == "now" else None,
            worker_keys=() if context.trust is None else context.trust.execution_keys(),
        ),
        documents.opening,
    )


def _trust(documents: SetDocuments, context: VerifyContext) -> TrustPolicy:
    """Return whom the attestation is held against: what was given, or the bundle's own worker."""
    if context.trust is not None:
        return context.trust
    if documents.bundle is None or documents.bundle.private is None:
        raise EvidenceError(
            "no trust was given, and the bundle that would name a key is withheld",
            expected="the verification bundle, or a public key",
        )
    worker = documents.bundle.private.credential.worker_key
    return TrustPolicy.for_keys([PublicKey.from_raw(worker)])  # a sound key: step 4


def _structure(case: ComputeCase, documents: SetDocuments) -> Step:
    """1 structure and bounds: what the fields of all documents say about each other."""
    words = check_structure(documents)
    bound = COMPUTE_STEPS[STRUCTURE](case)
    if isinstance(bound, str):
        words = f"{words}; {bound}"
    return Step(STRUCTURE, Status.PASSED, words)


def _compute_step(number: int, case: ComputeCase) -> Step:
    outcome = COMPUTE_STEPS[number](case)
    if isinstance(outcome, NotChecked):
        return Step(number, Status.NOT_CHECKED, outcome.reason)
    return Step(number, Status.PASSED, outcome)


def _openings(case: ComputeCase, documents: SetDocuments) -> Step:
    """11 openings: checked when the private part of the bundle is open."""
    if documents.opening is None:
        reason = BUNDLE_WITHHELD if documents.bundle is None else PRIVATE_LOCKED
        return Step(OPENINGS, Status.NOT_CHECKED, reason)
    words = check_openings(documents, documents.opening)
    opened = _compute_step(OPENINGS, case)
    return Step(OPENINGS, opened.status, f"{words}; {opened.detail}")


def _core(case: ComputeCase, documents: SetDocuments) -> Step:
    """13 the compute receipt against the core, and the public metadata against both."""
    step = _compute_step(CORE, case)
    bundle = documents.bundle
    if bundle is not None:
        require_equal(
            "execution envelope: receipt_validator.version",
            case.facts(bundle.public).platform.program.version,
            documents.execution.receipt_validator.version,
        )
    names = PublicNames(
        None if bundle is None else bundle.envelope.bundle_id, documents.receipt_digest
    )
    repeated = check_public_receipt(documents.public_json, case, names)
    if isinstance(repeated, NotChecked):
        return Step(CORE, Status.NOT_CHECKED, f"{step.detail}; {repeated.reason}")
    return Step(CORE, step.status, f"{step.detail}; {repeated}")


def _stopped(steps: tuple[Step, ...], number: int, error: EvidenceError) -> tuple[Step, ...]:
    """Add the failed step; what comes after it is not checked."""
    failed = Step(number, Status.FAILED, error.message, error.expected, error.found, error.hint)
    rest = range(number + 1, len(STEP_NAMES) + 1)
    return (
        *steps,
        failed,
        *(Step(later, Status.NOT_CHECKED, EARLIER_FAILURE) for later in rest),
    )


def _report(set_id: str, outcome: _Outcome, context: VerifyContext) -> VerificationReport:
    documents, attested = outcome.documents, outcome.attested
    scope = TrustScope.EMBEDDED if context.trust is None else TrustScope.GIVEN
    if documents is None:
        return VerificationReport(set_id, outcome.steps)
    if attested is None or any(step.status is Status.FAILED for step in outcome.steps):
        return VerificationReport(
            set_id, outcome.steps, documents.receipt_digest, documents.core_digest
        )
    receipt = documents.receipt
    priced = outcome.steps[UNITS - 1].status is Status.PASSED
    units: Literal["derived", "claimed"] = "derived" if priced else "claimed"
    return VerificationReport(
        set_id=set_id,
        steps=outcome.steps,
        receipt_digest=documents.receipt_digest,
        core_digest=documents.core_digest,
        links=attested.links,
        egress=attested.egress,
        match=attested.match,
        trust_scope=scope,
        proves=proves(receipt, units, attested.links[0].status, attested.match),
        does_not_prove=does_not_prove(receipt, units, attested.links[0].status),
    )
