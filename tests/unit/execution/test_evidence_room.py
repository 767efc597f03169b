"""What a run would leave is measured before anything is generated."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.contracts.runtime import RowClass
from tallystick.errors import EvidenceError, UsageError
from tallystick.evidence.observer.records import MAX_EVENTS
from tallystick.execution import generate_child, replay_child
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
