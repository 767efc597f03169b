"""The envelope of a verification bundle: sealed, parsed, opened (docs/spec/bundle.md).

Pure: keys, salt and nonce come in, bytes go out; the caller draws randomness from the system.
The cipher is XChaCha20-Poly1305 of libsodium through PyNaCl's binding, which takes the message and
the ciphertext as they are and copies its result once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from nacl.bindings import (
    crypto_aead_xchacha20poly1305_ietf_decrypt,
    crypto_aead_xchacha20poly1305_ietf_encrypt,
)
from nacl.exceptions import CryptoError

from tallystick.attest.bundlekeys import (
    AuditKey,
    BundleKey,
    derive_bundle_key,
    key_commitment,
)
from tallystick.canonical.codec import DIGEST_BYTES, BinaryReader, decode_strict
from tallystick.canonical.hashing import domain_hash, frame, u32le
from tallystick.contracts.bundle import MAX_BUNDLE
from tallystick.errors import EvidenceError, InputError

MAGIC: Final = b"PALWBNDL"
ENVELOPE_VERSION: Final = 1
SALT_BYTES: Final = 32
NONCE_BYTES: Final = 24
TAG_BYTES: Final = 16
_VERSION: Final = ENVELOPE_VERSION.to_bytes(2, "little")


@dataclass(frozen=True, slots=True)
class Envelope:
    """A parsed envelope. ``public`` can be read without a key, and is proven only by opening."""

    bundle_id: bytes
    salt: bytes
    receipt_binding: bytes
    key_commitment: bytes
    nonce: bytes
    public: bytes = field(repr=False)
    ciphertext: bytes = field(repr=False)


def seal(
    public: bytes,
    private: bytes,
    *,
    receipt_binding: bytes,
    key: AuditKey,
    salt: bytes,
    nonce: bytes,
) -> bytes:
    """Return the envelope of one bundle: ``public`` in clear, ``private`` encrypted.

    ``salt`` (32 bytes) and ``nonce`` (24 bytes) are fresh from the system's random source for every
    envelope. Raises InputError for other lengths, and when the whole is beyond MAX_BUNDLE.
    """
    _require_length("a receipt binding", receipt_binding, DIGEST_BYTES)
    _require_length("a bundle's salt", salt, SALT_BYTES)
    _require_length("a bundle's nonce", nonce, NONCE_BYTES)
    bundle_key = derive_bundle_key(key, salt=salt, receipt_binding=receipt_binding)
    commitment = key_commitment(bundle_key, salt)
    header = b"".join((MAGIC, _VERSION, salt, receipt_binding, commitment, nonce))
    total = len(header) + 8 + len(public) + len(private) + TAG_BYTES
    if total > MAX_BUNDLE:
        raise InputError(
            "the bundle is too large to be sealed",
            expected=f"at most {MAX_BUNDLE} bytes",
            found=f"{total} bytes",
            hint="generate fewer tokens, or ask for less evidence",
        )
    bound = _bound(public, receipt_binding, nonce, salt, commitment)
    sealed = crypto_aead_xchacha20poly1305_ietf_encrypt(private, bound, nonce, bundle_key.raw)
    return b"".join((header, u32le(len(public)), public, u32le(len(sealed)), sealed))


def parse(data: bytes) -> Envelope:
    """Return the envelope in ``data``; nothing in it is authenticated yet.

    Compare ``receipt_binding`` with the receipt, and open it. Raises EvidenceError for anything
    that is not exactly one envelope of at most MAX_BUNDLE bytes.
    """
    return decode_strict(
        data, lambda reader: _read(reader, data), max_bytes=MAX_BUNDLE, where="sealed bundle"
    )


def open_with(envelope: Envelope, key: AuditKey | BundleKey) -> bytes:
    """Return the private part; then the public part and the header are authentic as well.

    Raises EvidenceError: "another key" when the key commitment is not this key's, "damaged" when it
    is and the cipher's tag does not hold.
    """
    bundle_key = key if isinstance(key, BundleKey) else bundle_key_of(envelope, key)
    if key_commitment(bundle_key, envelope.salt) != envelope.key_commitment:
        raise EvidenceError(
            "the bundle was sealed with another key",
            expected="the key that the bundle's header commits to",
            found="a key with another commitment",
            hint="give the key that sealed it (--audit-key-file or --bundle-key-file; without them "
            "your own audit key is tried); if that is this one, the salt, the receipt binding or "
            "the key commitment in the header was changed",
        )
    bound = _bound(
        envelope.public,
        envelope.receipt_binding,
        envelope.nonce,
        envelope.salt,
        envelope.key_commitment,
    )
    try:
        return crypto_aead_xchacha20poly1305_ietf_decrypt(
            envelope.ciphertext, bound, envelope.nonce, bundle_key.raw
        )
    except CryptoError:
        raise EvidenceError(
            "the sealed bundle is damaged",
            expected="the nonce, public part and ciphertext that were sealed",
            found="bytes whose authentication tag does not hold under the right key",
            hint="get the bundle again from whoever made it",
        ) from None


def bundle_key_of(envelope: Envelope, key: AuditKey) -> BundleKey:
    """Return the key that opens ``envelope`` alone, to hand to one auditor."""
    return derive_bundle_key(key, salt=envelope.salt, receipt_binding=envelope.receipt_binding)


def public_digest(public: bytes) -> bytes:
    """Return the 32-byte digest of a bundle's public part."""
    return domain_hash("palw.bundle-public", 1, [public])


def bundle_id(data: bytes) -> bytes:
    """Return the 32-byte name of an envelope, over all its bytes."""
    return domain_hash("palw.bundle", 1, [data])


def _bound(
    public: bytes, receipt_binding: bytes, nonce: bytes, salt: bytes, commitment: bytes
) -> bytes:
    """Return the associated data: every byte of the envelope that is not ciphertext."""
    return frame(
        "palw.bundle-associated-data",
        1,
        [receipt_binding, public_digest(public), nonce, public, _VERSION, salt, commitment],
    )


def _read(reader: BinaryReader, data: bytes) -> Envelope:
    if not data.startswith(MAGIC):
        raise EvidenceError(
            "this is not a sealed bundle",
            expected=f"the first {len(MAGIC)} bytes {MAGIC.decode('ascii')}",
            found=f"{len(data)} bytes that begin otherwise",
            hint="give a file that ends in .palw.bundle",
        )
    reader.fixed(len(MAGIC))
    version = reader.u16()
    if version != ENVELOPE_VERSION:
        raise reader.refusal("unknown version", expected=str(ENVELOPE_VERSION), found=str(version))
    salt, binding, commitment = reader.digest(), reader.digest(), reader.digest()
    nonce = reader.fixed(NONCE_BYTES)
    public = reader.sized(limit=MAX_BUNDLE)
    ciphertext = reader.sized(limit=MAX_BUNDLE)
    if len(ciphertext) < TAG_BYTES:
        raise reader.refusal(
            "the ciphertext is shorter than its tag",
            expected=f"at least {TAG_BYTES} bytes",
            found=f"{len(ciphertext)} bytes",
        )
    return Envelope(bundle_id(data), salt, binding, commitment, nonce, public, ciphertext)


def _require_length(what: str, value: bytes, length: int) -> None:
    if len(value) != length:
        raise InputError(
            f"{what} has another length",
            expected=f"{length} bytes",
            found=f"{len(value)} bytes",
        )
