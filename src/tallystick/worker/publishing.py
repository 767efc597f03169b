"""From a signed set to a run that is done: what is in between outlives the worker.

The set gets its name first, and then the queue is told. A note, written before either, lets the
next worker do what a killed one could not (docs/spec/worker.md#crashes).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from tallystick.canonical.hashing import format_digest, sha256
from tallystick.contracts.codec import decode_bytes, encode_bytes
from tallystick.contracts.layout import MARKER
from tallystick.contracts.types import Digest, IntRange, OneOf, Pattern, ShortText
from tallystick.errors import (
    EvidenceError,
    InputError,
    LostLeaseError,
    NothingToVerifyError,
    UnavailableError,
)
from tallystick.queues.port import JobResult, Lease, LeaseName, Queue
from tallystick.receipts.documents import read_documents
from tallystick.store.announced import MAX_NOTE, Note, announce, left
from tallystick.store.artifacts import remove_set
from tallystick.store.sets import SetLocation, load_set

NOTE_SCHEMA: Final = "tallystick.publication/v1"
COMPLETE: Final = "complete"


@dataclass(frozen=True, slots=True)
class Planned:
    """A set that is about to be written; ``marker_digest`` names all of its bytes."""

    receipt_id: str
    receipt_digest: str
    marker_digest: str


@dataclass(frozen=True, slots=True)
class PublicationNote:
    """Which set is to complete which run, under which lease."""

    schema: Annotated[str, OneOf((NOTE_SCHEMA,))]
    job_id: Digest
    lease_epoch: Annotated[int, IntRange(1, 2**53 - 1)]
    worker_id: ShortText
    receipt_id: Annotated[str, Pattern(r"[0-9a-f]{32}", 32)]
    receipt_digest: Digest
    marker_digest: Digest


class Publication:
    """The set of one run on its way: :attr:`named` once it has its name."""

    def __init__(self, receipts: Path, lease: Lease) -> None:
        self._receipts = receipts
        self._lease = lease
        self._note: Note | None = None
        self.named = False

    def announce(self, planned: Planned) -> None:
        """Note what is about to be written. Raises UnavailableError."""
        lease = self._lease
        note = PublicationNote(
            schema=NOTE_SCHEMA,
            job_id=lease.job_id,
            lease_epoch=lease.lease_epoch,
            worker_id=lease.worker_id,
            receipt_id=planned.receipt_id,
            receipt_digest=planned.receipt_digest,
            marker_digest=planned.marker_digest,
        )
        name = f"{lease.job_id.removeprefix('sha256:')}-{lease.lease_epoch}"
        self._note = announce(self._receipts, name, encode_bytes(note))

    def withdraw(self) -> None:
        """Say that the queue knows, or that there is no set.

        A note that cannot be removed is settled later, which then changes nothing.
        """
        self.named = False
        if self._note is not None:
            with contextlib.suppress(UnavailableError):
                self._note.withdraw()

    def leave(self) -> None:
        """Leave it to :func:`settle` to tell the queue."""
        if self._note is not None:
            self._note.leave()


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a set whose worker could not tell the queue; ``reason`` says why it is lost.

    ``place`` None: it was removed, because its run is another's by now, or it does not hold.
    """

    job_id: str
    receipt_digest: str
    place: Path | None
    reason: str | None


def settle(receipts: Path, queue: Queue, claimed: Lease | None = None) -> Iterator[Settled]:
    """Complete the runs whose sets were named by workers that could not say so.

    Each is completed under the lease that it was made under, so that the queue refuses what is
    another's by now; such a set is removed. With ``claimed`` only sets of that lease's job are
    looked at, and completed under that lease. A set that is not to the last byte what its worker
    wrote stays as it is, and counts for nothing. Raises UnavailableError.
    """
    for note, data in left(receipts):
        try:
            noted = decode_bytes(PublicationNote, data, max_bytes=MAX_NOTE)
        except EvidenceError:
            note.withdraw()
            continue
        if claimed is not None and claimed.job_id != noted.job_id:
            continue
        if not _is_of(queue, noted):
            continue  # another queue's
        directory = receipts / noted.receipt_id
        if not os.path.lexists(directory):  # it never got its name
            note.withdraw()
            continue
        try:
            fault = _fault(directory, noted)
        except UnavailableError:
            continue  # somebody has its state store open: another time
        if fault is None:
            settled = _told(directory, queue, noted, claimed)
        else:
            settled = Settled(noted.job_id, noted.receipt_digest, None, fault)
        note.withdraw()
        yield settled


def _is_of(queue: Queue, noted: PublicationNote) -> bool:
    """Say whether this queue gave the lease that the note names."""
    try:
        past = queue.leases(noted.job_id)
    except InputError:
        return False
    named = (noted.lease_epoch, noted.worker_id)
    return named in {(lease.lease_epoch, lease.worker_id) for lease in past}


def _told(directory: Path, queue: Queue, noted: PublicationNote, claimed: Lease | None) -> Settled:
    """Tell the queue of a set, or remove it when its run is another's by now."""
    lease = claimed or LeaseName(noted.job_id, noted.lease_epoch, noted.worker_id)
    result = JobResult(noted.receipt_digest, COMPLETE, os.fspath(directory))
    try:
        queue.complete(lease, result)
    except LostLeaseError as error:
        remove_set(directory, MARKER.name(noted.receipt_id))
        return Settled(noted.job_id, noted.receipt_digest, None, error.message)
    return Settled(noted.job_id, noted.receipt_digest, directory, None)


def _fault(directory: Path, noted: PublicationNote) -> str | None:
    """Say what keeps a set from counting. Raises UnavailableError."""
    try:
        _require_whole(directory, noted)
    except (EvidenceError, NothingToVerifyError) as error:
        return f"the set that a worker left does not hold: {error.message}"
    return None


def _require_whole(directory: Path, noted: PublicationNote) -> None:
    """Require every byte of the set that the note names, and that it is the run's.

    Its worker had verified those bytes, with its own key, before it wrote the note. Raises
    EvidenceError, NothingToVerifyError.
    """
    loaded = load_set(SetLocation(directory, noted.receipt_id))
    if loaded.withheld:
        raise NothingToVerifyError(f"{loaded.withheld[0]} is missing")
    marker = format_digest(sha256(loaded.files[MARKER.name(noted.receipt_id)]))
    documents = read_documents(loaded.files, noted.receipt_id)  # holds the files to the marker
    for what, expected, found in (
        ("completion marker", noted.marker_digest, marker),
        ("receipt", noted.receipt_digest, documents.receipt_digest),
        ("receipt's run", noted.job_id, documents.receipt.observed.run_digest),
    ):
        if expected != found:
            raise EvidenceError(f"the {what} is another one", expected=expected, found=found)
