"""A second implementation of sealed bundles, straight from docs/spec/bundle.md and sharing no code.

XChaCha20-Poly1305 is written out from draft-irtf-cfrg-xchacha-03 and RFC 8439: clarity before
speed, and no care for timing, because nothing here is secret.
"""

from __future__ import annotations

import struct
from hashlib import sha256

from tests.golden.reference import framed

_CONSTANTS = struct.unpack("<4I", b"expand 32-byte k")
_ROUND = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONAL = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
_PRIME = 2**130 - 5
_CLAMP = 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
HEADER_BYTES = 8 + 2 + 32 + 32 + 32 + 24


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & 0xFFFFFFFF


def _rounds(state: list[int]) -> list[int]:
    x = list(state)
    for _ in range(10):
        for a, b, c, d in _ROUND + _DIAGONAL:
            for bits_d, bits_b in ((16, 12), (8, 7)):
                x[a] = (x[a] + x[b]) & 0xFFFFFFFF
                x[d] = _rotated(x[d] ^ x[a], bits_d)
                x[c] = (x[c] + x[d]) & 0xFFFFFFFF
                x[b] = _rotated(x[b] ^ x[c], bits_b)
    return x


def _hchacha20(key: bytes, nonce: bytes) -> bytes:
    x = _rounds([*_CONSTANTS, *struct.unpack("<8I", key), *struct.unpack("<4I", nonce)])
    return struct.pack("<8I", *x[:4], *x[12:])


def _block(key: bytes, counter: int, nonce: bytes) -> bytes:
    state = [*_CONSTANTS, *struct.unpack("<8I", key), counter, *struct.unpack("<3I", nonce)]
    mixed = _rounds(state)
    return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(mixed, state, strict=True)))


def _crypted(key: bytes, nonce: bytes, data: bytes) -> bytes:
    stream = b"".join(_block(key, 1 + i, nonce) for i in range((len(data) + 63) // 64))
    return bytes(a ^ b for a, b in zip(data, stream, strict=False))


def _tag(key: bytes, message: bytes) -> bytes:
    r, s = int.from_bytes(key[:16], "little") & _CLAMP, int.from_bytes(key[16:], "little")
    total = 0
    for start in range(0, len(message), 16):
        total = (total + int.from_bytes(message[start : start + 16] + b"\x01", "little")) * r
        total %= _PRIME
    return ((total + s) % 2**128).to_bytes(16, "little")


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 16)


def encrypt(key: bytes, nonce: bytes, bound: bytes, message: bytes) -> bytes:
    """XChaCha20-Poly1305: the ciphertext and the 16-byte tag."""
    subkey, inner = _hchacha20(key, nonce[:16]), bytes(4) + nonce[16:]
    ciphertext = _crypted(subkey, inner, message)
    lengths = struct.pack("<2Q", len(bound), len(ciphertext))
    one_time = _block(subkey, 0, inner)[:32]
    return ciphertext + _tag(one_time, _padded(bound) + _padded(ciphertext) + lengths)


def decrypt(key: bytes, nonce: bytes, bound: bytes, sealed: bytes) -> bytes | None:
    """The message, or None when the tag does not hold."""
    subkey, inner = _hchacha20(key, nonce[:16]), bytes(4) + nonce[16:]
    message = _crypted(subkey, inner, sealed[:-16])
    return message if encrypt(key, nonce, bound, message) == sealed else None


def hashed(domain: str, *parts: bytes) -> bytes:
    return sha256(framed(domain, 1, parts)).digest()


def bundle_key(audit_key: bytes, salt: bytes, receipt_binding: bytes) -> bytes:
    return hashed("palw.bundle-key", audit_key, salt, receipt_binding)


def key_commitment(key: bytes, salt: bytes) -> bytes:
    return hashed("palw.bundle-key-commitment", key, salt)


def associated_data(
    public: bytes, receipt_binding: bytes, nonce: bytes, salt: bytes, commitment: bytes
) -> bytes:
    digest = hashed("palw.bundle-public", public)
    parts = [receipt_binding, digest, nonce, public, b"\x01\x00", salt, commitment]
    return framed("palw.bundle-associated-data", 1, parts)


def sealed(
    public: bytes,
    private: bytes,
    receipt_binding: bytes,
    audit_key: bytes,
    salt: bytes,
    nonce: bytes,
) -> bytes:
    """The whole envelope."""
    key = bundle_key(audit_key, salt, receipt_binding)
    commitment = key_commitment(key, salt)
    bound = associated_data(public, receipt_binding, nonce, salt, commitment)
    ciphertext = encrypt(key, nonce, bound, private)
    header = b"PALWBNDL" + b"\x01\x00" + salt + receipt_binding + commitment + nonce
    sized = (len(part).to_bytes(4, "little") + part for part in (public, ciphertext))
    return header + b"".join(sized)


def opened(envelope: bytes, audit_key: bytes) -> tuple[bytes, bytes] | None:
    """The public and the private part, or None when the envelope does not open."""
    salt, receipt_binding = envelope[10:42], envelope[42:74]
    commitment, nonce = envelope[74:106], envelope[106:HEADER_BYTES]
    size = int.from_bytes(envelope[HEADER_BYTES : HEADER_BYTES + 4], "little")
    public = envelope[HEADER_BYTES + 4 : HEADER_BYTES + 4 + size]
    rest = envelope[HEADER_BYTES + 4 + size :]
    ciphertext = rest[4:]
    key = bundle_key(audit_key, salt, receipt_binding)
    whole = len(ciphertext) == int.from_bytes(rest[:4], "little")
    if not whole or key_commitment(key, salt) != commitment:
        return None
    bound = associated_data(public, receipt_binding, nonce, salt, commitment)
    private = decrypt(key, nonce, bound, ciphertext)
    return None if private is None else (public, private)
