"""Generation and re-execution on the engine of tests.support.fake_engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.contracts.runtime import ROW_CLASS, SEQUENTIAL, RowClass
from tallystick.engine.port import LayerRows
from tallystick.errors import IncomparableError, RunFailedError
from tallystick.evidence.state_tree import StateTree, leaf_count, row_digests
from tallystick.execution.evidence import Evidence
from tallystick.execution.schedule import context_cells
from tallystick.execution.session import Execution, Plan, Sampler, generate, re_execute
from tests.support.fake_engine import FakeModel, Records, words

BLIND = bytes(range(32))
GREEDY = Sampler(0, None)
PROMPT = (3, 1, 4, 1, 5, 9, 2)


def plan_of(row_class: RowClass, policy: str = ROW_CLASS) -> Plan:
    return Plan(policy, row_class, context_cells(40, 40, row_class), threads=2)


def generated(
    model: FakeModel,
    plan: Plan,
    prompt: tuple[int, ...] = PROMPT,
    limit: int = 6,
    sampler: Sampler = GREEDY,
) -> tuple[tuple[int, ...], StateTree]:
    tree = StateTree(BLIND, model.layers, len(prompt))
    execution = Execution(model, plan, len(prompt), Evidence(tree))
    told: list[tuple[int, int]] = []
    ids = generate(
        execution,
        model.is_end,
        plan,
        prompt,
        limit,
        sampler,
        lambda index, token: told.append((index, token)),
        lambda _done, _total: None,
    )
    execution.close()
    assert told == list(enumerate(ids))
    return ids, tree


def passed(
    model: FakeModel,
    plan: Plan,
    claimed: tuple[int, ...],
    prompt: tuple[int, ...] = PROMPT,
    sampler: Sampler = GREEDY,
) -> tuple[tuple[int, ...], StateTree]:
    tree = StateTree(BLIND, model.layers, len(prompt))
    execution = Execution(model, plan, len(prompt), Evidence(tree))
    told: list[tuple[int, int]] = []
    ids = re_execute(
        execution, plan, prompt, claimed, sampler, lambda done, total: told.append((done, total))
    )
    execution.close()
    rows = len(prompt) + len(claimed) - 1
    assert told[-1] == (rows, rows)
    return ids, tree


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 10), min_size=1, max_size=20),
    st.integers(1, 10),
    st.integers(1, 4),
    st.integers(2, 4),
    st.integers(2, 4),
    st.sampled_from(["output rows", "every row"]),
    st.sampled_from([GREEDY, Sampler(9000, 7)]),
    st.integers(1, 4),
)
def test_a_generation_and_a_pass_of_any_width_give_one_tree(
    prompt: list[int],
    limit: int,
    floor: int,
    times: int,
    other_times: int,
    last_layer: str,
    sampler: Sampler,
    layers: int,
) -> None:
    model = FakeModel(layers=layers, floor=floor)
    model.last_layer = "every row" if last_layer == "every row" else "output rows"
    ids, live = generated(
        model, plan_of(RowClass(floor, times * floor)), tuple(prompt), limit, sampler
    )
    other = plan_of(RowClass(floor, other_times * floor + 1))
    derived, sealed = passed(model, other, ids, tuple(prompt), sampler)

    assert derived == ids
    assert sealed.root() == live.root()
    assert sealed.leaf_checks == live.leaf_checks
    assert live.count == sealed.count == leaf_count(len(prompt), len(ids), layers)
    assert all(context.closed for context in model.contexts)


def test_the_tree_is_that_of_the_rows_themselves() -> None:
    """By hand, from the engine's row function: no scratch row and no other class enters."""
    model = FakeModel(layers=2, floor=3)
    ids, live = generated(model, plan_of(RowClass(3, 6)), limit=4)
    tokens = (*PROMPT, *ids[:-1])
    tree = StateTree(BLIND, 2, len(PROMPT))
    for position in range(len(tokens)):
        history = tokens[: position + 1]
        due = position >= len(PROMPT) - 1
        tree.push_digests(
            position,
            1,
            [row_digests(words(4, 0, history, (3,)), 16)],
            row_digests(words(4, 1, history, (3, 3)) if due else b"", 16),
            row_digests(words(11, "logits", history, 3, 3) if due else b"", 44),
        )

    assert tree.root() == live.root()


def test_the_fake_engine_shows_a_broken_class() -> None:
    """Were the floor too low for the engine, generation and pass would differ: they do."""
    model = FakeModel(floor=4)
    ids, live = generated(model, plan_of(RowClass(2, 16)))
    _, sealed = passed(model, plan_of(RowClass(2, 16)), ids)

    assert sealed.root() != live.root()


def test_last_layer_rows_of_every_row_or_of_the_outputs_are_one_commitment() -> None:
    plan = plan_of(RowClass(2, 4))
    narrow, wide = FakeModel(), FakeModel(last_layer="every row")

    assert generated(narrow, plan)[1].root() == generated(wide, plan)[1].root()


def test_scratch_sequences_are_forgotten_after_each_step() -> None:
    model = FakeModel(floor=4)
    plan = plan_of(RowClass(4, 8))
    generated(model, plan, limit=5)

    # The fake refuses a scratch row at position 0 of a sequence that still has cells.
    steps = [batch for batch in model.contexts[0].batches if len(set(batch.sequences)) > 1]
    assert [batch.sequences for batch in steps] == [(0, 1, 2, 3)] * 4


