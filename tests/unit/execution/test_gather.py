"""Expert routes, schedules and traces of a run on the engine of tests.support.fake_engine."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.contracts.runtime import ROW_CLASS, SEQUENTIAL, RowClass
from tallystick.engine.port import NodeReading, Observation, RouteRows
from tallystick.errors import IncomparableError, RunFailedError
from tallystick.evidence.adapter.nodes import ModelFigures
from tallystick.evidence.gemm_trace import TRACE_SCHEME_LIVE, TRACE_SCHEME_SEALING
from tallystick.evidence.observer.sketch import sketch_bytes
from tallystick.evidence.routes import ExpertRoutes, route_rows
from tallystick.evidence.schedule import SchedulePhase
from tallystick.execution.evidence import Evidence, EvidencePlan, Gathered
from tallystick.execution.schedule import chunks, context_cells
from tallystick.execution.session import Execution, Plan, Sampler, generate, re_execute
from tests.support.documents import example_run
from tests.support.fake_engine import FakeModel, hash_of, words

PROMPT = (3, 1, 4, 1, 5, 9, 2)
GREEDY = Sampler(0, None)
PARTS = ("states", "gemm")


def plan_of(row_class: RowClass, policy: str = ROW_CLASS) -> Plan:
    return Plan(policy, row_class, context_cells(40, 40, row_class), threads=1)


def evidence_of(
    model: FakeModel, policy: str, parts: tuple[str, ...] = PARTS, prompt: tuple[int, ...] = PROMPT
) -> EvidencePlan:
    run = replace(example_run(), policy=policy, evidence=parts)
    used = model.used if model.experts else 0
    figures = ModelFigures(model.layers, model.experts, used)
    return EvidencePlan(run, len(prompt), figures, bytes(range(32)))


def generated(
    model: FakeModel,
    plan: Plan,
    evidence: Evidence,
    prompt: tuple[int, ...] = PROMPT,
    limit: int = 6,
) -> tuple[tuple[int, ...], Gathered]:
    execution = Execution(model, plan, len(prompt), evidence)
    ids = generate(
        execution, model.is_end, plan, prompt, limit, GREEDY, lambda *_: None, lambda *_: None
    )
    return ids, evidence.finish()


def passed(
    model: FakeModel,
    plan: Plan,
    evidence: Evidence,
    ids: tuple[int, ...],
    prompt: tuple[int, ...] = PROMPT,
) -> Gathered:
    execution = Execution(model, plan, len(prompt), evidence)
    assert re_execute(execution, plan, prompt, ids, GREEDY, lambda *_: None) == ids
    return evidence.finish()


def by_hand(model: FakeModel, tokens: tuple[int, ...], last_from: int) -> bytes:
    """The rows of the specification, from the fake's rule alone."""
    ids: list[int] = []
    for position in range(len(tokens)):
        for layer in range(model.layers):
            if layer < model.layers - 1 or position >= last_from:
                first = hash_of(layer, tokens[: position + 1])
                ids += [(first + i) % model.experts for i in range(model.used)]
    return struct.pack(f"<{len(ids)}I", *ids)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 10), min_size=1, max_size=20),
    st.integers(1, 10),
    st.integers(1, 4),
    st.integers(2, 4),
    st.integers(2, 4),
    st.sampled_from(["output rows", "every row"]),
    st.integers(1, 4),
)
def test_live_routes_are_those_of_a_pass_of_any_width(
    prompt: list[int],
    limit: int,
    floor: int,
    times: int,
    other_times: int,
    last_layer: str,
    layers: int,
) -> None:
    model = FakeModel(layers=layers, floor=floor, experts=12, used=3)
    model.last_layer = "every row" if last_layer == "every row" else "output rows"
    text = tuple(prompt)
    evidence = evidence_of(model, ROW_CLASS, ("states",), text)
    narrow = plan_of(RowClass(floor, times * floor))
    ids, live = generated(model, narrow, evidence.live(), text, limit)
    wide = plan_of(RowClass(floor, other_times * floor + 1))
    sealed = passed(model, wide, evidence.whole(), ids, text)

    assert live.routes is not None
    assert live.routes == sealed.routes
    assert live.routes.ids == by_hand(model, (*text, *ids[:-1]), len(text) - 1)
    rows = route_rows(layers, len(text), len(ids), last_from=len(text) - 1)
    assert live.routes == ExpertRoutes(layers, 12, 3, rows, live.routes.ids)


