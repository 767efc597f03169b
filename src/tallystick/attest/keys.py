"""Strict Ed25519 keys (docs/spec/keys.md). Pure: no files, no clock.

Strict means: a public key is a canonical point of the prime-order group, checked whenever a key
is made; a signature has a canonical S and an R that is canonical and not of small order. On the
914 CCTV vectors the signature rule is that of ed25519-dalek's ``verify_strict``, and the key rule
refuses mixed-order keys in addition, so that no key has two spellings or a hidden torsion part.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NoReturn

from nacl.bindings import (
    crypto_core_ed25519_is_valid_point,
    crypto_sign,
    crypto_sign_open,
    crypto_sign_seed_keypair,
)
from nacl.exceptions import BadSignatureError

from tallystick.canonical.hashing import domain_hash
from tallystick.errors import EvidenceError, InputError

ALGORITHM: Final = "ed25519"
SIGNATURE_BYTES: Final = 64
SEED_BYTES: Final = 32
PUBLIC_KEY_BYTES: Final = 32

# SubjectPublicKeyInfo of RFC 8410 has one encoding for Ed25519: this prefix, then the 32 bytes.
_SPKI_PREFIX: Final = bytes.fromhex("302a300506032b6570032100")
_MAX_PEM_BYTES: Final = 4096
_PEM: Final = re.compile(
    rb"-----BEGIN PUBLIC KEY-----\r?\n([A-Za-z0-9+/=]{60})\r?\n-----END PUBLIC KEY-----\s*"
)


def signature_holds(raw_key: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether ``signature`` over ``message`` holds under the strict signature rule.

    ``raw_key`` has 32 bytes, ``signature`` any length (only 64 can hold). The key rule is not
    applied here; :class:`PublicKey` applies it when a key is made.
    """
    if len(signature) != SIGNATURE_BYTES:
        return False
    try:
        crypto_sign_open(signature + message, raw_key)
    except BadSignatureError:
        return False
    return True


@lru_cache(maxsize=1024)
def _is_valid_point(raw: bytes) -> bool:
    """Return whether ``raw`` keeps the key rule: a verification meets the same few keys often."""
    valid: bool = crypto_core_ed25519_is_valid_point(raw)
    return valid


@dataclass(frozen=True, slots=True)
class PublicKey:
    """An Ed25519 public key that passed the key rule.

    ``raw`` is the 32-byte encoding. Raises InputError when it is not a canonical encoding of a
    point of the prime-order group other than the identity.
    """

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != PUBLIC_KEY_BYTES:
            raise InputError(
                "not an Ed25519 public key",
                expected=f"{PUBLIC_KEY_BYTES} bytes",
                found=f"{len(self.raw)} bytes",
            )
        if not _is_valid_point(self.raw):
            raise InputError(
                "weak or invalid Ed25519 public key",
                expected="the canonical encoding of a point of the prime-order group",
                found=self.raw.hex(),
                hint="ask the key's owner for a key made by an ordinary key generator",
            )

    @classmethod
    def from_raw(cls, raw: bytes) -> PublicKey:
        """Return the key with the 32-byte encoding ``raw``. Raises InputError (the key rule)."""
        return cls(bytes(raw))

    @classmethod
    def from_hex(cls, text: str) -> PublicKey:
        """Return the key written as 64 lower-case hex digits. Raises InputError."""
        if re.fullmatch(r"[0-9a-f]{64}", text) is None:
            raise InputError("not an Ed25519 public key", expected="64 lower-case hex digits")
        return cls(bytes.fromhex(text))

    @classmethod
    def from_pem(cls, data: bytes) -> PublicKey:
        """Return the key of a PEM file: one ``PUBLIC KEY`` block (RFC 8410). Raises InputError."""
        if b"PRIVATE KEY" in data[:_MAX_PEM_BYTES]:
            raise InputError(
                "this is a private key, a public key was expected",
                hint="give the file that ends in .pub.pem; never hand out the private one",
            )
        match = _PEM.fullmatch(data.lstrip()) if len(data) <= _MAX_PEM_BYTES else None
        der = _canonical_base64(match.group(1)) if match is not None else b""
        if not der.startswith(_SPKI_PREFIX):
            raise InputError(
                "not an Ed25519 public key file",
                expected="one PEM block 'PUBLIC KEY' that holds an Ed25519 key",
                hint="`tallystick keys show` names the public key file of a key",
            )
        return cls(der[len(_SPKI_PREFIX) :])

    @property
    def key_id(self) -> str:
        """The name of the key: ``ed25519:`` and 64 hex digits of H("tallystick.key-id",1,[raw])."""
        return f"{ALGORITHM}:{domain_hash('tallystick.key-id', 1, [self.raw]).hex()}"

    def pem(self) -> str:
        """Return the key as a PEM text that ``openssl pkey -pubin`` reads."""
        body = base64.b64encode(_SPKI_PREFIX + self.raw).decode("ascii")
        return f"-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n"

    def verify(self, signature: bytes, message: bytes) -> None:
        """Check a signature over ``message``. Raises EvidenceError when it does not hold."""
        if not signature_holds(self.raw, signature, message):
            raise EvidenceError(
                "the signature does not hold",
                expected=f"an Ed25519 signature by {self.key_id}",
                found=f"{len(signature)} bytes that are not one",
            )


class SigningKey:
    """An Ed25519 private key. It shows no secret, and can be neither pickled nor copied."""

    __slots__ = ("_public", "_secret")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise InputError(
                "not an Ed25519 seed",
                expected=f"{SEED_BYTES} bytes",
                found=f"{len(seed)} bytes",
            )
        raw, self._secret = crypto_sign_seed_keypair(seed)
        self._public = PublicKey(raw)

    @classmethod
    def generate(cls) -> SigningKey:
        """Return a new key from the system's random source."""
        return cls(os.urandom(SEED_BYTES))

    @classmethod
    def from_seed(cls, seed: bytes) -> SigningKey:
        """Return the key of a 32-byte RFC 8032 seed. Raises InputError for another length."""
        return cls(seed)

    @property
    def public(self) -> PublicKey:
        """The public half."""
        return self._public

    def sign(self, message: bytes) -> bytes:
        """Return the deterministic 64-byte signature over ``message``."""
        return crypto_sign(message, self._secret)[:SIGNATURE_BYTES]

    def unsafe_seed(self) -> bytes:
        """Return the 32-byte secret; only the key file writer has a use for it."""
        return self._secret[:SEED_BYTES]

    def __repr__(self) -> str:
        return f"<SigningKey of {self._public.key_id}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a signing key cannot be pickled or copied")


def _canonical_base64(text: bytes) -> bytes:
    """Decode ``text``; b"" when it is not the one spelling of its bytes."""
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""
    return data if base64.b64encode(data) == text else b""
