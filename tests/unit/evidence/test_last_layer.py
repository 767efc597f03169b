"""Facts that several checks share: where the last layer begins, which models route, the bounds."""

from __future__ import annotations

import pytest

from tallystick.compute.families import describe
from tallystick.contracts import compute_receipt, manifest_parts
from tallystick.evidence.observer import records
from tallystick.evidence.routes import last_layer_from, route_rows
from tests.support.compute_sets import model_facts
from tests.support.manifests import family_facts


@pytest.mark.parametrize(
    ("policy", "first", "rows"), [("sequential", 0, 240), ("row-class", 4, 236)]
)
def test_where_the_last_layer_begins(policy: str, first: int, rows: int) -> None:
    assert last_layer_from(policy, 5) == first
    assert route_rows(40, 5, 2, last_from=first) == rows


def test_a_model_has_experts_when_any_layer_routes() -> None:
    assert describe(model_facts(experts=True)).has_experts
    assert not describe(family_facts("llama")).has_experts


def test_a_transcript_has_the_bounds_of_what_is_made_of_it() -> None:
    assert records.MAX_EVENTS == compute_receipt.MAX_EVENTS == 250_000
    assert records.MAX_GENERATED == manifest_parts.MAX_GENERATED == 1024
    assert records.CONTEXT_TOKENS == manifest_parts.SEQUENTIAL_CONTEXT == 4096