def test_sequential_routes_are_of_every_layer_at_every_position() -> None:
    model = FakeModel(floor=1, experts=12, used=3)
    plan = plan_of(RowClass(1, 1), SEQUENTIAL)
    evidence = evidence_of(model, SEQUENTIAL, ("gemm",))
    ids, live = generated(model, plan, evidence.live(), limit=2)

    assert live.routes is not None
    assert live.routes.rows == model.layers * (len(PROMPT) + 1)
    assert live.routes.ids == by_hand(model, (*PROMPT, ids[0]), 0)
    assert passed(model, plan, evidence.whole(), ids).routes == live.routes


def test_sequential_schedules_are_live_and_step_by_step() -> None:
    model = FakeModel(floor=1)
    plan = plan_of(RowClass(1, 1), SEQUENTIAL)
    evidence = evidence_of(model, SEQUENTIAL)
    ids, live = generated(model, plan, evidence.live(), limit=3)

    assert not evidence.sealed
    assert live.observed is not None
    assert live.observed.trace is not None
    steps = [(s.phase, s.number, s.first_position, s.tokens) for s in live.observed.schedule.steps]
    assert steps == [
        *((SchedulePhase.PREFILL, i, i, 1) for i in range(7)),
        *((SchedulePhase.DECODE, i, 7 + i, 1) for i in range(2)),
    ]
    assert live.observed.schedule.events == 9 * 6
    assert live.observed.trace.scheme == TRACE_SCHEME_LIVE
    assert live.observed.trace_events == 9 * 3
    tokens = (*PROMPT, *ids[:-1])
    sketches = [
        sketch_bytes(words(4, "product", layer, [tokens[: position + 1]]))
        for position in range(9)
        for layer in range(3)
    ]
    assert [live.observed.trace.groups[i * 36 + 4 : i * 36 + 36] for i in range(27)] == sketches
    assert passed(model, plan, evidence.whole(), ids).observed == live.observed


@pytest.mark.parametrize("limit", [1, 2, 6])
@pytest.mark.parametrize("top", [4, 8, 64])
def test_row_class_schedules_come_from_the_pass_in_canonical_chunks(limit: int, top: int) -> None:
    model = FakeModel(floor=2)
    plan = plan_of(RowClass(2, top))
    evidence = evidence_of(model, ROW_CLASS)
    ids, live = generated(model, plan, evidence.live(), limit=limit)
    sealed = passed(model, plan, evidence.whole(), ids)

    assert evidence.sealed
    assert live.observed is None
    assert sealed.observed is not None
    assert sealed.observed.trace is not None
    expected = list(chunks(len(PROMPT) + len(ids) - 1, plan.row_class))
    assert [
        (s.phase, s.number, s.first_position, s.tokens) for s in sealed.observed.schedule.steps
    ] == [(SchedulePhase.SEALING, i, c.first, c.rows) for i, c in enumerate(expected)]
    assert sealed.observed.trace.scheme == TRACE_SCHEME_SEALING
    assert sealed.observed.trace_events == 3 * len(expected)


def test_a_padded_step_is_of_one_token_and_its_products_have_its_scratch_rows() -> None:
    model = FakeModel(floor=4)
    plan = plan_of(RowClass(4, 8))
    evidence = evidence_of(model, ROW_CLASS, ("graph",), (3,))
    sealed = passed(model, plan, evidence.whole(), (generated(
        model, plan, evidence.live(), (3,), 1)[0]), (3,))  # fmt: skip

    assert sealed.observed is not None
    (step,) = sealed.observed.schedule.steps
    assert step.tokens == 1
    assert "n=4" in str(sealed.observed.schedule.operations[0].operation)


@pytest.mark.parametrize(
    ("parts", "live", "whole"),
    [
        ((), "---", "---"),
        (("states",), "sr-", "sr-"),
        (("graph",), "---", "--n"),
        (("gemm",), "---", "-rp"),
        (("states", "graph"), "sr-", "srn"),
        (("states", "gemm"), "sr-", "srp"),
        (("graph", "gemm"), "---", "-rp"),
        (("states", "graph", "gemm"), "sr-", "srp"),
    ],
)
def test_what_is_gathered_when(parts: tuple[str, ...], live: str, whole: str) -> None:
    def letters(evidence: Evidence) -> str:
        watch = evidence.watch
        return (
            ("s" if watch.rows == "layers" else "-")
            + ("r" if watch.routes == "experts" else "-")
            + {"none": "-", "nodes": "n", "products": "p"}[watch.graph]
        )

    model = FakeModel(experts=12)
    batched, stepwise = (evidence_of(model, policy, parts) for policy in (ROW_CLASS, SEQUENTIAL))
    assert (letters(batched.live()), letters(batched.whole())) == (live, whole)
    assert letters(stepwise.live()) == letters(stepwise.whole()) == whole
    assert batched.sealed == (whole[2] != "-")
    assert not stepwise.sealed
    dense = evidence_of(FakeModel(), ROW_CLASS, parts)
    assert letters(dense.whole()) == whole.replace("r", "-")


