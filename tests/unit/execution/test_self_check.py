"""The self-check before signing: a run that does not hold is a failed run, and no verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tallystick.contracts.runtime import RowClass
from tallystick.errors import RunFailedError
from tallystick.execution.child_run import ChildRun
from tallystick.execution.evidence import Gathered, merged, require_equal
from tallystick.execution.generate_child import seal
from tallystick.execution.session import Execution, generate
from tests.support.child_runs import child_run
from tests.support.fake_engine import FakeModel

PROMPT = (3, 1, 4)


def run_of(model: FakeModel, *parts: str, **named: Any) -> ChildRun:
    return child_run(model, PROMPT, *(parts or ("states",)), **named)


def generated(this: ChildRun) -> tuple[tuple[int, ...], Gathered]:
    evidence = this.evidence.live()
    model: Any = this.engine.model
    execution = Execution(model, this.plan, len(PROMPT), evidence)
    ids = generate(
        execution,
        model.is_end,
        this.plan,
        PROMPT,
        4,
        this.sampler,
        lambda *_: None,
        lambda *_: None,
    )
    return ids, evidence.finish()


def check(this: ChildRun, ids: tuple[int, ...], live: Gathered) -> Gathered:
    sealed = seal(this, ids, lambda *_: None)
    require_equal(live, sealed)
    return merged(live, sealed)


@pytest.mark.parametrize("experts", [0, 16])
def test_an_honest_run_passes(experts: int) -> None:
    this = run_of(FakeModel(experts=experts))
    ids, live = generated(this)
    gathered = check(this, ids, live)

    assert gathered == live
    assert gathered.tree is not None
    assert gathered.tree.root() != gathered.tree.worker_root()
    assert (gathered.routes is None) == (experts == 0)


def test_a_token_that_does_not_follow_fails_the_run() -> None:
    this = run_of(model := FakeModel())
    ids, live = generated(this)
    with pytest.raises(RunFailedError, match="does not follow from its own logits") as caught:
        check(this, (*ids[:-1], (ids[-1] + 1) % model.vocabulary), live)
    assert caught.value.found == "generated token 3"


def test_another_state_root_fails_the_run() -> None:
    this = run_of(model := FakeModel())
    ids, _ = generated(this)
    with pytest.raises(RunFailedError, match="another state root"):
        check(this, ids, generated(run_of(model, blind="00" * 32))[1])


def test_other_expert_routes_fail_the_run() -> None:
    this = run_of(FakeModel(experts=16))
    ids, live = generated(this)
    assert live.routes is not None
    ends = live.routes.ids[-8:-4], live.routes.ids[-4:]
    other = replace(live.routes, ids=live.routes.ids[:-8] + ends[1] + ends[0])
    with pytest.raises(RunFailedError, match="another set of expert routes"):
        check(this, ids, replace(live, routes=other))


@pytest.mark.parametrize("experts", [0, 16])
@pytest.mark.parametrize("part", ["graph", "gemm"])
def test_a_sealing_pass_adds_what_only_it_can_show(part: str, experts: int) -> None:
    this = run_of(FakeModel(experts=experts), "states", part)
    ids, live = generated(this)
    gathered = check(this, ids, live)

    assert live.observed is None
    assert gathered.observed is not None
    assert (gathered.observed.trace is not None) == (part == "gemm")
    assert gathered.tree is live.tree
    assert gathered.routes is live.routes


def test_a_second_run_step_by_step_has_to_show_the_same_products() -> None:
    this = run_of(FakeModel(floor=1), "gemm", policy="sequential", row_class=RowClass(1, 1))
    ids, live = generated(this)
    assert check(this, ids, live) == live
    assert live.observed is not None
    assert live.observed.trace is not None
    groups = bytearray(live.observed.trace.groups)
    groups[-32] ^= 1  # the sign of a first element
    trace = replace(live.observed.trace, groups=bytes(groups))
    other = replace(live, observed=replace(live.observed, trace=trace))
    with pytest.raises(RunFailedError, match="another schedule or trace"):
        check(this, ids, other)
