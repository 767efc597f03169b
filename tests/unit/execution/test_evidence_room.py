"""What a run would leave is measured before anything is generated."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.runtime import RowClass
from tallystick.errors import EvidenceError, UsageError
from tallystick.evidence.observer.records import MAX_EVENTS
from tallystick.execution import bundle_room, generate_child, replay_child
from tallystick.execution.child_run import ChildRun
from tests.support.child_runs import child_run
from tests.support.fake_engine import FakeModel

LAYERS = 3
EVENTS = 2 * LAYERS  # the fake's graph has a product and a sum a layer
PROMPT = (1,) * 10


def sequential(max_tokens: int) -> ChildRun:
    model = FakeModel(layers=LAYERS, floor=1)
    policy, row_class = "sequential", RowClass(1, 1)
    return child_run(
        model, PROMPT, "gemm", policy=policy, row_class=row_class, max_tokens=max_tokens
    )


def batched(max_tokens: int) -> ChildRun:
    model = FakeModel(layers=LAYERS)
    return child_run(model, PROMPT, "gemm", row_class=RowClass(2, 8), max_tokens=max_tokens)


@pytest.fixture
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for 20 evaluations."""
    for module in (generate_child, replay_child):
        monkeypatch.setattr(module, "MAX_EVENTS", 20 * EVENTS + EVENTS - 1)


def test_the_bound_is_that_of_every_reader() -> None:
    assert MAX_EVENTS == 250_000
    for module in (generate_child, replay_child):
        assert vars(module)["MAX_EVENTS"] is MAX_EVENTS


def test_an_evaluation_is_measured_in_a_context_of_its_own() -> None:
    for this in (sequential(2), batched(2)):
        assert this.events() == EVENTS
        model: Any = this.engine.model
        (context,) = model.contexts
        assert context.closed
        assert [batch.tokens[0] for batch in context.batches] == [1]
        assert sum(context.batches[0].outputs) == this.plan.row_class.floor


@pytest.mark.usefixtures("_narrow")
def test_steps_of_a_sequential_run_are_its_positions() -> None:
    generate_child._require_room(sequential(11))
    with pytest.raises(UsageError) as caught:
        generate_child._require_room(sequential(12))
    assert caught.value.found == f"21 steps of {EVENTS} operations"
    assert (caught.value.hint or "").startswith("--n-predict 11 is the largest")


@pytest.mark.usefixtures("_narrow")
def test_steps_of_a_sealing_pass_are_its_chunks() -> None:
    largest = 20 * 8 - len(PROMPT) + 1
    generate_child._require_room(batched(largest))
    with pytest.raises(UsageError) as caught:
        generate_child._require_room(batched(largest + 1))
    assert caught.value.found == f"21 steps of {EVENTS} operations"
    assert (caught.value.hint or "").startswith(f"--n-predict {largest} is the largest")


def test_a_prompt_that_leaves_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate_child, "MAX_EVENTS", 9 * EVENTS)
    with pytest.raises(UsageError) as caught:
        generate_child._require_room(sequential(4))
    assert (caught.value.hint or "").startswith("a shorter prompt, or no other evidence")


@pytest.mark.usefixtures("_narrow")
def test_a_receipt_beyond_the_bound_is_refused() -> None:
    replay_child._check_room(sequential(12), 11)
    with pytest.raises(EvidenceError, match="more operations than evidence may hold"):
        replay_child._check_room(sequential(12), 12)


def states(max_tokens: int, experts: int = 0) -> ChildRun:
    model = FakeModel(layers=LAYERS, experts=experts)
    return child_run(model, PROMPT, "states", row_class=RowClass(2, 8), max_tokens=max_tokens)


def test_leaf_checks_alone_are_held_to_the_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    generate_child._require_room(states(1024))
    base = bundle_room.FIXED_BYTES + 11 * len(PROMPT) + len(encode_bytes(states(100).run)) + 2

    def size(generated: int) -> int:
        leaves = (len(PROMPT) - 1) * (LAYERS - 1) + generated * (LAYERS + 1)
        return base + (11 + 1024) * generated + 4 * (4 * leaves + 2) // 3

    monkeypatch.setattr(bundle_room, "MAX_BUNDLE", size(50))
    generate_child._require_room(states(50))
    with pytest.raises(UsageError, match="the bundle of this run") as caught:
        generate_child._require_room(states(100))
    assert (caught.value.hint or "").startswith("--n-predict 50 is the largest")
    assert str(size(100)) in (caught.value.found or "")


def test_expert_routes_have_a_bound_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    this = states(6, experts=4)
    rows = (LAYERS - 1) * (len(PROMPT) + 3) + 4  # the last layer only from the last prompt token
    room = rows * 4 * this.evidence.figures.used
    monkeypatch.setattr(bundle_room, "MAX_ROUTE_IDS_BYTES", room)
    with pytest.raises(UsageError, match="the set of expert routes") as caught:
        generate_child._require_room(this)
    assert (caught.value.hint or "").startswith("--n-predict 4 is the largest")
    monkeypatch.setattr(bundle_room, "MAX_ROUTE_IDS_BYTES", 1)
    with pytest.raises(UsageError) as caught:
        generate_child._require_room(this)
    assert "nothing can be generated" in (caught.value.hint or "")
