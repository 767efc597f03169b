"""The papers of one run, made before it: whose job it is, and which credential its worker shows."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallystick.attest.bundlekeys import AuditKey
from tallystick.attest.keys import PublicKey, SigningKey
from tallystick.attest.secretfiles import SecretKind, read_secret
from tallystick.contracts.codec import decode_bytes
from tallystick.contracts.commitments import SALT_BYTES
from tallystick.contracts.request import InferenceRun
from tallystick.contracts.ticket import MAX_TICKET_BYTES, Ticket
from tallystick.errors import EvidenceError, InputError
from tallystick.receipts.build import RecordState, Sealing
from tallystick.receipts.papers import JobPapers
from tallystick.receipts.planned import check_planned
from tallystick.receipts.scheduling import open_ticket, ticket_papers
from tallystick.receipts.sealing import NONCE_BYTES
from tallystick.receipts.self_local import (
    JOB_SECRETS_BYTES,
    JobSecrets,
    self_local_credential,
    self_local_papers,
)
from tallystick.store.home import make_private_dirs
from tallystick.store.state.entry import StateEntry
from tallystick.store.state.schema import STATE_NAME
from tallystick.store.state.store import open_state

_TICKET: Final = SecretKind(
    name="ticket",
    missing="`tallystick job order` writes one for each worker",
    exposed="it holds the prompt: if others can have read it, treat that as published; else take"
    " the rights of group and others away",
    foreign="copy it to a file of your own, of mode 600",
)


@dataclass(frozen=True, slots=True, repr=False)
class RunPapers:
    """A job's papers, and the nonces of what will be committed to. Private."""

    papers: JobPapers
    prompt_nonce: bytes
    output_nonce: bytes

    def __repr__(self) -> str:
        return "<RunPapers>"

    def sealing(self, key: AuditKey) -> Sealing:
        """Return what the bundle is sealed with; salt and nonce are drawn now."""
        return Sealing(
            key=key,
            salt=os.urandom(SALT_BYTES),
            nonce=os.urandom(NONCE_BYTES),
            prompt_nonce=self.prompt_nonce,
            output_nonce=self.output_nonce,
        )


def own_papers(
    run: InferenceRun, worker: PublicKey, *, model_profile_id: bytes, max_prefill_tokens: int
) -> RunPapers:
    """Return the papers of a run that nobody else ordered, with secrets of its own.

    Raises InputError for a run that declares another network or slot than its papers have.
    """
    secrets, now = JobSecrets.of(os.urandom(JOB_SECRETS_BYTES)), now_ms()
    papers = self_local_papers(
        secrets,
        self_local_credential(secrets, worker.raw, now),
        run,
        model_profile_id=model_profile_id,
        max_prefill_tokens=max_prefill_tokens,
    )
    check_planned(papers, run, now)
    return RunPapers(papers, secrets.prompt_nonce, secrets.output_nonce)


def papers_of_ticket(ticket: Ticket, worker: PublicKey) -> RunPapers:
    """Return the papers of the worker to whom ``ticket`` was given.

    Raises InputError when it is for another worker, not valid now, or cannot give a receipt.
    """
    now = now_ms()
    papers = ticket_papers(
        open_ticket(ticket),
        worker,
        SigningKey.generate().public,  # the owner of this one credential
        os.urandom(SALT_BYTES),
        now,
    )
    check_planned(papers, ticket.request, now)
    return RunPapers(papers, os.urandom(SALT_BYTES), os.urandom(SALT_BYTES))


def read_ticket(path: Path) -> Ticket:
    """Return the ticket in the file ``path``.

    Raises InputError when it is none, or not kept as private as a key (docs/spec/keys.md#files).
    """
    data = read_secret(path, max_bytes=MAX_TICKET_BYTES, kind=_TICKET)
    try:
        ticket = decode_bytes(Ticket, data, max_bytes=MAX_TICKET_BYTES, where="ticket")
    except EvidenceError as error:
        raise InputError(
            f"not a ticket: {error.message}", expected=error.expected, found=error.found
        ) from None
    open_ticket(ticket)
    return ticket


def now_ms() -> int:
    """Return the wall clock in milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


def record_in(directory: Path) -> RecordState:
    """Return a recorder that accepts one receipt into a new state store.

    The store is made in a folder of its own inside ``directory``, and gone from there when its
    bytes are returned: it is then written like any other file of the set.
    """

    def record(entry: StateEntry) -> bytes:
        folder = directory / f".state-{os.urandom(8).hex()}"
        make_private_dirs(folder)
        try:
            with open_state(folder / STATE_NAME) as store:
                store.accept(entry)
            return (folder / STATE_NAME).read_bytes()
        finally:
            for left in folder.iterdir():
                left.unlink()
            folder.rmdir()

    return record
