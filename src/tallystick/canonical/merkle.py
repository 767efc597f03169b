"""RFC 6962 Merkle tree over SHA-256, computed in one pass with logarithmic memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

_sha256 = hashlib.sha256


class MerkleFrontier:
    """Accumulates 32-byte leaf hashes; ``root()`` may be asked at any time.

    Nodes are SHA-256(0x01 || left || right); an odd node is promoted unchanged, which gives the
    same root as RFC 6962's split at the largest power of two.
    """

    __slots__ = ("_stack", "count")

    def __init__(self) -> None:
        self.count = 0
        self._stack: list[bytes] = []

    def append(self, leaf: bytes) -> None:
        """Add one leaf hash."""
        node = leaf
        n = self.count
        stack = self._stack
        # Trailing one bits of the count are complete subtrees waiting for a right sibling.
        while n & 1:
            node = _sha256(b"\x01" + stack.pop() + node).digest()
            n >>= 1
        stack.append(node)
        self.count += 1

    def root(self) -> bytes:
        """Return the 32-byte root. Raises ValueError when no leaf was added."""
        if not self._stack:
            raise ValueError("an empty tree has no root")
        node = self._stack[-1]
        for left in reversed(self._stack[:-1]):
            node = _sha256(b"\x01" + left + node).digest()
        return node


def merkle_root(leaves: Iterable[bytes]) -> bytes:
    """Return the root over ``leaves`` (32-byte leaf hashes)."""
    tree = MerkleFrontier()
    for leaf in leaves:
        tree.append(leaf)
    return tree.root()
