"""The state commitment: one salted Merkle root over every row a run computed.

Specified in docs/spec/state-tree.md. A row is the float32 output of one layer at one position, or
the logits there. The tree is position-major: positions ascending, within one the layers ascending,
the logits last, as layer number ``layers``. Rows that exist, for P prompt and G sampled tokens and
L layers: layers 0..L-2 at positions 0..P+G-2; layer L-1 and the logits at P-1..P+G-2.

A row is hashed where it lies (memoryviews are not copied) and only its digest is kept until its
block is complete; what stays is the frontier of the tree and 4 bytes a leaf.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, TypeAlias

from blake3 import blake3

from tallystick.canonical.hashing import frame, u32le, u64le
from tallystick.canonical.merkle import MerkleFrontier
from tallystick.errors import RunFailedError

Buffer: TypeAlias = bytes | bytearray | memoryview

LEAF_DOMAIN: Final = "tallystick.state-leaf"
LEAF_VERSION: Final = 1
CHECK_BYTES: Final = 4
DIGEST_BYTES: Final = 32

_sha256 = hashlib.sha256


def row_digests(block: Buffer, row_bytes: int) -> list[bytes]:
    """Return the BLAKE3 digest of each ``row_bytes`` long row of a contiguous block, in order.

    Raises RunFailedError when the block is not a whole number of rows.
    """
    view = memoryview(block)
    if view.format != "B" or view.ndim != 1:
        view = view.cast("B")
    size = view.nbytes
    if size == row_bytes:
        return [blake3(view).digest()]
    if row_bytes <= 0 or size % row_bytes:
        raise RunFailedError(
            "a block of states is not made of whole rows",
            expected=f"a multiple of {row_bytes} bytes",
            found=f"{size} bytes",
        )
    return [blake3(view[start : start + row_bytes]).digest() for start in range(0, size, row_bytes)]


class _Leaves:
    """The tree under one salt: ``bound`` (of a worker, or nothing) ends the input of each salt."""

    __slots__ = ("_blind", "_bound", "frontier")

    def __init__(self, blind: bytes, bound: bytes) -> None:
        self._blind = blind
        self._bound = bound
        self.frontier = MerkleFrontier()

    def extend(
        self,
        position: int,
        columns: Sequence[Sequence[bytes]],
        heads: Sequence[tuple[bytes, bytes]],
    ) -> list[bytes]:
        """Add the rows of consecutive positions, and return their leaves.

        ``columns`` hold the digests of one layer each.
        """
        # The hot loop: one keyed and one plain hash a row, everything else prepared outside.
        keyed, sha256, blind, prefix = blake3, _sha256, self._blind, _LEAF_PREFIX
        leaves: list[bytes] = []
        for row in zip(*columns, strict=True):
            place = u64le(position)
            salted = place + self._bound
            middle = _POSITION_LENGTH + place + _DIGEST_LENGTH
            leaves += [
                sha256(
                    prefix + keyed(number + salted, key=blind).digest() + framed + middle + digest
                ).digest()
                for (number, framed), digest in zip(heads, row)  # noqa: B905 - heads may be longer
            ]
            position += 1
        self.frontier.extend(leaves)
        return leaves


class StateTree:
    """Builds the root while blocks of rows arrive in position order.

    ``blind`` is the run's 32-byte secret. With a ``credential_id`` (32 bytes) the same rows, hashed
    once, also give a second root: that of the tree whose salts are bound to this worker, which no
    other can copy unseen.
    """

    __slots__ = ("_checks", "_heads", "_layers", "_next", "_plain", "_prompt", "_worker")

    def __init__(
        self,
        blind: bytes,
        layers: int,
        prompt_tokens: int,
        *,
        credential_id: bytes | None = None,
    ) -> None:
        if len(blind) != 32 or (credential_id is not None and len(credential_id) != 32):
            raise RunFailedError("blind and credential id of a state tree have 32 bytes each")
        _check_shape(prompt_tokens, 1, layers)
        self._plain = _Leaves(blind, b"")
        self._worker = None if credential_id is None else _Leaves(blind, credential_id)
        self._checks = bytearray()
        self._layers = layers
        self._prompt = prompt_tokens
        self._next = 0
        # Per layer: its number, and its number framed as the second part of a leaf.
        self._heads = tuple(
            (u32le(layer), _length(4) + u32le(layer)) for layer in range(layers + 1)
        )

    @property
    def count(self) -> int:
        """Number of leaves so far."""
        return self._plain.frontier.count

    @property
    def leaf_checks(self) -> bytes:
        """The first 4 bytes of every leaf in tree order: they locate a difference, no more."""
        return bytes(self._checks)

    def root(self) -> bytes:
        """Return the 32-byte root over the leaves so far.

        Raises RunFailedError when there is none.
        """
        return _root(self._plain)

    def worker_root(self) -> bytes:
        """Return the 32-byte root of the same rows under the worker's salts.

        Raises RunFailedError when there is no leaf, or the tree was made without a credential.
        """
        if self._worker is None:
            raise RunFailedError("the state tree was not bound to a worker's credential")
        return _root(self._worker)

    def rows_due(self, first_position: int, positions: int) -> int:
        """Return how many of these consecutive positions also have a last layer and logits."""
        return max(0, first_position + positions - max(first_position, self._prompt - 1))

    def push_digests(
        self,
        first_position: int,
        positions: int,
        hidden: Sequence[Sequence[bytes]],
        last: Sequence[bytes],
        logits: Sequence[bytes],
    ) -> None:
        """Add the rows of ``positions`` consecutive positions, given their :func:`row_digests`.

        ``hidden`` holds the digests of layers 0..L-2, ``positions`` each. ``last`` (layer L-1) and
        ``logits`` hold only those of the positions from P-1 on, see :meth:`rows_due`. Raises
        RunFailedError for a gap, an overlap or a wrong number of rows; nothing is added then.
        """
        due = self.rows_due(first_position, positions)
        self._check_block(first_position, positions, hidden, last, logits, due)
        split = positions - due
        if split:
            self._add(first_position, [column[:split] for column in hidden] if due else hidden)
        if due:
            columns = [column[split:] for column in hidden] if split else hidden
            self._add(first_position + split, [*columns, last, logits])
        self._next += positions

    def _add(self, position: int, columns: Sequence[Sequence[bytes]]) -> None:
        leaves = self._plain.extend(position, columns, self._heads)
        self._checks += b"".join([leaf[:CHECK_BYTES] for leaf in leaves])
        if self._worker is not None:
            self._worker.extend(position, columns, self._heads)

    def _check_block(
        self,
        first_position: int,
        positions: int,
        hidden: Sequence[Sequence[bytes]],
        last: Sequence[bytes],
        logits: Sequence[bytes],
        due: int,
    ) -> None:
        if first_position != self._next:
            raise RunFailedError(
                "a block of states is out of order",
                expected=f"position {self._next}",
                found=f"position {first_position}",
            )
        if positions < 1:
            raise RunFailedError("a block of states has at least one position")
        if len(hidden) != self._layers - 1:
            raise RunFailedError(
                "a block of states misses layers or has too many",
                expected=f"{self._layers - 1} layers before the last",
                found=f"{len(hidden)}",
            )
        counts = [len(column) for column in hidden]
        if counts.count(positions) != len(counts) or len(last) != due or len(logits) != due:
            raise RunFailedError(
                "a block of states has a wrong number of rows",
                expected=f"{positions} rows a layer, {due} of the last layer and {due} of logits",
                found=f"{min(counts, default=0)}..{max(counts, default=0)}, {len(last)} and "
                f"{len(logits)} at position {first_position}",
            )


def _root(leaves: _Leaves) -> bytes:
    if leaves.frontier.count == 0:
        raise RunFailedError("no state was committed: the tree is empty")
    return leaves.frontier.root()


def leaf_count(prompt_tokens: int, sampled_tokens: int, layers: int) -> int:
    """Return the number of leaves of a run: (P-1)(L-1) + G(L+1)."""
    _check_shape(prompt_tokens, sampled_tokens, layers)
    return (prompt_tokens - 1) * (layers - 1) + sampled_tokens * (layers + 1)


def locate(index: int, prompt_tokens: int, layers: int) -> tuple[int, int]:
    """Return ``(position, layer)`` of the leaf at ``index``; the logits are layer ``layers``."""
    _check_shape(prompt_tokens, 1, layers)
    if index < 0:
        raise RunFailedError("no leaf has a negative index")
    before = (prompt_tokens - 1) * (layers - 1)
    if index < before:
        return divmod(index, layers - 1)
    position, layer = divmod(index - before, layers + 1)
    return prompt_tokens - 1 + position, layer


def leaf_index(position: int, layer: int, prompt_tokens: int, layers: int) -> int:
    """Return the index of a row's leaf: the inverse of :func:`locate`.

    Raises RunFailedError when no such row exists.
    """
    _check_shape(prompt_tokens, 1, layers)
    last = prompt_tokens - 1
    rows = layers - 1 if position < last else layers + 1
    if position < 0 or not 0 <= layer < rows:
        raise RunFailedError(f"no row is committed at {row_name(position, layer, layers)}")
    if position < last:
        return position * (layers - 1) + layer
    return last * (layers - 1) + (position - last) * (layers + 1) + layer


def row_name(position: int, layer: int, layers: int) -> str:
    """Return how a report names a row: ``position 7, layer 3 of 30`` or ``position 7, logits``."""
    if layer == layers:
        return f"position {position}, logits"
    return f"position {position}, layer {layer} of {layers}"


def first_difference(expected: bytes, found: bytes) -> int | None:
    """Return the index of the first leaf whose check differs or is missing, None when equal."""
    if expected == found:
        return None
    low, high = 0, min(len(expected), len(found))
    # Equality of a prefix is monotone, so the end of the longest equal prefix can be bisected.
    while low < high:
        middle = (low + high + 1) // 2
        if expected[low:middle] == found[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low // CHECK_BYTES


def _check_shape(prompt_tokens: int, sampled_tokens: int, layers: int) -> None:
    if prompt_tokens < 1 or sampled_tokens < 1 or layers < 1:
        raise RunFailedError(
            "no state tree has this shape",
            expected="at least one prompt token, one sampled token and one layer",
            found=f"{prompt_tokens}, {sampled_tokens} and {layers}",
        )


def _length(count: int) -> bytes:
    return count.to_bytes(8, "big")


_POSITION_LENGTH: Final = _length(8)
_DIGEST_LENGTH: Final = _length(DIGEST_BYTES)
# Everything in front of the salt's bytes is the same in every leaf; the rest of it is 100 bytes.
_LEAF_PREFIX: Final = (
    b"\x00" + frame(LEAF_DOMAIN, LEAF_VERSION, [bytes(32), bytes(4), bytes(8), bytes(32)])[:-100]
)
