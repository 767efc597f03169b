"""Step 12: who signed the claim, is it about these very bytes, and is that enough trust?"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tallystick.attest import dsse
from tallystick.attest.statements import ReceiptDigests, check_execution_statement
from tallystick.attest.trust import LINKS, TrustPolicy
from tallystick.contracts.receipt import EgressAudit
from tallystick.errors import EvidenceError
from tallystick.receipts.documents import SetDocuments
from tallystick.receipts.report import Link

MISSING: Final = "missing"
VERIFIED: Final = "verified"


@dataclass(frozen=True, slots=True)
class Attested:
    """What step 12 established, and its words."""

    links: tuple[Link, ...]
    egress: str
    detail: str


def check_attestations(documents: SetDocuments, trust: TrustPolicy, *, now: datetime) -> Attested:
    """12 attestations and trust: envelope, subjects, chain digest, then the trust policy.

    Raises EvidenceError naming the envelope or the field of the statement.
    """
    envelope = _only_envelope(documents.envelopes)
    verified = dsse.verify(
        envelope, payload_type=dsse.PAYLOAD_TYPE, keys=trust.execution_keys(), threshold=1
    )
    claim = check_execution_statement(
        verified.payload,
        documents.receipt,
        documents.receipt_bytes,
        ReceiptDigests(documents.core_digest, documents.receipt_digest),
    )
    worker = documents.receipt.observed.worker_id
    signers = [signer for signer in verified.signers if signer.key_id == worker]
    if not signers:
        # Otherwise one key's window would cover what another key signed (the compute receipt).
        raise EvidenceError(
            "the execution link is not signed by the worker that the receipt names",
            expected=worker,
            found=", ".join(signer.key_id for signer in verified.signers),
        )
    key = trust.accept_execution(signers, documents.receipt, now=now)
    links = (
        Link(LINKS[0], MISSING),
        Link(LINKS[1], VERIFIED, tuple(signer.key_id for signer in verified.signers)),
        Link(LINKS[2], MISSING),
    )
    egress = _egress_words(claim.egress_audit)
    present = sum(link.status == VERIFIED for link in links)
    missing = ", ".join(link.name for link in links if link.status == MISSING)
    detail = f"signed by {key.name}; {present} of {len(links)} links, missing: {missing}; {egress}"
    return Attested(links=links, egress=egress, detail=detail)


def _only_envelope(data: bytes) -> bytes:
    """Return the one line: this version defines no other envelope, so a second is no evidence."""
    if not data.endswith(b"\n") or data.count(b"\n") != 1:
        raise EvidenceError(
            "the envelopes are not those of this version",
            expected="one line, the execution envelope, with a newline at its end",
            found=f"{data.count(bytes([10]))} newlines in {len(data)} bytes",
        )
    return data[:-1]


def _egress_words(audit: EgressAudit) -> str:
    return "0 egress probes" if audit.result == "not_run" else f"egress probes {audit.result}"
