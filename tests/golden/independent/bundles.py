"""Sealed bundles: envelope, public part, private part. From docs/spec/bundle.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nacl import bindings
from nacl.exceptions import CryptoError

from tests.golden.independent.basics import Reader, RefusedError, framed, h, require, same
from tests.golden.independent.receipts import read_papers

Fields = dict[str, Any]
LIMIT = 64 << 20
SALTS = ("owner_salt", "request_nonce", "prompt_nonce", "output_nonce")


def read_envelope(data: bytes) -> Fields:
    """Envelope, parsed only."""
    require(len(data) <= LIMIT, "bundle: too large")
    reader = Reader(data, "bundle")
    require(reader.fixed(8) == b"PALWBNDL" and reader.u16() == 1, "bundle: magic and version")
    names = ("salt", "receipt_binding", "key_commitment")
    found: Fields = {name: reader.digest() for name in names}
    found["nonce"] = reader.fixed(24)
    found["public"], found["ciphertext"] = reader.sized(LIMIT), reader.sized(LIMIT)
    reader.end()
    require(len(found["ciphertext"]) >= 16, "bundle: its ciphertext")
    return {**found, "bundle_id": h("palw.bundle", data)}


def associated_data(envelope: Fields) -> bytes:
    public = envelope["public"]
    parts = [envelope["receipt_binding"], h("palw.bundle-public", public), envelope["nonce"]]
    parts += [public, b"\1\0", envelope["salt"], envelope["key_commitment"]]
    return framed("palw.bundle-associated-data", 1, parts)


def bundle_key(audit_key: bytes, envelope: Fields) -> bytes:
    return h("palw.bundle-key", audit_key, envelope["salt"], envelope["receipt_binding"])


def key_commitment(key: bytes, salt: bytes) -> bytes:
    return h("palw.bundle-key-commitment", key, salt)


def opened(envelope: Fields, key: bytes) -> bytes:
    """Opening, with the bundle's own key."""
    committed = key_commitment(key, envelope["salt"])
    same("bundle: sealed with another key", committed, envelope["key_commitment"])
    try:
        return bindings.crypto_aead_xchacha20poly1305_ietf_decrypt(
            envelope["ciphertext"], associated_data(envelope), envelope["nonce"], key
        )
    except CryptoError:
        raise RefusedError("bundle: damaged") from None


def read_public(data: bytes) -> Fields:
    """Public part."""
    reader = Reader(data, "public part")
    same("public part: version", 1, reader.u16())
    found: Fields = {"receipt_binding": reader.digest(), "receipt_id": reader.digest()}
    found["verification_epoch"] = reader.u64()
    found |= {"scheduler_key": reader.digest(), "prompt_commitment": reader.digest()}
    found |= {"manifest": reader.sized(1 << 20), "evidence": reader.sized(32 << 20)}
    reader.end()
    return found


def read_private(data: bytes) -> Fields:
    """Private part."""
    reader = Reader(data, "private part")
    same("private part: version", 1, reader.u16())
    found: Fields = {
        "papers": read_papers(reader.fixed(221), reader.fixed(245), reader.fixed(114)),
        "owner_key": reader.digest(),
    }
    found |= {name: reader.digest() for name in SALTS}
    found["opening"] = reader.sized(LIMIT)
    for name in ("routes", "trace"):
        found[name] = reader.sized(LIMIT) if reader.u8(2) else None
    reader.end()
    return found


def envelope_of(files: Mapping[str, bytes]) -> Fields:
    """Return the envelope of a set's bundle."""
    (data,) = (data for name, data in files.items() if name.endswith(".palw.bundle"))
    return read_envelope(data)
