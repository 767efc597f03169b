"""Step 12: who signed the claim, is it about these very bytes, and is that enough trust?"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from tallystick.attest import dsse
from tallystick.attest.egress import check_egress_statement
from tallystick.attest.keys import PublicKey
from tallystick.attest.source import check_source
from tallystick.attest.statements import ReceiptDigests, check_execution_statement
from tallystick.attest.trust import LINKS, TrustPolicy
from tallystick.canonical.hashing import format_digest, sha256
from tallystick.errors import EvidenceError
from tallystick.receipts.documents import SetDocuments
from tallystick.receipts.fields import require_equal
from tallystick.receipts.report import Link
from tallystick.receipts.steps_match import Parties, three_way

MISSING: Final = "missing"
UNTRUSTED: Final = "present, no trusted key"
VERIFIED: Final = "verified"


@dataclass(frozen=True, slots=True)
class Attested:
    """What step 12 established, and its words."""

    links: tuple[Link, ...]
    egress: str
    match: tuple[str, ...]
    detail: str


def check_attestations(
    documents: SetDocuments, trust: TrustPolicy, *, now: datetime, parties: Parties | None = None
) -> Attested:
    """12 attestations and trust: envelopes, subjects, chain digest, trust, three-way match.

    ``parties`` are what the verifier brings to compare the receipt with. Raises EvidenceError
    naming the envelope, the field of the statement, or the digest.
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
    sandboxed = documents.receipt.observed.egress_audit.statement_digest is not None
    egress = _egress(documents, envelopes[1] if sandboxed else None, signers)
    source = _source(documents, envelopes, trust, now)
    match = three_way(documents, parties or Parties())
    links = (
        source,
        Link(LINKS[1], VERIFIED, tuple(signer.key_id for signer in verified.signers)),
        Link(LINKS[2], MISSING),
    )
    present = sum(link.status == VERIFIED for link in links)
    missing = ", ".join(link.name for link in links if link.status == MISSING)
    detail = f"signed by {key.name}; {present} of {len(links)} links, missing: {missing}; "
    if source.status == UNTRUSTED:
        detail += f"source: {UNTRUSTED}; "
    if len(match) > 1:
        detail += f"{' = '.join(match)}; "
    return Attested(links=links, egress=egress, match=match, detail=detail + egress)


def _envelopes(documents: SetDocuments) -> tuple[bytes, ...]:
    """Return the lines: execution, with a sandbox its audit, with an attested source that, last.

    This version defines no other envelope, so a further one is no evidence.
    """
    data = documents.envelopes
    due = ["execution"]
    if documents.receipt.observed.egress_audit.statement_digest is not None:
        due.append("egress audit")
    if documents.execution.provenance_chain.source_attestation_digest is not None:
        due.append("source")
    if not data.endswith(b"\n") or data.count(b"\n") != len(due):
        raise EvidenceError(
            "the envelopes are not those of this version",
            expected=f"{len(due)} lines with a newline at the end: {', '.join(due)}",
            found=f"{data.count(bytes([10]))} newlines in {len(data)} bytes",
        )
    return tuple(data[:-1].split(b"\n"))


def _egress(documents: SetDocuments, envelope: bytes | None, signers: list[PublicKey]) -> str:
    """Check the audit of the sandbox, signed by the same worker, and say what it found."""
    if envelope is None:
        return "0 egress probes"
    verified = dsse.verify(envelope, payload_type=dsse.PAYLOAD_TYPE, keys=signers, threshold=1)
    report = check_egress_statement(verified.payload, documents.receipt)
    closed = sum(probe.result == "closed" for probe in report.probes)
    return f"{len(report.probes)} egress probes at level {report.level}, {closed} closed, passed"


def _source(
    documents: SetDocuments, envelopes: tuple[bytes, ...], trust: TrustPolicy, now: datetime
) -> Link:
    """Check the provider's envelope, if the execution names one, and say whose it is."""
    named = documents.execution.provenance_chain.source_attestation_digest
    if named is None:
        return Link(LINKS[0], MISSING)
    require_equal("source attestation", named, format_digest(sha256(envelopes[-1])))
    observed = documents.receipt.observed
    # Three links, three identities: a worker that vouches for its own input adds nothing.
    keys = [key for key in trust.source_keys() if key.key_id != observed.worker_id]
    signers = check_source(envelopes[-1], keys).signers
    if not signers:
        return Link(LINKS[0], UNTRUSTED)
    trust.accept_source(signers, observed.end_time, now=now)
    return Link(LINKS[0], VERIFIED, tuple(signer.key_id for signer in signers))
