"""What a replay names first: each kind of difference, from made-up results."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace

import pytest

from tallystick.audit import replay
from tallystick.contracts.generation import Generation, HostFacts, Timings
from tallystick.contracts.opening import Opening
from tallystick.contracts.receipt import Core, Evidence
from tallystick.evidence.state_tree import leaf_count, leaf_index
from tests.support.documents import digest_of, example_core, example_opening
from tests.support.sets import make_platform, no_evidence

P, G, LAYERS = 4, 3, 3
CHECKS = bytes(range(4 * leaf_count(P, G, LAYERS)))
ROOT = digest_of("states")
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

    assert replay.compare(core, opening, found) is None
    assert replay._exact_positions(core, opening, found) == G


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_each_kind_of_difference_is_named(kind: int) -> None:
    core, opening, found = honest()
    words, change = KINDS[kind]
    difference = replay.compare(core, opening, change(found))

    assert difference is not None
    assert words in str(difference)


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_the_first_kind_is_named_where_several_differ(kind: int) -> None:
    core, opening, found = honest()
    for _, change in KINDS[kind:]:
        found = change(found)
    difference = replay.compare(core, opening, found)

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
    difference = replay.compare(core, opening, changed(found, leaf(position, layer), later))

    assert difference == replay.Difference(
        f"the committed state differs first at {name}", position, layer
    )


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
    difference = replay.compare(core, opening, found)

    assert difference is not None
    if first == "state":
        assert (difference.position, difference.layer) == (state_at, 0)
    else:
        assert (difference.position, difference.layer) == (P - 1 + token_at, None)
        assert f"generated token {token_at} " in str(difference)


def test_a_receipt_that_goes_on_after_the_end_is_named_as_that() -> None:
    core, opening, found = honest()
    found = replace(found, sampled_ids=(5,), stop_reason="end_of_generation")
    difference = replay.compare(core, opening, found)

    assert difference is not None
    assert str(difference) == "the generation is over at generated token 0, and the receipt goes on"
    assert difference.position == P
    assert replay._exact_positions(core, opening, found) == 1


def test_a_shorter_prompt_differs_where_it_ends() -> None:
    core, opening, found = honest()
    difference = replay.compare(core, opening, replace(found, prompt_ids=(1, 2)))

    assert difference is not None
    assert difference.position == 2


def test_leaf_checks_alone_are_no_evidence() -> None:
    """Nobody signed them: with an equal root every state is equal, whatever they say."""
    core, opening, found = honest()
    forged = replace(opening, leaf_checks=base64.b64encode(bytes(len(CHECKS))).decode())

    assert replay.compare(core, forged, found) is None
    assert replay._exact_positions(core, forged, found) == G


def test_another_root_is_a_difference_even_when_the_leaf_checks_agree() -> None:
    core, opening, found = honest()
    found = changed(found)
    difference = replay.compare(core, opening, found)

    assert difference == replay.Difference(
        "the state root differs, and the opening's leaf checks do not show where", None, None
    )
    assert replay._exact_positions(core, opening, found) == 0


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

    assert replay._exact_positions(core, opening, changed(found, *leaves)) == exact


def test_a_replaced_token_is_not_exact() -> None:
    core, opening, found = honest()
    found = replace(found, sampled_ids=(5, 9, 7))

    assert replay._exact_positions(core, opening, found) == 2


def test_without_committed_states_tokens_and_output_are_compared() -> None:
    core, opening, found = honest()
    core = replace(core, evidence=Evidence("none", None, 0, LAYERS, None, None))
    opening = replace(opening, leaf_checks="")
    found = replace(found, state_root=None, state_leaves=0, leaf_checks="")

    assert replay.compare(core, opening, found) is None
    assert replay._exact_positions(core, opening, found) == G
    assert replay._states(core, found) == "not_committed"
    difference = replay.compare(core, opening, replace(found, sampled_ids=(5, 6, 8)))
    assert difference is not None
    assert difference.position == 5


def test_no_difference_shows_a_private_value() -> None:
    core, opening, found = honest()
    opening = replace(opening, sampled_ids=(577, 688, 799))
    found = replace(found, sampled_ids=(577, 688, 799))
    for _, change in KINDS:
        text = str(replay.compare(core, opening, change(found)))
        assert not any(value in text for value in ("xyzzy", "mer", "577", "688", "799", "c2V"))


def test_a_report_ends_with_the_verdict() -> None:
    report = replay.ReplayReport(
        receipt_digest=digest_of("receipt"),
        core_digest=digest_of("core"),
        sampled=3,
        exact=3,
        rows=6,
        states="equal",
        signature="not_checked",
        difference=None,
        replay_ns=1,
    )

    assert (report.verified, report.exit_code) == (True, 0)
    lie = replace(report, difference=replay.Difference("x", None, None))
    assert (lie.verified, lie.exit_code) == (False, 1)
