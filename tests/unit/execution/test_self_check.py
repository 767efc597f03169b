"""The self-check before signing: a run that does not hold is a failed run, and no verdict."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tallystick.contracts.runtime import RowClass
from tallystick.errors import RunFailedError
from tallystick.evidence.state_tree import StateTree
from tallystick.execution.child import _self_check
from tallystick.execution.session import Execution, Plan, Sampler, generate
from tests.support.documents import example_run
from tests.support.fake_engine import FakeModel

PROMPT = (3, 1, 4)
RUN = replace(example_run(), policy="row-class", max_tokens=4)
SAMPLER = Sampler(0, None)
PLAN = Plan("row-class", RowClass(2, 8), 256, 1)


def generated(model: FakeModel, blind: str = RUN.blind) -> tuple[tuple[int, ...], StateTree]:
    tree = StateTree(bytes.fromhex(blind), model.layers, len(PROMPT))
    execution = Execution(model, PLAN, len(PROMPT), tree)
    ids = generate(
        execution, model.is_end, PLAN, PROMPT, 4, SAMPLER, lambda *_: None, lambda *_: None
    )
    return ids, tree


def check(model: FakeModel, ids: tuple[int, ...], tree: StateTree) -> None:
    engine: Any = SimpleNamespace(model=model)
    reporter: Any = SimpleNamespace(progress=lambda _what: lambda *_: None)
    _self_check(engine, PLAN, RUN, PROMPT, ids, SAMPLER, tree, reporter)


def test_an_honest_run_passes() -> None:
    model = FakeModel()
    check(model, *generated(model))


def test_a_token_that_does_not_follow_fails_the_run() -> None:
    model = FakeModel()
    ids, tree = generated(model)
    with pytest.raises(RunFailedError, match="does not follow from its own logits") as caught:
        check(model, (*ids[:-1], (ids[-1] + 1) % model.vocabulary), tree)
    assert caught.value.found == "generated token 3"


def test_another_state_root_fails_the_run() -> None:
    model = FakeModel()
    ids, _ = generated(model)
    with pytest.raises(RunFailedError, match="another state root"):
        check(model, ids, generated(model, "00" * 32)[1])
