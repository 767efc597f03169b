"""``dac.zero-claw-exec/v1``, the file ``<id>.exec.json`` (docs/spec/documents.md#execenvelope)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from tallystick.canonical.hashing import format_digest, sha256
from tallystick.contracts.codec import decode_bytes, encode_bytes
from tallystick.contracts.request import PRODUCER, Producer
from tallystick.contracts.sandbox_profile import ProfileName
from tallystick.contracts.types import Digest, OneOf, Pattern, ShortText

EXEC_SCHEMA: Final = "dac.zero-claw-exec/v1"
MAX_EXEC_BYTES: Final = 64 * 1024
#: What the schema file of ``geoai.receipt/v1alpha1`` hashes to: a receipt is held to this contract.
#: A test holds it to the schema; here it is a constant, because a verifier makes no schemas.
RECEIPT_SCHEMA_DIGEST: Final = (
    "sha256:7a9558804591a9f47e014fb602984d5f9eb0e3003bfe3db2b3201662a2c8dd07"
)

Version = Annotated[str, Pattern(r"[0-9A-Za-z][0-9A-Za-z.+-]*", 64)]


@dataclass(frozen=True, slots=True)
class ExecSandbox:
    """The sandbox profile that the run was declared with, by name and digest."""

    name: ProfileName
    digest: Digest


@dataclass(frozen=True, slots=True)
class ProvenanceChain:
    """What the execution goes back to.

    ``run_digest`` names the declaration of the run, ``manifest_digest`` is the sha256 of the
    bundle's manifest.json, ``source_attestation_digest`` that of the provider's envelope as it is
    in the bundle. Null: there was no bundle, or nobody attested the source.
    """

    run_digest: Digest
    manifest_digest: Digest | None
    source_attestation_digest: Digest | None


@dataclass(frozen=True, slots=True)
class ReceiptValidator:
    """What validates the receipt: a program, its version, the sha256 of the schema that it uses."""

    name: ShortText
    version: Version
    schema_digest: Digest


@dataclass(frozen=True, slots=True)
class ExecEnvelope:
    """The envelope of one execution, immutable: a receipt names it by the sha256 of its bytes."""

    schema: Annotated[str, OneOf((EXEC_SCHEMA,))]
    producer: Producer
    model_digest: Digest
    sandbox_profile: ExecSandbox
    provenance_chain: ProvenanceChain
    receipt_validator: ReceiptValidator


def exec_envelope(
    model_digest: str,
    sandbox_profile: ExecSandbox,
    provenance_chain: ProvenanceChain,
    receipt_validator: ReceiptValidator,
) -> ExecEnvelope:
    """Return the envelope of an execution."""
    return ExecEnvelope(
        EXEC_SCHEMA, PRODUCER, model_digest, sandbox_profile, provenance_chain, receipt_validator
    )


def exec_envelope_digest(envelope: ExecEnvelope) -> str:
    """Return the digest by which a receipt names ``envelope``: the sha256 of the file's bytes."""
    return format_digest(sha256(encode_bytes(envelope)))


def read_exec_envelope(data: bytes) -> ExecEnvelope:
    """Return the envelope whose canonical bytes are ``data``. Raises EvidenceError."""
    return decode_bytes(ExecEnvelope, data, max_bytes=MAX_EXEC_BYTES, where="execution envelope")
