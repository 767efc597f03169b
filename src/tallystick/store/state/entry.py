"""What the state store keeps of one accepted receipt. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tallystick.contracts.compute_receipt import SIGNED_BYTES, JobClass, decode_strict
from tallystick.contracts.compute_receipt import receipt_id as id_of
from tallystick.errors import EvidenceError

_DIGESTS: Final = (
    "receipt_id",
    "network_id",
    "job_nullifier",
    "execution_nullifier",
    "request_commitment",
    "bundle_id",
)
_COUNTS: Final = ("timestamp_ms", "issued_epoch", "expires_epoch", "verification_epoch")
_LARGEST: Final = (1 << 63) - 1  # of an SQLite integer


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One verified receipt as the state store keeps it.

    The identifiers are raw digests of 32 bytes, ``signed_receipt`` the bytes of the ``.palw`` file,
    ``timestamp_ms`` in milliseconds and the epochs in hours since 1970. Nothing in it is private.
    Raises EvidenceError for a value that no valid receipt has.
    """

    receipt_id: bytes
    network_id: bytes
    job_nullifier: bytes
    execution_nullifier: bytes
    request_commitment: bytes
    bundle_id: bytes
    job_class: JobClass
    replica_slot: int
    signed_receipt: bytes = field(repr=False)
    timestamp_ms: int
    issued_epoch: int
    expires_epoch: int
    verification_epoch: int

    def __post_init__(self) -> None:
        for name in _DIGESTS:
            _require_length(name, getattr(self, name), 32)
        _require_length("signed_receipt", self.signed_receipt, SIGNED_BYTES)
        for name in _COUNTS:
            value = getattr(self, name)
            if not 0 <= value <= _LARGEST:
                raise _unfit(name, f"0..{_LARGEST}", str(value))
        if not 0 <= self.replica_slot < self.job_class.slots:
            raise _unfit(
                "replica_slot",
                f"0..{self.job_class.slots - 1} for {self.job_class.name.lower()}",
                str(self.replica_slot),
            )
        if not self.issued_epoch <= self.verification_epoch <= self.expires_epoch:
            raise _unfit(
                "verification_epoch",
                f"{self.issued_epoch}..{self.expires_epoch}",
                str(self.verification_epoch),
            )


def entry_of(signed_receipt: bytes, *, bundle_id: bytes, verification_epoch: int) -> StateEntry:
    """Return the entry for the bytes of a ``.palw`` file, which the caller has verified.

    ``bundle_id`` names the sealed bundle, ``verification_epoch`` is the one in its public part.
    Raises EvidenceError for bytes that are no receipt.
    """
    body = decode_strict(signed_receipt).body
    return StateEntry(
        receipt_id=id_of(body),
        network_id=body.network_id,
        job_nullifier=body.job_nullifier,
        execution_nullifier=body.execution_nullifier,
        request_commitment=body.request_commitment,
        bundle_id=bundle_id,
        job_class=body.job_class,
        replica_slot=body.replica_slot,
        signed_receipt=signed_receipt,
        timestamp_ms=body.timestamp,
        issued_epoch=body.issued_epoch,
        expires_epoch=body.expires_epoch,
        verification_epoch=verification_epoch,
    )


def _require_length(name: str, value: bytes, length: int) -> None:
    if len(value) != length:
        raise _unfit(name, f"{length} bytes", f"{len(value)} bytes")


def _unfit(name: str, expected: str, found: str) -> EvidenceError:
    return EvidenceError(f"the state store cannot hold this {name}", expected=expected, found=found)
