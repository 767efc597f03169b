"""Expert routes: complete, in order, and nothing that cannot be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.canonical.hashing import domain_hash
from tallystick.errors import EvidenceError
from tallystick.evidence import routes as module
from tallystick.evidence.routes import (
    ExpertRoutes,
    RouteBuilder,
    check_routes,
    decode_routes,
    encode_routes,
    route_rows,
)
from tallystick.evidence.schedule import pack_indexes as ids
from tests.support.evidence import BLIND, HYBRID, routes_of


def test_rows_stand_by_position_then_by_layer() -> None:
    builder = RouteBuilder(2, 4, 2, last_from=0)
    builder.push(0, 2, [ids([0, 1, 2, 3]), ids([1, 0, 3, 2])])
    builder.push(2, 1, [ids([3, 1]), memoryview(ids([2, 0]))])
    routes = builder.finish()

    expected = ids([0, 1, 1, 0, 2, 3, 3, 2, 3, 1, 2, 0])
    assert routes == ExpertRoutes(2, 4, 2, 6, expected)
    head = bytes.fromhex("0200000004000000020000000600000000000000")
    assert encode_routes(routes) == head + expected
    parts = [BLIND, head[:4], head[4:8], head[8:12], head[12:], expected]
    assert routes.root(BLIND) == domain_hash("palw.expert-routes", 1, parts)
    assert routes.root(BLIND[::-1]) != routes.root(BLIND)


def test_the_last_layer_begins_later_when_asked_to() -> None:
    builder = RouteBuilder(2, 4, 2, last_from=2)
    assert [builder.rows_due(0, n) for n in (1, 2, 3, 4)] == [0, 0, 1, 2]
    builder.push(0, 1, [ids([0, 1]), b""])
    builder.push(1, 3, [ids([1, 2, 2, 3, 3, 0]), ids([0, 3, 1, 3])])

    assert builder.rows == 6 == route_rows(2, 3, 2, last_from=2)
    routes = builder.finish()
    assert routes.ids == ids([0, 1, 1, 2, 2, 3, 0, 3, 3, 0, 1, 3])
    check_routes(routes, 2, 3, 2, last_from=2)
    with pytest.raises(EvidenceError, match="not those of all layers"):
        check_routes(routes, 2, 3, 2, last_from=0)


def test_batches_of_any_size_give_the_same() -> None:
    whole = RouteBuilder(3, 5, 1, last_from=1)
    whole.push(0, 4, [ids([0, 1, 2, 3]), ids([4, 3, 2, 1]), ids([1, 0, 1])])
    single = RouteBuilder(3, 5, 1, last_from=1)
    for p, (a, b) in enumerate([(0, 4), (1, 3), (2, 2), (3, 1)]):
        single.push(p, 1, [ids([a]), ids([b]), ids([p % 2])[: 4 * (p > 0)]])
    assert single.finish() == whole.finish()


def test_the_census_of_the_hybrid() -> None:
    routes = routes_of(HYBRID, 6)
    assert routes.rows == 240
    check_routes(routes, 40, 5, 2, last_from=0)
    assert routes_of(HYBRID, 6, last_from=4).rows == 240 - 4


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.integers(0, 7), st.data())
def test_round_trip_and_changes(
    layers: int, used: int, positions: int, last_from: int, draw: st.DataObject
) -> None:
    rows = (layers - 1) * positions + max(0, positions - last_from)
    rows = max(1, rows)
    row = st.permutations(range(6)).map(lambda order: [*order[:used]])
    chosen = [i for _ in range(rows) for i in draw.draw(row)]
    routes = ExpertRoutes(layers, 6, used, rows, ids(chosen))
    data = encode_routes(routes)
    assert decode_routes(data) == routes
    with pytest.raises(EvidenceError):
        decode_routes(data[: draw.draw(st.integers(0, len(data) - 1))])
    edited = bytearray(data)
    edited[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    try:
        other = decode_routes(bytes(edited))
    except EvidenceError:
        return
    assert other.root(BLIND) != routes.root(BLIND)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0, 4, 2, 1, ids([0, 1])), "impossible numbers"),
        ((1025, 4, 2, 1, ids([0, 1])), "impossible numbers"),
        ((1, 1, 2, 1, ids([0, 1])), "impossible numbers"),
        ((1, 4, 0, 1, b""), "impossible numbers"),
        ((1, 65537, 2, 1, ids([0, 1])), "impossible numbers"),
        ((1, 4, 2, 0, b""), "impossible size"),
        ((1, 4, 2, 2, ids([0, 1])), "impossible size"),
        ((1, 4, 2, 1, ids([0, 1, 2])), "impossible size"),
        ((1, 4, 2, 2**62, ids([0, 1])), "impossible size"),
        ((1, 4, 2, 1, ids([0, 4])), "does not exist"),
        ((1, 4, 2, 2, ids([0, 1, 3, 3])), "twice"),
    ],
)
def test_what_no_routes_are(numbers: tuple[int, int, int, int, bytes], message: str) -> None:
    with pytest.raises(EvidenceError, match=message):
        ExpertRoutes(*numbers)


def test_the_bound_is_checked_before_the_ids_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_routes(ExpertRoutes(1, 4, 2, 2, ids([0, 1, 2, 3])))
    monkeypatch.setattr(module, "MAX_ROUTE_IDS_BYTES", 15)
    with pytest.raises(EvidenceError, match=r"too many rows|too long"):
        decode_routes(data)
    builder = RouteBuilder(1, 4, 2, last_from=0)
    with pytest.raises(EvidenceError, match="too many"):
        builder.push(0, 2, [ids([0, 1, 2, 3])])


Change = Callable[[RouteBuilder], None]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.push(1, 1, [ids([0, 1])] * 2), "out of order"),
        (lambda b: b.push(0, 0, [b"", b""]), "out of order"),
        (lambda b: b.push(0, 1, [ids([0, 1])]), "another number of layers"),
        (lambda b: b.push(0, 1, [ids([0, 1])] * 3), "another number of layers"),
        (lambda b: b.push(0, 1, [b"", ids([0, 1])]), "layer 0"),
        (lambda b: b.push(0, 1, [ids([0, 1]), b""]), "layer 1"),
        (lambda b: b.push(0, 1, [ids([0, 1]), ids([0, 1, 2])]), "layer 1"),
        (lambda b: b.push(0, 2, [ids([0, 1, 2, 3]), ids([0, 1])]), "layer 1"),
        (lambda b: b.push(0, 1, [ids([0, 1]), ids([0, 4])]), "does not exist"),
        (lambda b: b.push(0, 1, [ids([0, 1]), ids([1, 1])]), "twice"),
    ],
)
def test_a_builder_takes_nothing_after_an_error(change: Change, message: str) -> None:
    builder = RouteBuilder(2, 4, 2, last_from=0)
    with pytest.raises(EvidenceError, match=message):
        change(builder)
    with pytest.raises(EvidenceError, match="refused before"):
        builder.push(0, 1, [ids([0, 1])] * 2)
    with pytest.raises(EvidenceError, match="refused before"):
        builder.finish()


def test_routes_without_rows_are_none() -> None:
    with pytest.raises(EvidenceError, match="impossible size"):
        RouteBuilder(2, 4, 2, last_from=0).finish()


def test_nothing_private_is_shown() -> None:
    assert "ids" not in repr(ExpertRoutes(1, 4, 2, 1, ids([0, 1])))
