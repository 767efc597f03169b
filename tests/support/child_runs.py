"""A declared run on the engine of tests.support.fake_engine, as an engine child would have it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tallystick.contracts.runtime import RowClass
from tallystick.evidence.adapter.nodes import ModelFigures
from tallystick.execution.child_run import ChildRun
from tallystick.execution.evidence import EvidencePlan
from tallystick.execution.jobs import EngineSetup
from tallystick.execution.prompt import Prompt
from tallystick.execution.session import Plan, Sampler
from tests.support.documents import example_run
from tests.support.fake_engine import FakeModel

CREDENTIAL = bytes(range(32))
_BLIND = example_run().blind


def child_run(
    model: FakeModel,
    prompt: tuple[int, ...],
    *parts: str,
    policy: str = "row-class",
    row_class: RowClass | None = None,
    max_tokens: int = 4,
    blind: str = _BLIND,
) -> ChildRun:
    """Return a greedy run that asks for the evidence ``parts``."""
    engine: Any = SimpleNamespace(model=model)
    run = replace(example_run(), policy=policy, evidence=parts, blind=blind, max_tokens=max_tokens)
    figures = ModelFigures(model.layers, model.experts, model.used if model.experts else 0)
    return ChildRun(
        engine,
        EngineSetup("", "", "", None, 1),
        run,
        Prompt("", None, prompt),
        Plan(policy, row_class or RowClass(2, 8), 256, 1),
        Sampler(0, None),
        EvidencePlan(run, len(prompt), figures, CREDENTIAL),
        0,
    )
