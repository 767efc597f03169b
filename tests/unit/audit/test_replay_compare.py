"""What a replay names first: each kind of difference, from made-up results."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tallystick.audit.compare import (
    ClaimedEvidence,
    Difference,
    compare,
    exact_positions,
    verdict,
)
from tallystick.audit.replay import ReplayReport
from tallystick.contracts.generation import Generation, HostFacts, Timings
from tallystick.contracts.opening import Opening
from tallystick.contracts.receipt import Core, Evidence
from tallystick.contracts.residency import NO_RING
from tallystick.engine.port import GraphNode, GraphTensor, NodeReading
from tallystick.evidence.adapter.collector import Collector, StepInfo
from tallystick.evidence.adapter.nodes import ModelFigures
from tallystick.evidence.observed import ObservedEvidence, encode_observed
from tallystick.evidence.routes import ExpertRoutes, encode_routes
from tallystick.evidence.schedule import SchedulePhase
from tallystick.evidence.state_tree import leaf_count, leaf_index
from tests.support.documents import digest_of, example_core, example_opening
from tests.support.sets import make_platform, no_evidence

P, G, LAYERS = 4, 3, 3
CHECKS = bytes(range(4 * leaf_count(P, G, LAYERS)))
ROOT = digest_of("states")
NOTHING = ClaimedEvidence(None, None)
Case = tuple[Core, Opening, Generation]


def honest() -> Case:
    core = replace(
        example_core(),
        evidence=Evidence("state_committed", ROOT, leaf_count(P, G, LAYERS), LAYERS, None, None),
    )
    opening = replace(example_opening(), leaf_checks=base64.b64encode(CHECKS).decode())
    found = Generation(
        rendered_prompt=opening.rendered_prompt,
        chat_template_digest=core.chat_template_digest,
        prompt_ids=opening.prompt_ids,
        sampled_ids=opening.sampled_ids,
        output=opening.output,
        stop_reason=core.stop_reason,
        context_tokens=core.context_tokens,
        layers=LAYERS,
        state_root=ROOT,
        state_leaves=leaf_count(P, G, LAYERS),
        leaf_checks=opening.leaf_checks,
        **no_evidence(),
        self_check="not_run",
        timings=Timings(1, 2, 0, 0),
        rss_before=1000,
        residency=NO_RING,
        host=HostFacts("cpu", "avx2", "glibc", "Linux", "3.11", 2, "compiled", "none"),
        platform=make_platform(),
    )
    return core, opening, found


def changed(found: Generation, *leaves: int) -> Generation:
    """Return ``found`` with another root, and other checks at ``leaves``."""
    checks = bytearray(CHECKS)
    for leaf in set(leaves):
        checks[4 * leaf + 2] ^= 1
    return replace(
        found,
        state_root=digest_of("other states"),
        leaf_checks=base64.b64encode(bytes(checks)).decode(),
    )


def leaf(position: int, layer: int) -> int:
    return leaf_index(position, layer, P, LAYERS)


# In the order in which compare looks: each case also has every later kind of difference.
KINDS: tuple[tuple[str, Callable[[Generation], Generation]], ...] = (
    ("renders another prompt", lambda f: replace(f, rendered_prompt="xyzzy")),
    ("another chat template", lambda f: replace(f, chat_template_digest=digest_of("x"))),
    ("another token at position 2", lambda f: replace(f, prompt_ids=(1, 2, 9, 4))),
    ("has 4 layers, the receipt says 3", lambda f: replace(f, layers=4)),
    (
        "opens a context of 768 tokens, the receipt says 512",
        lambda f: replace(f, context_tokens=768),
    ),
    ("generated token 1 does not follow", lambda f: replace(f, sampled_ids=(5, 9, 7))),
    ("the state root differs", lambda f: replace(f, state_root=digest_of("y"))),
    ("output bytes", lambda f: replace(f, output="c2V=")),
    ("stops by end_of_generation", lambda f: replace(f, stop_reason="end_of_generation")),
)


def test_equal_results_do_not_differ() -> None:
    core, opening, found = honest()

    assert compare(core, opening, found, NOTHING) is None
    assert exact_positions(core, opening, found) == G


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_each_kind_of_difference_is_named(kind: int) -> None:
    core, opening, found = honest()
    words, change = KINDS[kind]
    difference = compare(core, opening, change(found), NOTHING)

    assert difference is not None
    assert words in str(difference)


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_the_first_kind_is_named_where_several_differ(kind: int) -> None:
    core, opening, found = honest()
    for _, change in KINDS[kind:]:
        found = change(found)
    difference = compare(core, opening, found, NOTHING)

    assert difference is not None
    assert KINDS[kind][0] in str(difference)


@pytest.mark.parametrize(
    ("position", "layer", "name"),
    [
        (0, 0, "position 0, layer 0 of 3"),
        (2, 1, "position 2, layer 1 of 3"),
        (3, 2, "position 3, layer 2 of 3"),
        (5, 3, "position 5, logits"),
    ],
)
def test_the_first_differing_state_is_located(position: int, layer: int, name: str) -> None:
    core, opening, found = honest()
    later = leaf(5, 3)
    difference = compare(core, opening, changed(found, leaf(position, layer), later), NOTHING)

    assert difference == Difference(f"the committed state differs first at {name}", position, layer)


@pytest.mark.parametrize(
    ("state_at", "token_at", "first"),
    [(3, 0, "state"), (4, 0, "token"), (2, 0, "state"), (5, 2, "state"), (5, 1, "token")],
)
def test_states_and_tokens_are_named_in_the_order_of_the_sequence(
    state_at: int, token_at: int, first: str
) -> None:
    """At one position the state comes first: it explains the token."""
    core, opening, found = honest()
    ids = list(found.sampled_ids)
    ids[token_at] += 1
    found = changed(replace(found, sampled_ids=tuple(ids)), leaf(state_at, 0))
    difference = compare(core, opening, found, NOTHING)

    assert difference is not None
    if first == "state":
        assert (difference.position, difference.layer) == (state_at, 0)
    else:
        assert (difference.position, difference.layer) == (P - 1 + token_at, None)
        assert f"generated token {token_at} " in str(difference)


def test_a_receipt_that_goes_on_after_the_end_is_named_as_that() -> None:
    core, opening, found = honest()
    found = replace(found, sampled_ids=(5,), stop_reason="end_of_generation")
    difference = compare(core, opening, found, NOTHING)

    assert difference is not None
    assert str(difference) == "the generation is over at generated token 0, and the receipt goes on"
    assert difference.position == P
    assert exact_positions(core, opening, found) == 1


def test_a_shorter_prompt_differs_where_it_ends() -> None:
    core, opening, found = honest()
    difference = compare(core, opening, replace(found, prompt_ids=(1, 2)), NOTHING)

    assert difference is not None
    assert difference.position == 2


def test_leaf_checks_alone_are_no_evidence() -> None:
    """Nobody signed them: with an equal root every state is equal, whatever they say."""
    core, opening, found = honest()
    forged = replace(opening, leaf_checks=base64.b64encode(bytes(len(CHECKS))).decode())

    assert compare(core, forged, found, NOTHING) is None
    assert exact_positions(core, forged, found) == G


def test_another_root_is_a_difference_even_when_the_leaf_checks_agree() -> None:
    core, opening, found = honest()
    found = changed(found)
    difference = compare(core, opening, found, NOTHING)

    assert difference == Difference(
        "the state root differs, and the opening's leaf checks do not show where", None, None
    )
    assert exact_positions(core, opening, found) == 0


@pytest.mark.parametrize(
    ("leaves", "exact"),
    [
        ((leaf(0, 0),), 3),  # a prompt position is no generated one
        ((leaf(3, 0),), 2),
        ((leaf(3, 3), leaf(5, 2)), 1),
        ((leaf(3, 3), leaf(4, 0), leaf(5, 3)), 0),
    ],
)
def test_exact_positions_are_those_whose_every_state_is_equal(
    leaves: tuple[int, ...], exact: int
) -> None:
    core, opening, found = honest()

    assert exact_positions(core, opening, changed(found, *leaves)) == exact


def test_a_replaced_token_is_not_exact() -> None:
    core, opening, found = honest()
    found = replace(found, sampled_ids=(5, 9, 7))

    assert exact_positions(core, opening, found) == 2


def test_without_committed_states_tokens_and_output_are_compared() -> None:
    core, opening, found = honest()
    core = replace(core, evidence=Evidence("none", None, 0, LAYERS, None, None))
    opening = replace(opening, leaf_checks="")
    found = replace(found, state_root=None, state_leaves=0, leaf_checks="")

    assert compare(core, opening, found, NOTHING) is None
    assert exact_positions(core, opening, found) == G
    assert verdict(core.evidence.state_root, found.state_root) == "not_committed"
    difference = compare(core, opening, replace(found, sampled_ids=(5, 6, 8)), NOTHING)
    assert difference is not None
    assert difference.position == 5


def test_no_difference_shows_a_private_value() -> None:
    core, opening, found = honest()
    opening = replace(opening, sampled_ids=(577, 688, 799))
    found = replace(found, sampled_ids=(577, 688, 799))
    for _, change in KINDS:
        text = str(compare(core, opening, change(found), NOTHING))
        assert not any(value in text for value in ("xyzzy", "mer", "577", "688", "799", "c2V"))


def test_a_report_ends_with_the_verdict() -> None:
    report = ReplayReport(
        receipt_digest=digest_of("receipt"),
        core_digest=digest_of("core"),
        sampled=3,
        exact=3,
        rows=6,
        states="equal",
        worker_states="equal",
        routes="not_committed",
        schedule="not_committed",
        products="not_committed",
        signature="not_checked",
        difference=None,
        replay_ns=1,
    )

    assert (report.verified, report.exit_code) == (True, 0)
    lie = replace(report, difference=Difference("x", None, None))
    assert (lie.verified, lie.exit_code) == (False, 1)


def test_a_root_is_equal_or_differs_or_was_not_committed_to() -> None:
    assert verdict(ROOT, ROOT) == "equal"
    assert verdict(ROOT, digest_of("y")) == verdict(ROOT, None) == "differ"
    assert verdict(None, ROOT) == "not_committed"


ROUTE_LAYERS, USED = 3, 2
WORKER = digest_of("worker")


def routes_of(rows: int, *changed_rows: int) -> ExpertRoutes:
    ids = [(row % 7, 7 + (row in changed_rows)) for row in range(rows)]
    data = b"".join(struct.pack("<2I", *row) for row in ids)
    return ExpertRoutes(ROUTE_LAYERS, 9, USED, rows, data)


def observed_of(
    steps: int = 3, *, changed_product: int | None = None, other_at: int | None = None
) -> ObservedEvidence:
    """Two products and a sum a step; the sum of step ``other_at`` is a larger one."""
    collector = Collector(ModelFigures(ROUTE_LAYERS, 0, 0), "products")
    for step in range(steps):
        products = [
            NodeReading(product(layer), struct.pack("<64f", *[1.0 + layer] * 64))
            for layer in range(2)
        ]
        if changed_product is not None and changed_product // 2 == step:
            layer = changed_product % 2
            products[layer] = NodeReading(product(layer), struct.pack("<64f", *[-9.0] * 64))
        total = GraphTensor("norm-2", "ADD", "f32", (64 + (step == other_at), 1, 1, 1), 256)
        where = StepInfo(SchedulePhase.SEALING, step, 2 * step, 2)
        collector.step(where, [*products, NodeReading(GraphNode(total, ()), None)])
    return collector.finish().evidence


def product(layer: int) -> GraphNode:
    weights = GraphTensor("w", "NONE", "f32", (8, 32, 1, 1), 0)
    inputs = GraphTensor("x", "NONE", "f32", (8, 2, 1, 1), 0)
    made = GraphTensor(f"out-{layer}", "MUL_MAT", "f32", (32, 2, 1, 1), 256)
    return GraphNode(made, (weights, inputs))


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def with_evidence(
    routes: ExpertRoutes | None = None, observed: ObservedEvidence | None = None
) -> tuple[Case, ClaimedEvidence]:
    """An honest case in which everything is committed to."""
    core, opening, found = honest()
    routes, observed = routes or routes_of(15), observed or observed_of()
    roots: dict[str, Any] = {
        "expert_route_root": digest_of("routes"),
        "gemm_trace_root": digest_of("trace"),
    }
    core = replace(core, evidence=replace(core.evidence, **roots))
    found = replace(
        found,
        **roots,
        routes=text(encode_routes(routes)),
        schedule_commitment=digest_of("schedule"),
        observed_evidence=text(encode_observed(observed)),
        worker_state_root=WORKER,
    )
    return (core, opening, found), ClaimedEvidence(WORKER, digest_of("schedule"), routes, observed)


def difference_of(case: Case, claimed: ClaimedEvidence, **found: str | None) -> Difference:
    core, opening, honest_run = case
    difference = compare(core, opening, replace(honest_run, **found), claimed)  # type: ignore[arg-type]
    assert difference is not None
    return difference


def test_equal_evidence_does_not_differ() -> None:
    (core, opening, found), claimed = with_evidence()
    assert compare(core, opening, found, claimed) is None


# P is 4: in rows of positions 0 to 2 the last of three layers is missing.
@pytest.mark.parametrize(
    ("row", "policy", "position", "layer"),
    [
        (0, "row-class", 0, 0),
        (5, "row-class", 2, 1),
        (6, "row-class", 3, 0),
        (8, "row-class", 3, 2),
        (14, "row-class", 5, 2),
        (5, "sequential", 1, 2),
        (14, "sequential", 4, 2),
    ],
)
def test_the_first_differing_choice_of_experts_is_located(
    row: int, policy: str, position: int, layer: int
) -> None:
    (core, opening, found), claimed = with_evidence()
    core = replace(core, runtime_class=replace(core.runtime_class, policy=policy))
    other = text(encode_routes(routes_of(15, row, 14)))
    difference = difference_of(
        (core, opening, found), claimed, expert_route_root=digest_of("o"), routes=other
    )

    what = f"the chosen experts differ first at position {position}, layer {layer} of 3"
    assert difference == Difference(what, position, layer)


def test_the_first_differing_product_is_located() -> None:
    case, claimed = with_evidence()
    other = text(encode_observed(observed_of(changed_product=3)))
    changes = {"gemm_trace_root": digest_of("o"), "observed_evidence": other}
    difference = difference_of(case, claimed, **changes)

    what = "matrix product 3 differs, operation 1 of sealing step 1, layer 1"
    assert difference == Difference(what, 2, 1)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (observed_of(2), "only one has sealing step 2"),
        (observed_of(4), "only one has sealing step 3"),
        (observed_of(other_at=1), "differs first at operation 2 of sealing step 1"),
        (observed_of(), "the private part does not show where"),
    ],
)
def test_the_first_differing_operation_is_located(other: ObservedEvidence, words: str) -> None:
    case, claimed = with_evidence()
    changes = {
        "schedule_commitment": digest_of("o"),
        "observed_evidence": text(encode_observed(other)),
    }
    assert words in str(difference_of(case, claimed, **changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"expert_route_root": digest_of("o")}, "expert route root differs, and the private part"),
        ({"gemm_trace_root": digest_of("o")}, "trace of matrix products differs, and the private"),
        ({"worker_state_root": digest_of("o")}, "computed for another worker"),
        ({"expert_route_root": None, "routes": ""}, "the receipt has expert routes, and this run"),
        (
            {"schedule_commitment": None, "observed_evidence": ""},
            "the receipt has an observed schedule, and this run",
        ),
    ],
)
def test_a_root_that_differs_alone_is_named(changes: dict[str, str | None], words: str) -> None:
    case, claimed = with_evidence()
    assert words in str(difference_of(case, claimed, **changes))


def test_evidence_that_a_receipt_leaves_out_is_a_difference() -> None:
    (core, opening, found), claimed = with_evidence()
    less = replace(core, evidence=replace(core.evidence, expert_route_root=None))
    difference = difference_of((less, opening, found), replace(claimed, routes=None))
    assert "has expert routes, and the receipt has none" in str(difference)
    nothing = replace(claimed, schedule_commitment=None, observed=None)
    difference = difference_of((core, opening, found), nothing)
    assert "has an observed schedule, and the receipt has none" in str(difference)


def test_states_and_tokens_come_before_the_rest_and_output_after() -> None:
    (core, opening, found), claimed = with_evidence()
    worse = replace(found, expert_route_root=digest_of("o"), output="c2V=")
    assert "expert route" in str(compare(core, opening, worse, claimed))
    worse = replace(worse, state_root=digest_of("o"))
    assert "state root" in str(compare(core, opening, worse, claimed))
