"""A second implementation of the specification, straight from its text and sharing no code.

Only hashlib and blake3 are used; clarity before speed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from blake3 import blake3


def framed(domain: str, version: int, parts: Sequence[bytes]) -> bytes:
    """docs/spec/hashing.md: the framing."""
    out = bytearray()
    out += len(domain).to_bytes(2, "big")
    out += domain.encode()
    out += version.to_bytes(2, "big")
    out += len(parts).to_bytes(4, "big")
    for part in parts:
        out += len(part).to_bytes(8, "big") + part
    return bytes(out)


def named(domain: str, *parts: bytes) -> str:
    """``H(domain, 1, parts)`` as text."""
    return "sha256:" + sha256(framed(domain, 1, parts)).hexdigest()


def raw(digest: str) -> bytes:
    """The 32 bytes of a digest text."""
    return bytes.fromhex(digest.removeprefix("sha256:"))


def plain_jcs(value: Any) -> bytes:
    """Canonical JSON of values without fractions and with ASCII keys, which ours all are."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def tree_root(leaves: Sequence[bytes]) -> bytes:
    """RFC 6962, section 2.1, as it is defined: split at the largest power of two below n."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return sha256(b"\x01" + tree_root(leaves[:split]) + tree_root(leaves[split:])).digest()


def salt(blind: bytes, layer: int, position: int, credential: bytes = b"") -> bytes:
    """docs/spec/state-tree.md: the salt of one row."""
    data = layer.to_bytes(4, "little") + position.to_bytes(8, "little") + credential
    return blake3(data, key=blind).digest()


def state_leaf(
    blind: bytes, layer: int, position: int, row: bytes, credential: bytes = b""
) -> bytes:
    """docs/spec/state-tree.md: the leaf of one row."""
    parts = [
        salt(blind, layer, position, credential),
        layer.to_bytes(4, "little"),
        position.to_bytes(8, "little"),
        blake3(row).digest(),
    ]
    return sha256(b"\x00" + framed("tallystick.state-leaf", 1, parts)).digest()


def row_order(prompt: int, sampled: int, layers: int) -> list[tuple[int, int]]:
    """docs/spec/state-tree.md: every (position, layer) that has a row, in tree order."""
    return [
        (position, layer)
        for position in range(prompt + sampled - 1)
        for layer in range(layers + 1)
        if layer < layers - 1 or position >= prompt - 1
    ]


def little_ids(ids: Sequence[int]) -> bytes:
    """Token ids as u32 little-endian."""
    return b"".join(i.to_bytes(4, "little") for i in ids)
