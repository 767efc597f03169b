"""The self-check before signing: a run that does not hold is a failed run, and no verdict."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tallystick.contracts.runtime import RowClass
from tallystick.errors import RunFailedError
from tallystick.execution.child_run import ChildRun
from tallystick.execution.evidence import EvidencePlan, Experts, Gathered, merged, require_equal
from tallystick.execution.generate_child import seal
from tallystick.execution.jobs import EngineSetup
from tallystick.execution.prompt import Prompt
from tallystick.execution.session import Execution, Plan, Sampler, generate
from tests.support.documents import example_run
from tests.support.fake_engine import FakeModel

PROMPT = (3, 1, 4)
RUN = replace(example_run(), policy="row-class", max_tokens=4)
PLAN = Plan("row-class", RowClass(2, 8), 256, 1)
CREDENTIAL = bytes(range(32))


def run_of(model: FakeModel, *parts: str, blind: str = RUN.blind) -> ChildRun:
    engine: Any = SimpleNamespace(model=model)
    run = replace(RUN, evidence=parts or ("states",), blind=blind)
    experts = Experts(model.experts, model.used) if model.experts else None
    return ChildRun(
        engine,
        EngineSetup("", "", "", None, 1),
        run,
        Prompt("", None, PROMPT),
        PLAN,
        Sampler(0, None),
        EvidencePlan(run, len(PROMPT), model.layers, experts, CREDENTIAL),
        0,
    )


def generated(this: ChildRun) -> tuple[tuple[int, ...], Gathered]:
    evidence = this.evidence.live()
    model: Any = this.engine.model
    execution = Execution(model, PLAN, len(PROMPT), evidence)
    ids = generate(
        execution, model.is_end, PLAN, PROMPT, 4, this.sampler, lambda *_: None, lambda *_: None
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
    with pytest.raises(RunFailedError, match="another expert routes"):
        check(this, ids, replace(live, routes=other))
