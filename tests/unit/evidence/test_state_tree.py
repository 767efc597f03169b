"""The state tree: shapes, order, refusals, and finding a difference."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.errors import RunFailedError
from tallystick.evidence.state_tree import (
    StateTree,
    first_difference,
    leaf_count,
    leaf_index,
    locate,
    row_digests,
    row_name,
)
from tests.golden.reference import row_order, state_leaf, tree_root

BLIND = bytes(range(32))
CREDENTIAL = bytes(range(32, 64))
ROW, LOGITS = 8, 12

sizes = st.integers(1, 6)


def row(position: int, layer: int, size: int) -> bytes:
    return bytes([position, layer]) * (size // 2)


def digests(places: Sequence[int], layer: int, size: int) -> list[bytes]:
    return row_digests(b"".join(row(position, layer, size) for position in places), size)


def push(tree: StateTree, first: int, positions: int, layers: int) -> None:
    """Push rows made by :func:`row` for a block that is in order."""
    places = range(first, first + positions)
    due = places[positions - tree.rows_due(first, positions) :]
    tree.push_digests(
        first,
        positions,
        [digests(places, layer, ROW) for layer in range(layers - 1)],
        digests(due, layers - 1, ROW),
        digests(due, layers, LOGITS),
    )


@settings(deadline=None)
@given(sizes, sizes, sizes, st.integers(1, 8))
def test_any_chunking_gives_the_specified_tree(
    prompt: int, sampled: int, layers: int, chunk: int
) -> None:
    tree = StateTree(BLIND, layers, prompt, credential_id=CREDENTIAL)
    total = prompt + sampled - 1
    for first in range(0, total, chunk):
        push(tree, first, min(chunk, total - first), layers)
    rows = [
        (layer, position, row(position, layer, LOGITS if layer == layers else ROW))
        for position, layer in row_order(prompt, sampled, layers)
    ]
    leaves = [state_leaf(BLIND, *each) for each in rows]

    assert tree.root() == tree_root(leaves)
    assert tree.worker_root() == tree_root([state_leaf(BLIND, *each, CREDENTIAL) for each in rows])
    assert tree.leaf_checks == b"".join(leaf[:4] for leaf in leaves)
    assert tree.count == len(leaves) == leaf_count(prompt, sampled, layers)


@settings(deadline=None)
@given(sizes, sizes, sizes)
def test_index_and_place_are_inverse(prompt: int, sampled: int, layers: int) -> None:
    order = row_order(prompt, sampled, layers)

    assert [locate(index, prompt, layers) for index in range(len(order))] == order
    assert [leaf_index(*place, prompt, layers) for place in order] == list(range(len(order)))


@pytest.mark.parametrize(("position", "layer"), [(-1, 0), (0, -1), (0, 2), (1, 4), (2, 4), (0, 3)])
def test_rows_that_do_not_exist_have_no_index(position: int, layer: int) -> None:
    with pytest.raises(RunFailedError):
        leaf_index(position, layer, prompt_tokens=2, layers=3)


def test_rows_may_be_any_contiguous_memory() -> None:
    block = array("f", [0.0, 1.0, 2.0, 3.0])
    expected = row_digests(block.tobytes(), ROW)

    assert len(expected) == 2
    assert row_digests(memoryview(block), ROW) == expected
    assert row_digests(bytearray(block.tobytes()), ROW) == expected
    assert row_digests(memoryview(block)[:2], ROW) == expected[:1]
    assert row_digests(b"", ROW) == []


@pytest.mark.parametrize(("size", "row_bytes"), [(12, 8), (4, 8), (8, 0), (8, -8)])
def test_a_block_has_whole_rows(size: int, row_bytes: int) -> None:
    with pytest.raises(RunFailedError, match="whole rows"):
        row_digests(bytes(size), row_bytes)


@pytest.mark.parametrize("first", [0, 1, 3])
def test_gaps_and_overlaps_are_refused(first: int) -> None:
    tree = StateTree(BLIND, 2, 8)
    push(tree, 0, 2, 2)
    before = (tree.count, tree.root(), tree.leaf_checks)
    with pytest.raises(RunFailedError, match="out of order"):
        push(tree, first, 2, 2)

    assert (tree.count, tree.root(), tree.leaf_checks) == before


@pytest.mark.parametrize(
    ("positions", "hidden", "last", "logits"),
    [
        (0, [0, 0], 0, 0),
        (3, [3], 2, 2),
        (3, [3, 3, 3], 2, 2),
        (3, [3, 2], 2, 2),
        (3, [4, 3], 2, 2),
        (3, [3, 3], 3, 2),
        (3, [3, 3], 2, 1),
        (3, [3, 3], 0, 0),
    ],
)
def test_wrong_counts_are_refused(
    positions: int, hidden: list[int], last: int, logits: int
) -> None:
    tree = StateTree(BLIND, 3, 2)
    with pytest.raises(RunFailedError):
        tree.push_digests(
            0,
            positions,
            [[bytes(32)] * count for count in hidden],
            [bytes(32)] * last,
            [bytes(32)] * logits,
        )

    assert tree.count == 0
    tree.push_digests(0, 3, [[bytes(32)] * 3] * 2, [bytes(32)] * 2, [bytes(32)] * 2)
    assert tree.count == leaf_count(2, 2, 3)


def test_an_empty_tree_has_no_root() -> None:
    with pytest.raises(RunFailedError, match="empty"):
        StateTree(BLIND, 2, 3).root()
    with pytest.raises(RunFailedError, match="empty"):
        StateTree(BLIND, 2, 3, credential_id=CREDENTIAL).worker_root()


def test_a_tree_without_a_credential_has_no_root_of_a_worker() -> None:
    tree = StateTree(BLIND, 2, 3)
    push(tree, 0, 4, 2)
    with pytest.raises(RunFailedError, match="not bound"):
        tree.worker_root()


@pytest.mark.parametrize(
    ("blind", "layers", "prompt", "credential"),
    [
        (b"", 1, 1, None),
        (BLIND + b"x", 1, 1, None),
        (BLIND, 0, 1, None),
        (BLIND, 1, 0, None),
        (BLIND, 1, 1, b"short"),
        (BLIND, 1, 1, b""),
    ],
)
def test_impossible_trees_are_refused(
    blind: bytes, layers: int, prompt: int, credential: bytes | None
) -> None:
    with pytest.raises(RunFailedError):
        StateTree(blind, layers, prompt, credential_id=credential)


def test_every_secret_and_every_row_counts() -> None:
    def roots(blind: bytes, credential: bytes, change: int | None) -> tuple[bytes, bytes]:
        rows = [bytes([index == change]) * 32 for index in range(6)]
        tree = StateTree(blind, 2, 1, credential_id=credential)
        tree.push_digests(0, 2, [rows[:2]], rows[2:4], rows[4:])
        return tree.root(), tree.worker_root()

    found = [roots(BLIND, CREDENTIAL, change) for change in (None, *range(6))]
    found.append(roots(bytes(32), CREDENTIAL, None))

    assert len({root for pair in found for root in pair}) == 16
    assert roots(BLIND, bytes(32), None)[0] == found[0][0]
    assert roots(BLIND, bytes(32), None)[1] != found[0][1]


@pytest.mark.parametrize(
    ("found", "index"),
    [
        (b"aaaabbbbcccc", None),
        (b"Xaaabbbbcccc", 0),
        (b"aaaXbbbbcccc", 0),
        (b"aaaabbbbcccX", 2),
        (b"aaaabXbXcccc", 1),
        (b"aaaabbbb", 2),
        (b"aaaabbbbccccdddd", 3),
        (b"", 0),
    ],
)
def test_the_first_difference_is_found(found: bytes, index: int | None) -> None:
    assert first_difference(b"aaaabbbbcccc", found) == index


def test_rows_have_names() -> None:
    assert row_name(7, 3, 30) == "position 7, layer 3 of 30"
    assert row_name(7, 30, 30) == "position 7, logits"