def of_routes(change: Callable[[list[RouteRows]], list[RouteRows]]) -> FakeModel:
    def shown(seen: Observation) -> Observation:
        return replace(seen, routes=change(list(seen.routes)))

    return FakeModel(experts=12, used=3, shown=shown)


@pytest.mark.parametrize(
    "change",
    [
        lambda routes: routes[1:],
        lambda routes: routes[:1] + routes[2:],
        lambda routes: [],
        lambda routes: [routes[0], *routes],
        lambda routes: [*routes, routes[-1]],
        lambda routes: [routes[1], routes[0], routes[2]],
        lambda routes: [replace(route, experts=11) for route in routes],
        lambda routes: [replace(route, used=2) for route in routes],
    ],
)
def test_a_graph_without_one_choice_a_layer_is_incomparable(
    change: Callable[[list[RouteRows]], list[RouteRows]],
) -> None:
    model = of_routes(change)
    evidence = evidence_of(model, ROW_CLASS, ("states",))
    with pytest.raises(IncomparableError, match="does not show the chosen experts"):
        generated(model, plan_of(RowClass(2, 16)), evidence.live())


def fewer(route: RouteRows) -> RouteRows:
    return replace(route, rows=route.rows - 1, data=route.data[: (route.rows - 1) * route.used * 4])


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_layer_with_too_few_choices_fails_the_run(layer: int) -> None:
    model = of_routes(lambda routes: [fewer(r) if r.layer == layer else r for r in routes])
    model.last_layer = "every row"
    evidence = evidence_of(model, ROW_CLASS, ("states",))
    with pytest.raises(RunFailedError, match="rows"):
        generated(model, plan_of(RowClass(2, 16)), evidence.live())


def test_an_expert_that_cannot_be_fails_the_run() -> None:
    def beyond(route: RouteRows) -> RouteRows:
        return replace(route, data=memoryview(struct.pack("<i", 12) + bytes(route.data[4:])))

    model = of_routes(lambda routes: [beyond(route) for route in routes])
    evidence = evidence_of(model, ROW_CLASS, ("states",))
    with pytest.raises(RunFailedError, match="does not exist"):
        generated(model, plan_of(RowClass(2, 16)), evidence.live())


def of_nodes(change: Callable[[list[NodeReading]], list[NodeReading]]) -> FakeModel:
    def shown(seen: Observation) -> Observation:
        return replace(seen, nodes=change(list(seen.nodes)))

    return FakeModel(floor=1, shown=shown)


def unknown(reading: NodeReading) -> NodeReading:
    node = reading.node
    tensor = replace(node.tensor, op="FLASH_ATTN_EXT")
    return (
        replace(reading, node=replace(node, tensor=tensor)) if node.tensor.op == "ADD" else reading
    )


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda nodes: [unknown(n) for n in nodes], IncomparableError, "without a canonical one"),
        (lambda nodes: [replace(n, data=None) for n in nodes], RunFailedError, "not read"),
        (lambda nodes: [replace(nodes[0], data=None), *nodes[1:]], RunFailedError, "not read"),
        (lambda nodes: [], IncomparableError, "none that evidence is defined for"),
    ],
)
def test_a_product_that_is_not_read_and_a_node_without_a_meaning_are_no_gap(
    change: Callable[[list[NodeReading]], list[NodeReading]], error: type[Exception], match: str
) -> None:
    model = of_nodes(change)
    evidence = evidence_of(model, SEQUENTIAL)
    with pytest.raises(error, match=match):
        generated(model, plan_of(RowClass(1, 1), SEQUENTIAL), evidence.live(), limit=2)


@pytest.mark.parametrize("policy", [ROW_CLASS, SEQUENTIAL])
def test_evidence_covers_the_whole_run_and_nothing_else(policy: str) -> None:
    floor = 1 if policy == SEQUENTIAL else 2
    model = FakeModel(floor=floor, experts=12)
    plan = plan_of(RowClass(1, 1) if policy == SEQUENTIAL else RowClass(2, 8), policy)
    evidence = evidence_of(model, policy)
    ids, _ = generated(model, plan, evidence.live(), limit=4)
    gathered = passed(model, plan, evidence.whole(), ids)

    evidence.require_whole(gathered, 4)
    for part, name in (
        (Gathered(tree=gathered.tree), "rows of states"),
        (Gathered(routes=gathered.routes), "expert routes"),
        (Gathered(observed=gathered.observed), "observed positions"),
    ):
        evidence.require_whole(part, 4)
        for other in (3, 5):
            with pytest.raises(RunFailedError, match=name):
                evidence.require_whole(part, other)