def test_the_contexts_that_a_run_opens() -> None:
    model = FakeModel()
    row_class = RowClass(2, 512)
    plan = Plan(ROW_CLASS, row_class, 256, threads=3)
    Execution(model, plan, 1, Evidence())
    Execution(model, plan, 1, Evidence(StateTree(BLIND, 3, 1)))
    Execution(model, Plan(SEQUENTIAL, RowClass(1, 1), 4096, threads=3), 1, Evidence())

    plain, observed, sequential = model.contexts
    assert not plain.observed
    assert observed.observed
    assert sequential.observed  # what has no getter is seen in its graphs only
    assert plain.spec == observed.spec
    assert (plain.spec.cells, plain.spec.max_rows, plain.spec.sequences) == (256, 256, 2)
    assert plain.spec.threads == 3
    assert (sequential.spec.max_rows, sequential.spec.sequences, sequential.spec.threads) == (
        1,
        1,
        1,
    )


@pytest.mark.parametrize("with_tree", [True, False])
def test_sequential_runs_ask_for_every_row_one_at_a_time(with_tree: bool) -> None:
    model = FakeModel(floor=1)
    plan = Plan(SEQUENTIAL, RowClass(1, 1), 4096, threads=2)
    tree = StateTree(BLIND, 3, len(PROMPT)) if with_tree else None
    execution = Execution(model, plan, len(PROMPT), Evidence(tree))
    ids = generate(
        execution, model.is_end, plan, PROMPT, 2, GREEDY, lambda *_: None, lambda *_: None
    )

    batches = model.contexts[0].batches
    assert [batch.tokens for batch in batches] == [(token,) for token in (*PROMPT, ids[0])]
    assert all(batch.outputs == (True,) for batch in batches)
    if tree is not None:
        derived, again = passed(model, plan, ids)
        assert (derived, again.root()) == (ids, tree.root())


def test_a_generation_stops_at_its_limit_or_at_an_end() -> None:
    plan = plan_of(RowClass(2, 8))
    ids, _ = generated(FakeModel(), plan, limit=8)
    assert len(ids) == 8
    end = ids[3]
    ended, tree = generated(FakeModel(ends=frozenset({end})), plan, limit=8)

    assert ended == ids[: ids.index(end) + 1]
    assert tree.count == leaf_count(len(PROMPT), len(ended), 3)


def test_a_replaced_token_is_the_first_that_does_not_follow() -> None:
    plan = plan_of(RowClass(2, 8))
    model = FakeModel()
    ids, live = generated(model, plan, limit=8)
    for index in range(len(ids)):
        forged = (*ids[:index], (ids[index] + 1) % model.vocabulary, *ids[index + 1 :])
        derived, tree = passed(model, plan, forged)

        assert derived[: index + 1] == ids[: index + 1]
        assert derived[index] != forged[index]
        # The last token is never evaluated: only its own logits speak of it.
        assert (tree.root() == live.root()) == (index == len(ids) - 1)


def test_a_seeded_draw_takes_the_position_of_its_row() -> None:
    plan = plan_of(RowClass(2, 8))
    seen: list[int] = []

    class Recording(Sampler):
        def choose(self, logits: memoryview, position: int) -> int:
            seen.append(position)
            return super().choose(logits, position)

    ids, _ = generated(FakeModel(), plan, limit=4, sampler=Recording(10_000, 5))
    drawn = list(seen)
    seen.clear()
    passed(FakeModel(), plan, ids, sampler=Recording(10_000, 5))

    assert drawn == seen == [6, 7, 8, 9]


def drop_first(records: Records) -> Records:
    return records[1:]


def drop_middle(records: Records) -> Records:
    return [record for record in records if record.layer != 1]


def drop_all(_records: Records) -> Records:
    return []


def repeat(records: Records) -> Records:
    return [records[0], *records]


def swap(records: Records) -> Records:
    return [records[1], records[0], *records[2:]]


def renumber(records: Records) -> Records:
    return [replace(record, layer=record.layer + 1) for record in records]


def one_more(records: Records) -> Records:
    return [*records, replace(records[0], layer=3)]


@pytest.mark.parametrize(
    "damage", [drop_first, drop_middle, drop_all, repeat, swap, renumber, one_more]
)
def test_a_graph_that_does_not_show_each_layer_once_and_in_order_is_incomparable(
    damage: Callable[[Records], Records],
) -> None:
    with pytest.raises(IncomparableError, match="one output for each layer"):
        generated(FakeModel(damage=damage), plan_of(RowClass(2, 8)))


def test_a_last_layer_that_is_missing_where_outputs_were_asked_is_incomparable() -> None:
    def drop_last(records: Records) -> Records:
        return [record for record in records if record.layer != 2]

    # In chunks without outputs the last layer may be missing: only the last chunk has any.
    model = FakeModel(damage=drop_last)
    with pytest.raises(IncomparableError, match="one output for each layer"):
        generated(model, plan_of(RowClass(2, 4)))
    assert len(model.contexts[0].batches) == 2


def cut(record: LayerRows, rows: int) -> LayerRows:
    size = len(record.data) // record.rows
    return LayerRows(record.layer, rows, memoryview(bytes(record.data) * 2)[: rows * size])


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("change", [-1, 1, 2])
def test_a_layer_with_another_number_of_rows_fails_the_run(layer: int, change: int) -> None:
    def damage(records: Records) -> Records:
        return [cut(r, r.rows + change) if r.layer == layer else r for r in records]

    model = FakeModel(damage=damage, last_layer="every row")
    with pytest.raises(RunFailedError, match="rows"):
        generated(model, plan_of(RowClass(2, 16)))


def test_row_digests_of_the_fake_are_distinct() -> None:
    rows = [words(4, layer, history) for layer in range(3) for history in ((1,), (1, 2))]

    assert len({row_digests(row, 16)[0] for row in rows}) == 6
