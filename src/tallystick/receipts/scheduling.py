"""A scheduler orders a job: one signed request, one assignment and ticket for each worker.

A run that nobody else ordered schedules itself (:mod:`tallystick.receipts.self_local`). A ticket
carries request and assignment to the worker that it was made for (docs/spec/tickets.md). Pure:
randomness and time are handed in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tallystick.attest.keys import PublicKey, SigningKey
from tallystick.contracts.assignment import (
    ASSIGNMENT_VERSION,
    CREDENTIAL_VERSION,
    REQUEST_VERSION,
    Assignment,
    Request,
    SignedAssignment,
    SignedRequest,
    WorkerCredential,
    assignment_signing_digest,
    decode_signed_assignment,
    decode_signed_request,
    encode_signed_assignment,
    encode_signed_request,
    request_signing_digest,
    signed_request_id,
)
from tallystick.contracts.commitments import owner_commitment, request_commitment
from tallystick.contracts.compute_receipt import LIFETIME_EPOCHS, JobClass, epoch_of
from tallystick.contracts.digests import request_body
from tallystick.contracts.request import PRODUCER, InferenceRun
from tallystick.contracts.ticket import TICKET_SCHEMA, Ticket
from tallystick.errors import EvidenceError, InputError
from tallystick.receipts.papers import JobPapers, required_level

#: A run may cross an epoch between its credential and its receipt, which lives a day itself.
CREDENTIAL_EPOCHS: Final = LIFETIME_EPOCHS
_ASK_AGAIN: Final = "ask its scheduler for a new one"


@dataclass(frozen=True, slots=True)
class JobTerms:
    """What a scheduler asks for; token counts are upper bounds, epochs are hours."""

    network_id: bytes
    scheduler_job_id: bytes
    job_class: JobClass
    model_profile_id: bytes
    max_prefill_tokens: int
    issued_epoch: int
    expires_epoch: int


@dataclass(frozen=True, slots=True, repr=False)
class OrderedJob:
    """A signed request, one signed assignment for each worker in the order of slots. Private."""

    scheduler_key: bytes
    request: SignedRequest
    assignments: tuple[SignedAssignment, ...]
    request_nonce: bytes

    def __repr__(self) -> str:
        return "<OrderedJob>"


def order_job(
    run: InferenceRun,
    terms: JobTerms,
    scheduler: SigningKey,
    workers: tuple[bytes, ...],
    request_nonce: bytes,
) -> OrderedJob:
    """Sign a request for ``run`` and give slot i to the worker with the raw public key i.

    Raises InputError for numbers that do not fit.
    """
    request = Request(
        version=REQUEST_VERSION,
        network_id=terms.network_id,
        scheduler_job_id=terms.scheduler_job_id,
        request_commitment=request_commitment(request_nonce, request_body(run)),
        model_profile_id=terms.model_profile_id,
        job_class=terms.job_class,
        required_evidence_level=required_level(run),
        max_prefill_tokens=terms.max_prefill_tokens,
        max_decode_tokens=run.max_tokens,
        replicas=terms.job_class.slots,
        issued_epoch=terms.issued_epoch,
        expires_epoch=terms.expires_epoch,
    )
    signed = SignedRequest(request, scheduler.sign(request_signing_digest(request)))
    assignments = tuple(
        _assign(signed, scheduler, slot, worker) for slot, worker in enumerate(workers)
    )
    return OrderedJob(scheduler.public.raw, signed, assignments, request_nonce)


def _assign(
    request: SignedRequest, scheduler: SigningKey, slot: int, worker: bytes
) -> SignedAssignment:
    body = request.body
    assignment = Assignment(
        version=ASSIGNMENT_VERSION,
        network_id=body.network_id,
        scheduler_job_id=body.scheduler_job_id,
        request_commitment=body.request_commitment,
        signed_request_id=signed_request_id(request),
        replica_slot=slot,
        worker_key=worker,
        job_class=body.job_class,
        required_evidence_level=body.required_evidence_level,
        issued_epoch=body.issued_epoch,
        expires_epoch=body.expires_epoch,
    )
    return SignedAssignment(assignment, scheduler.sign(assignment_signing_digest(assignment)))


def tickets(run: InferenceRun, job: OrderedJob) -> tuple[Ticket, ...]:
    """Return a ticket for each assignment of ``job``, whose request was made for ``run``."""
    network = job.request.body.network_id.hex()
    return tuple(
        Ticket(
            schema=TICKET_SCHEMA,
            producer=PRODUCER,
            request=replace(run, network_id=network, replica_slot=assignment.body.replica_slot),
            request_nonce=job.request_nonce.hex(),
            scheduler_key=job.scheduler_key.hex(),
            signed_request=encode_signed_request(job.request).hex(),
            signed_assignment=encode_signed_assignment(assignment).hex(),
        )
        for assignment in job.assignments
    )


def open_ticket(ticket: Ticket) -> OrderedJob:
    """Return the job of a ticket with its one assignment; signatures and bindings are checked.

    Raises InputError when the ticket contradicts itself, or is of a class that no ticket has.
    """
    try:
        scheduler = PublicKey.from_hex(ticket.scheduler_key)
        request = decode_signed_request(bytes.fromhex(ticket.signed_request))
        assignment = decode_signed_assignment(bytes.fromhex(ticket.signed_assignment))
        scheduler.verify(request.signature, request_signing_digest(request.body))
        scheduler.verify(assignment.signature, assignment_signing_digest(assignment.body))
    except EvidenceError as error:
        raise InputError(
            f"the ticket does not hold: {error.message}",
            expected=error.expected,
            found=error.found,
            hint=_ASK_AGAIN,
        ) from None
    nonce = bytes.fromhex(ticket.request_nonce)
    commitment = request_commitment(nonce, request_body(ticket.request))
    bindings = (
        ("request", commitment == request.body.request_commitment),
        ("assignment", signed_request_id(request) == assignment.body.signed_request_id),
        ("slot", ticket.request.replica_slot == assignment.body.replica_slot),
        ("network", ticket.request.network_id == assignment.body.network_id.hex()),
    )
    for what, holds in bindings:
        if not holds:
            raise InputError(
                f"the ticket does not hold: its {what} is not the one that was signed",
                hint=_ASK_AGAIN,
            )
    _require_ordered(request.body.job_class, scheduler.raw, assignment.body.worker_key)
    return OrderedJob(scheduler.raw, request, (assignment,), nonce)


def _require_ordered(job_class: JobClass, scheduler: bytes, worker: bytes) -> None:
    """Refuse a class that says who ordered the job, and says it wrongly."""
    if job_class is JobClass.SELF_LOCAL:
        raise InputError(
            "the ticket's class says that nobody ordered the job",
            expected=" or ".join(
                kind.name.lower() for kind in JobClass if kind is not JobClass.SELF_LOCAL
            ),
            found=job_class.name.lower(),
            hint=_ASK_AGAIN,
        )
    if job_class is JobClass.REPLICA_EXTERNAL and scheduler == worker:
        raise InputError(
            "the ticket's class says that another ordered the job",
            expected="a scheduler that is not the worker, or replica_self_ordered",
            found="the worker's own key as scheduler",
            hint=_ASK_AGAIN,
        )


def new_credential(
    network_id: bytes, worker_key: bytes, owner_key: bytes, owner_salt: bytes, epoch: int
) -> WorkerCredential:
    """Return the credential of a worker, valid from ``epoch`` for as long as a receipt is.

    The keys are raw public ones. The owner's is only committed to, under the salt of 32 bytes.
    """
    return WorkerCredential(
        version=CREDENTIAL_VERSION,
        network_id=network_id,
        worker_key=worker_key,
        owner_commitment=owner_commitment(owner_salt, owner_key),
        issued_epoch=epoch,
        expires_epoch=epoch + CREDENTIAL_EPOCHS,
    )


def ticket_papers(
    job: OrderedJob, worker: PublicKey, owner: PublicKey, owner_salt: bytes, timestamp: int
) -> JobPapers:
    """Return the papers of the worker to whom the one assignment of ``job`` was given.

    ``timestamp`` is the current time in milliseconds. Raises InputError when the ticket is for
    another worker, or not valid now.
    """
    assignment = job.assignments[0]
    given_to = PublicKey.from_raw(assignment.body.worker_key)
    if given_to != worker:
        raise InputError(
            "the ticket was given to another worker",
            expected=f"the key {given_to.key_id}",
            found=worker.key_id,
            hint="name the key that the ticket is for with --key",
        )
    epoch = epoch_of(timestamp)
    window = assignment.body
    if not window.issued_epoch <= epoch < window.expires_epoch:
        raise InputError(
            "the ticket is not valid now",
            expected=f"from epoch {window.issued_epoch}, before epoch {window.expires_epoch}",
            found=f"epoch {epoch}",
            hint=_ASK_AGAIN,
        )
    credential = new_credential(window.network_id, worker.raw, owner.raw, owner_salt, epoch)
    return JobPapers(
        scheduler_key=job.scheduler_key,
        request=job.request,
        assignment=assignment,
        credential=credential,
        owner_key=owner.raw,
        owner_salt=owner_salt,
        request_nonce=job.request_nonce,
    )
