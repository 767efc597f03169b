"""DSSE 1.0.2 envelopes (docs/spec/attestations.md). Pure: bytes in, bytes out.

Ours because it is small and the details decide: the payload handed out is the very bytes that
the signature covers, key ids are never trusted, and a threshold counts distinct keys.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tallystick.attest.keys import PublicKey, SigningKey, signature_holds
from tallystick.canonical.json import JSONValue, jcs, parse_strict
from tallystick.errors import EvidenceError

#: Of the in-toto statements that all our envelopes hold.
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
MAX_ENVELOPE_BYTES: Final = 1024 * 1024
# Each signature is tried with each key: the bound keeps a hostile envelope cheap.
MAX_SIGNATURES: Final = 32
_URL_SAFE: Final = str.maketrans("-_", "+/")


@dataclass(frozen=True, slots=True)
class Verified:
    """What the accepted signatures cover.

    ``payload`` is to be parsed by the consumer exactly as it stands; ``signers`` are the accepted
    keys, each once, in the order in which the caller trusted them.
    """

    payload: bytes
    signers: tuple[PublicKey, ...]


@dataclass(frozen=True, slots=True)
class _Envelope:
    payload: bytes
    payload_type: str
    signatures: tuple[bytes, ...]
    named: frozenset[str]


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return the pre-authentication encoding: the bytes that are signed."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign(payload: bytes, payload_type: str, keys: Sequence[SigningKey]) -> bytes:
    """Return the envelope over ``payload`` with one signature per key: one JCS line, no newline.

    Raises ValueError without keys.
    """
    if not keys:
        raise ValueError("an envelope needs at least one signature")
    message = pae(payload_type, payload)
    signatures: list[JSONValue] = [
        {"keyid": key.public.key_id, "sig": _encode(key.sign(message))} for key in keys
    ]
    return jcs(
        {
            "payload": _encode(payload),
            "payloadType": payload_type,
            "signatures": signatures,
        }
    )


def verify(
    envelope: bytes,
    *,
    payload_type: str,
    keys: Sequence[PublicKey],
    threshold: int = 1,
) -> Verified:
    """Return the payload when at least ``threshold`` distinct keys of ``keys`` signed it.

    ``payload_type`` is compared exactly. The key ids in the envelope are not looked at: absent,
    null, empty or wrong, the verdict is the same. A signature that none of ``keys`` made is
    skipped, since a third party may have added it.

    Raises EvidenceError when the envelope is malformed, has another payload type, or has fewer
    accepted signers; ValueError for a threshold below one.
    """
    if threshold < 1:
        raise ValueError("a threshold is at least one")
    parsed = _parse(envelope)
    verified = _verified(parsed, payload_type, keys)
    if len(verified.signers) < threshold:
        raise EvidenceError(
            "the envelope is not signed by the trusted keys",
            expected=f"signatures by {threshold} of {len(set(keys))} trusted keys",
            found=f"{len(verified.signers)} accepted among {len(parsed.signatures)} signatures",
            hint="check that the right key was given and that the envelope was not edited",
        )
    return verified


def verified_by(envelope: bytes, *, payload_type: str, keys: Sequence[PublicKey]) -> Verified:
    """Return the payload, and which of ``keys`` signed it: perhaps none, and that is no error.

    For attestations by parties whom a verifier need not know. Raises as :func:`verify` otherwise.
    """
    return _verified(_parse(envelope), payload_type, keys)


def named_keys(envelope: bytes) -> frozenset[str]:
    """Return the key ids that the envelope's signatures name: claims, whoever wrote them there."""
    return _parse(envelope).named


def unsafe_payload(envelope: bytes) -> bytes:
    """Return the payload without any check of signatures: for display only, never for a verdict.

    Raises EvidenceError when the envelope is malformed.
    """
    return _parse(envelope).payload


def _verified(parsed: _Envelope, payload_type: str, keys: Sequence[PublicKey]) -> Verified:
    if parsed.payload_type != payload_type:
        raise EvidenceError(
            "the envelope has another payload type",
            expected=repr(payload_type),
            found=ascii(parsed.payload_type[:80]),
        )
    message = pae(payload_type, parsed.payload)
    signers = tuple(key for key in dict.fromkeys(keys) if _signed_by(key, parsed, message))
    return Verified(parsed.payload, signers)


def _signed_by(key: PublicKey, envelope: _Envelope, message: bytes) -> bool:
    return any(signature_holds(key.raw, signature, message) for signature in envelope.signatures)


def _parse(envelope: bytes) -> _Envelope:
    # A third party's schema: unknown fields are ignored, as in-toto and DSSE ask of consumers.
    document = parse_strict(envelope, max_bytes=MAX_ENVELOPE_BYTES)
    if not isinstance(document, dict):
        raise _malformed("a JSON object")
    signatures = document.get("signatures")
    if not isinstance(signatures, list) or not 1 <= len(signatures) <= MAX_SIGNATURES:
        raise _malformed(f"'signatures': a list of 1 to {MAX_SIGNATURES} entries")
    return _Envelope(
        payload=_decode(_text(document, "payload"), "payload"),
        payload_type=_text(document, "payloadType"),
        signatures=tuple(
            _decode(_text(entry, "sig"), f"signatures[{index}].sig")
            for index, entry in enumerate(signatures)
        ),
        named=frozenset(
            keyid
            for entry in signatures
            if isinstance(entry, dict) and isinstance(keyid := entry.get("keyid"), str)
        ),
    )


def _text(value: JSONValue, field: str) -> str:
    found = value.get(field) if isinstance(value, dict) else None
    if not isinstance(found, str):
        raise _malformed(f"a text '{field}'")
    return found


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _decode(text: str, where: str) -> bytes:
    """Decode standard or URL-safe base64 with padding, in the one spelling of its bytes."""
    url_safe = "-" in text or "_" in text
    try:
        data = base64.b64decode(text.translate(_URL_SAFE) if url_safe else text, validate=True)
    except (ValueError, binascii.Error):
        raise _malformed(f"'{where}': base64 with padding") from None
    encoded = base64.urlsafe_b64encode(data) if url_safe else base64.b64encode(data)
    if text != encoded.decode("ascii"):
        raise _malformed(f"'{where}': one base64 alphabet, in its canonical spelling")
    return data


def _malformed(expected: str) -> EvidenceError:
    return EvidenceError("not a DSSE envelope", expected=expected)
