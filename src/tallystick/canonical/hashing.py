"""Framed domain hash and digest texts (docs/spec/hashing.md).

``H(domain, version, parts)`` is the only way the project combines values into one
hash: every part carries its length, so no two part lists share an encoding.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Sequence
from functools import lru_cache

from tallystick.errors import EvidenceError

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


def frame(domain: str, version: int, parts: Sequence[bytes]) -> bytes:
    """Return the framing of ``parts``: what :func:`domain_hash` hashes.

    u16be len(domain), domain, u16be version, u32be count, then u64be length and bytes of each part.
    """
    out = [_head(domain, version, len(parts))]
    for part in parts:
        out += (len(part).to_bytes(8, "big"), part)
    return b"".join(out)


@lru_cache(maxsize=256)  # more than there are domains; a verification hashes some 50 times
def _head(domain: str, version: int, parts: int) -> bytes:
    name = domain.encode("ascii")
    return b"%b%b%b%b" % (
        len(name).to_bytes(2, "big"),
        name,
        version.to_bytes(2, "big"),
        parts.to_bytes(4, "big"),
    )


def domain_hash(domain: str, version: int, parts: Sequence[bytes]) -> bytes:
    """Return the 32-byte ``H(domain, version, parts)``."""
    return hashlib.sha256(frame(domain, version, parts)).digest()


def domain_digest(domain: str, version: int, parts: Sequence[bytes]) -> str:
    """Return ``H(domain, version, parts)`` as ``sha256:<64 hex>``."""
    return format_digest(domain_hash(domain, version, parts))


def sha256(data: bytes) -> bytes:
    """Return the 32-byte SHA-256 of ``data``."""
    return hashlib.sha256(data).digest()


def format_digest(raw: bytes) -> str:
    """Return ``sha256:<64 hex>`` for a 32-byte digest."""
    if len(raw) != 32:
        raise ValueError(f"a digest has 32 bytes, not {len(raw)}")
    return "sha256:" + raw.hex()


def parse_digest(text: str) -> bytes:
    """Return the 32 bytes of a ``sha256:<64 lower-case hex>`` text.

    Raises EvidenceError for any other spelling.
    """
    match = _DIGEST.fullmatch(text)
    if match is None:
        raise EvidenceError(
            "not a digest", expected="sha256:<64 lower-case hex digits>", found=repr(text[:80])
        )
    return bytes.fromhex(match.group(1))


def u32le(value: int) -> bytes:
    """Return ``value`` as 4 little-endian bytes."""
    return value.to_bytes(4, "little")


def u64le(value: int) -> bytes:
    """Return ``value`` as 8 little-endian bytes."""
    return value.to_bytes(8, "little")


def ids_bytes(ids: Sequence[int]) -> bytes:
    """Return token ids as concatenated u32 little-endian."""
    return struct.pack(f"<{len(ids)}I", *ids)
