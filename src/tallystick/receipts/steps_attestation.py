"""Step 12: who signed the claim, is it about these very bytes, and is that enough trust?"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tallystick.attest import dsse
from tallystick.attest.egress import check_egress_statement
from tallystick.attest.keys import PublicKey
from tallystick.attest.statements import ReceiptDigests, check_execution_statement
from tallystick.attest.trust import LINKS, TrustPolicy
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
    envelopes = _envelopes(documents)
    verified = dsse.verify(
        envelopes[0], payload_type=dsse.PAYLOAD_TYPE, keys=trust.execution_keys(), threshold=1
    )
    check_execution_statement(
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
    egress = _egress(documents, envelopes[1:], signers)
    links = (
        Link(LINKS[0], MISSING),
        Link(LINKS[1], VERIFIED, tuple(signer.key_id for signer in verified.signers)),
        Link(LINKS[2], MISSING),
    )
    present = sum(link.status == VERIFIED for link in links)
    missing = ", ".join(link.name for link in links if link.status == MISSING)
    detail = f"signed by {key.name}; {present} of {len(links)} links, missing: {missing}; {egress}"
    return Attested(links=links, egress=egress, detail=detail)


def _envelopes(documents: SetDocuments) -> tuple[bytes, ...]:
    """Return the lines: the execution envelope, and with a sandbox that of its audit.

    This version defines no other envelope, so a further one is no evidence.
    """
    data = documents.envelopes
    sandboxed = documents.receipt.observed.egress_audit.statement_digest is not None
    due = 2 if sandboxed else 1
    if not data.endswith(b"\n") or data.count(b"\n") != due:
        raise EvidenceError(
            "the envelopes are not those of this version",
            expected=f"{due} lines with a newline at the end: execution"
            + (", egress audit" if sandboxed else ""),
            found=f"{data.count(bytes([10]))} newlines in {len(data)} bytes",
        )
    return tuple(data[:-1].split(b"\n"))


def _egress(documents: SetDocuments, envelopes: tuple[bytes, ...], signers: list[PublicKey]) -> str:
    """Check the audit of the sandbox, signed by the same worker, and say what it found."""
    if not envelopes:
        return "0 egress probes"
    verified = dsse.verify(envelopes[0], payload_type=dsse.PAYLOAD_TYPE, keys=signers, threshold=1)
    report = check_egress_statement(verified.payload, documents.receipt)
    closed = sum(probe.result == "closed" for probe in report.probes)
    return f"{len(report.probes)} egress probes at level {report.level}, {closed} closed, passed"
