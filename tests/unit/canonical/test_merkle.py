"""The frontier: any way of adding leaves gives the tree of RFC 6962."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.canonical.merkle import MerkleFrontier
from tests.golden.reference import tree_root


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_batches_and_single_leaves_give_one_tree(sizes: list[int]) -> None:
    tree = MerkleFrontier()
    leaves: list[bytes] = []
    for size in sizes:
        batch = [sha256(bytes([len(leaves) + i])).digest() for i in range(size)]
        leaves += batch
        if size == 1:
            tree.append(batch[0])
        else:
            tree.extend(batch)
        assert tree.count == len(leaves)
        if leaves:
            assert tree.root() == tree_root(leaves)


def test_an_empty_tree_has_no_root() -> None:
    tree = MerkleFrontier()
    tree.extend([])

    with pytest.raises(ValueError, match="no root"):
        tree.root()


def test_order_counts() -> None:
    left, right = sha256(b"a").digest(), sha256(b"b").digest()
    forward, backward = MerkleFrontier(), MerkleFrontier()
    forward.extend([left, right])
    backward.extend([right, left])

    assert forward.root() != backward.root()
