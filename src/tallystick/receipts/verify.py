"""Stateless verification of one artifact set (docs/spec/verification.md).

Pure: bytes and a trust policy go in, a report comes out. No file is read, no clock is asked, no
engine is imported. The steps have the numbers of the specification, their order is fixed, and
the first failure is the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tallystick.attest.trust import TrustPolicy
from tallystick.errors import EvidenceError, NoTrustError
from tallystick.receipts.documents import SetDocuments, find_id, read_documents
from tallystick.receipts.halves import does_not_prove, proves
from tallystick.receipts.report import (
    EARLIER_FAILURE,
    NO_COMPUTE_RECEIPT,
    OPENING_WITHHELD,
    STEP_NAMES,
    Status,
    Step,
    VerificationReport,
)
from tallystick.receipts.steps_attestation import Attested, check_attestations
from tallystick.receipts.steps_openings import check_openings
from tallystick.receipts.steps_structure import check_structure

STRUCTURE: Final = 1
OPENINGS: Final = 11
ATTESTATIONS: Final = 12


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What the steps have produced so far."""

    steps: tuple[Step, ...]
    documents: SetDocuments | None = None
    attested: Attested | None = None


def verify_set(
    files: Mapping[str, bytes], trust: TrustPolicy, *, now: datetime
) -> VerificationReport:
    """Verify the set whose ``files`` are given by name, the completion marker included.

    A private member may be absent; the steps that need it then say ``not checked``. ``now`` is an
    aware time, against which the windows of ``trust`` are held.

    Raises NothingToVerifyError when there is no set or a public member is missing, and NoTrustError
    when ``trust`` holds no key for the execution link. Evidence that does not hold is no exception
    but a report whose :attr:`~VerificationReport.failure` names the step.
    """
    if now.tzinfo is None:
        raise ValueError("now has to be an aware time")
    if not trust.execution_keys():
        raise NoTrustError("the trust policy has no key for the execution link")
    set_id = find_id(files)
    return _report(set_id, _run_steps(files, set_id, trust, now))


def failed_report(set_id: str, error: EvidenceError) -> VerificationReport:
    """Return the report of a set whose files could not even be read as a set (step 1)."""
    return _report(set_id, _Outcome(_stopped((), STRUCTURE, error)))


def _run_steps(
    files: Mapping[str, bytes], set_id: str, trust: TrustPolicy, now: datetime
) -> _Outcome:
    steps: tuple[Step, ...] = ()
    documents: SetDocuments | None = None
    try:
        documents = read_documents(files, set_id)
        steps = (Step(STRUCTURE, Status.PASSED, check_structure(documents)),)
    except EvidenceError as error:
        return _Outcome(_stopped(steps, STRUCTURE, error), documents)
    # Steps 2 to 10 are about the compute receipt, which this version does not have yet.
    steps += tuple(
        Step(number, Status.NOT_CHECKED, NO_COMPUTE_RECEIPT)
        for number in range(STRUCTURE + 1, OPENINGS)
    )
    try:
        steps += (_openings(documents),)
    except EvidenceError as error:
        return _Outcome(_stopped(steps, OPENINGS, error), documents)
    try:
        attested = check_attestations(documents, trust, now=now)
    except EvidenceError as error:
        return _Outcome(_stopped(steps, ATTESTATIONS, error), documents)
    steps += (
        Step(ATTESTATIONS, Status.PASSED, attested.detail),
        Step(ATTESTATIONS + 1, Status.NOT_CHECKED, NO_COMPUTE_RECEIPT),
    )
    return _Outcome(steps, documents, attested)


def _openings(documents: SetDocuments) -> Step:
    """11 openings: checked when the private opening is there."""
    if documents.opening is None:
        return Step(OPENINGS, Status.NOT_CHECKED, OPENING_WITHHELD)
    return Step(OPENINGS, Status.PASSED, check_openings(documents, documents.opening))


def _stopped(steps: tuple[Step, ...], number: int, error: EvidenceError) -> tuple[Step, ...]:
    """Add the failed step; what comes after it is not checked."""
    failed = Step(number, Status.FAILED, error.message, error.expected, error.found)
    rest = range(number + 1, len(STEP_NAMES) + 1)
    return (
        *steps,
        failed,
        *(Step(later, Status.NOT_CHECKED, EARLIER_FAILURE) for later in rest),
    )


def _report(set_id: str, outcome: _Outcome) -> VerificationReport:
    documents, attested = outcome.documents, outcome.attested
    if documents is None:
        return VerificationReport(set_id, outcome.steps)
    if attested is None:
        return VerificationReport(
            set_id, outcome.steps, documents.receipt_digest, documents.core_digest
        )
    receipt = documents.receipt
    return VerificationReport(
        set_id=set_id,
        steps=outcome.steps,
        receipt_digest=documents.receipt_digest,
        core_digest=documents.core_digest,
        links=attested.links,
        egress=attested.egress,
        proves=proves(receipt),
        does_not_prove=does_not_prove(receipt),
    )
