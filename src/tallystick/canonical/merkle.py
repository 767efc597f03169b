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
        # Roots of complete subtrees, one for each one bit of the count, the smallest last.
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

    def extend(self, leaves: Iterable[bytes]) -> None:
        """Add leaf hashes in order: the same as appending each, level by level and so faster."""
        sha256 = _sha256
        stack = self._stack
        nodes = list(leaves)
        added = len(nodes)
        waiting: list[bytes] = []
        bits = self.count
        while nodes:
            if bits & 1:
                nodes.insert(0, stack.pop())
            if len(nodes) & 1:
                waiting.append(nodes.pop())
            nodes = [
                sha256(b"\x01" + left + right).digest()
                for left, right in zip(nodes[::2], nodes[1::2], strict=True)
            ]
            bits >>= 1
        stack.extend(reversed(waiting))
        self.count += added

    def root(self) -> bytes:
        """Return the 32-byte root. Raises ValueError when no leaf was added."""
        if not self._stack:
            raise ValueError("an empty tree has no root")
        node = self._stack[-1]
        for left in reversed(self._stack[:-1]):
            node = _sha256(b"\x01" + left + node).digest()
        return node
