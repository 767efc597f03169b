"""What a receipt says of layers in memory: the rules of docs/spec/receipt.md#layers-in-memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tallystick.contracts.layout import RECEIPT
from tallystick.contracts.residency import NO_RING, Residency
from tallystick.errors import EvidenceError, RunFailedError
from tallystick.receipts.build import BuiltSet
from tallystick.telemetry.events import MAX_LAYER_EVENTS, Event, EventKind
from tallystick.telemetry.log import encode_log
from tests.golden.independent.basics import RefusedError
from tests.golden.independent.core import check_telemetry, read_core
from tests.support.forgery import Forger
from tests.support.sets import (
    LAYERS,
    SAMPLED_IDS,
    SIGNER,
    data_of,
    make_events,
    make_generation,
    make_set,
)

# Three layers, four tokens, one pass each: 3 evictions after the load, 12 after evaluations.
EVICTED = LAYERS * (1 + len(SAMPLED_IDS))
RING = Residency(2, "ring", EVICTED, 10, 2)
UNOBSERVABLE = Residency(2, "unobservable", EVICTED, 0, 0)
ROOMY = Residency(LAYERS, "all_resident", 0, 0, 0)
KINDS = {
    EventKind.LAYER_EVICTED: "evictions",
    EventKind.PREFETCH_HIT: "prefetch_hits",
    EventKind.PREFETCH_MISS: "prefetch_misses",
}


def telemetry_of(
    found: Residency, *, most: int = MAX_LAYER_EVENTS, without: EventKind | None = None
) -> bytes:
    """Return a log with an event for each count, at most ``most``, then the run's own."""
    head, tail = make_events(len(SAMPLED_IDS))[:3], make_events(len(SAMPLED_IDS))[3:]
    counts = [(kind, getattr(found, field)) for kind, field in KINDS.items()]
    if found.evictions:
        counts.append((EventKind.LAYER_INSTALLED, 5))
    kinds = [kind for kind, count in counts for _ in range(count) if kind is not without][:most]
    last = head[-1]
    events = [
        *head,
        *(
            Event(kind, 0, last.monotonic_ns, last.wall_ns, last.rss, layer=n % LAYERS)
            for n, kind in enumerate(kinds)
        ),
        *tail,
    ]
    return encode_log(replace(event, seq=seq) for seq, event in enumerate(events))


def built(found: Residency, **changes: Any) -> BuiltSet:
    return make_set(
        generation=make_generation(residency=found), telemetry=telemetry_of(found, **changes)
    )


@pytest.mark.parametrize("found", [NO_RING, ROOMY, RING, UNOBSERVABLE], ids=str)
def test_what_can_be_is_accepted(found: Residency) -> None:
    made = built(found)
    observed = made.receipt.observed
    assert (
        Residency(
            observed.ring_depth,
            observed.residency,
            observed.evictions,
            observed.prefetch_hits,
            observed.prefetch_misses,
        )
        == found
    )
    assert made.core_digest == make_set().core_digest


@pytest.mark.parametrize(
    "changes",
    [
        {"ring_depth": 0},
        {"ring_depth": LAYERS},
        {"residency": "all_resident"},
        {"residency": "unobservable"},
        {"evictions": EVICTED + 1},
        {"evictions": EVICTED - LAYERS, "prefetch_hits": 10 - LAYERS},
        {"evictions": EVICTED + LAYERS},
        {"prefetch_hits": 11},
        {"prefetch_misses": 1},
    ],
    ids=str,
)  # fmt: skip
def test_counts_that_contradict_each_other_are_refused(changes: dict[str, Any]) -> None:
    found = replace(RING, **changes)
    with pytest.raises(RunFailedError, match="observed"):
        built(found)
    _independently_refused(found)


@pytest.mark.parametrize(
    "found",
    [
        replace(NO_RING, evictions=3),
        replace(NO_RING, prefetch_hits=1),
        replace(NO_RING, prefetch_misses=1),
        replace(NO_RING, residency="ring"),
        replace(NO_RING, residency="unobservable"),
        replace(UNOBSERVABLE, prefetch_hits=12),
        replace(ROOMY, residency="ring", evictions=EVICTED, prefetch_hits=12),
    ],
    ids=str,
)
def test_more_cannot_be_claimed_than_the_depth_allows(found: Residency) -> None:
    with pytest.raises(RunFailedError, match="observed"):
        built(found)
    _independently_refused(found)


@pytest.mark.parametrize("kind", KINDS)
def test_events_and_counts_are_held_together(kind: EventKind) -> None:
    with pytest.raises(RunFailedError, match=f"observed.{KINDS[kind]}"):
        built(RING, without=kind)
    # One event more than counted is too many even where events were left out or dropped.
    more = replace(RING, **{KINDS[kind]: getattr(RING, KINDS[kind]) + 1})
    with pytest.raises(RunFailedError, match=f"observed.{KINDS[kind]}"):
        make_set(generation=make_generation(residency=RING), telemetry=telemetry_of(more))


def test_beyond_the_bound_events_are_counted_only() -> None:
    rounds = MAX_LAYER_EVENTS // LAYERS
    many = Residency(2, "ring", LAYERS * (1 + rounds), LAYERS * rounds, 0)
    made = built(many)
    assert made.receipt.observed.dropped_events == 0
    assert made.receipt.observed.evictions > MAX_LAYER_EVENTS - 5
    with pytest.raises(RunFailedError, match="evictions"):
        built(many, most=MAX_LAYER_EVENTS - 1)


def test_events_of_layers_without_a_ring_are_refused() -> None:
    log = telemetry_of(
        replace(RING, prefetch_hits=0, prefetch_misses=0), without=EventKind.LAYER_EVICTED
    )
    with pytest.raises(RunFailedError, match="LayerInstalled"):
        make_set(generation=make_generation(residency=NO_RING), telemetry=log)


def _independently_refused(found: Residency) -> None:
    """The second checker, written from the spec, refuses the same fields."""
    forger = Forger(built(RING).files())
    value = forger.document(RECEIPT.suffix)
    value["observed"] |= {
        "ring_depth": found.ring_depth,
        "residency": found.residency,
        "evictions": str(found.evictions),
        "prefetch_hits": str(found.prefetch_hits),
        "prefetch_misses": str(found.prefetch_misses),
    }
    files = forger.with_receipt(value, key=SIGNER)
    data = next(data for name, data in files.items() if name.endswith(RECEIPT.suffix))
    with pytest.raises(RefusedError):
        check_telemetry(telemetry_of(RING), read_core(data))


def test_the_second_checker_accepts_a_ring() -> None:
    made = built(RING)
    check_telemetry(telemetry_of(RING), read_core(data_of(made, RECEIPT)))


def test_a_report_of_a_forged_count_names_the_field() -> None:
    forger = Forger(built(RING).files())
    value = forger.document(RECEIPT.suffix)
    value["observed"]["prefetch_misses"] = "0"
    value["observed"]["prefetch_hits"] = "12"
    with pytest.raises((RunFailedError, EvidenceError), match="prefetch"):
        _verified(forger.with_receipt(value, key=SIGNER))


def _verified(files: dict[str, bytes]) -> None:
    from tests.unit.receipts.test_receipts_verify import check

    check(files).require()
