"""Digests, framed hashes, Merkle trees, signatures, and a reader of binary encodings.

Written from docs/spec/{hashing,binary-codec,keys}.md. Nothing in this folder imports the package
that it checks: only the standard library, BLAKE3 and the bindings of libsodium.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from nacl import bindings
from nacl.exceptions import BadSignatureError

ZERO = bytes(32)
ORDER = 2**252 + 27742317777372353535851937790883648493


class RefusedError(Exception):
    """The evidence does not hold; the text says where."""


def require(condition: bool, what: str) -> None:
    if not condition:
        raise RefusedError(what)


def same(what: str, expected: object, found: object) -> None:
    require(expected == found, what)


def framed(domain: str, version: int, parts: Sequence[bytes]) -> bytes:
    """hashing.md#framed-hashes: what is hashed."""
    out = len(domain).to_bytes(2, "big") + domain.encode("ascii")
    out += version.to_bytes(2, "big") + len(parts).to_bytes(4, "big")
    for part in parts:
        out += len(part).to_bytes(8, "big") + part
    return out


def h(domain: str, *parts: bytes, version: int = 1) -> bytes:
    return sha256(framed(domain, version, parts)).digest()


def text(digest: bytes) -> str:
    """hashing.md#digests."""
    return "sha256:" + digest.hex()


def raw(digest: str) -> bytes:
    require(digest.startswith("sha256:") and len(digest) == 71, "a digest's text")
    return bytes.fromhex(digest[7:])


def file_digest(data: bytes) -> str:
    return text(sha256(data).digest())


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """hashing.md#merkle-trees."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return sha256(b"\1" + merkle_root(leaves[:split]) + merkle_root(leaves[split:])).digest()


def u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


def ids(values: Sequence[int]) -> bytes:
    return b"".join(map(u32, values))


def require_key(key: bytes, whose: str) -> None:
    """keys.md#algorithm, the key rule; libsodium asks for the prime-order group too."""
    require(len(key) == 32 and bool(bindings.crypto_core_ed25519_is_valid_point(key)), whose)


def key_id(key: bytes) -> str:
    """keys.md#texts."""
    return "ed25519:" + h("tallystick.key-id", key).hex()


def signed(key: bytes, signature: bytes, message: bytes) -> bool:
    """keys.md#algorithm, the signature rule."""
    if len(signature) != 64 or int.from_bytes(signature[32:], "little") >= ORDER:
        return False
    try:
        return bindings.crypto_sign_open(signature + message, key) == message
    except BadSignatureError:
        return False


class Reader:
    """binary-codec.md. Bounds are those of the page that defines the field."""

    def __init__(self, data: bytes, what: str) -> None:
        self.data = data
        self.at = 0
        self.what = what

    def fixed(self, length: int) -> bytes:
        require(self.at + length <= len(self.data), f"{self.what}: ends early")
        self.at += length
        return self.data[self.at - length : self.at]

    def number(self, width: int) -> int:
        return int.from_bytes(self.fixed(width), "little")

    def u8(self, below: int = 256) -> int:
        value = self.number(1)
        require(value < below, f"{self.what}: a kind that is not listed")
        return value

    def u16(self) -> int:
        return self.number(2)

    def u32(self) -> int:
        return self.number(4)

    def u64(self) -> int:
        return self.number(8)

    def digest(self) -> bytes:
        return self.fixed(32)

    def sized(self, limit: int) -> bytes:
        length = self.u32()
        require(length <= limit, f"{self.what}: a field beyond its bound")
        return self.fixed(length)

    def text(self, limit: int) -> str:
        try:
            return self.sized(limit).decode("utf-8")
        except UnicodeDecodeError:
            raise RefusedError(f"{self.what}: no UTF-8") from None

    def count(self, limit: int) -> int:
        count = self.u32()
        require(count <= limit, f"{self.what}: a list beyond its bound")
        return count

    def end(self) -> None:
        require(self.at == len(self.data), f"{self.what}: bytes after the end")
