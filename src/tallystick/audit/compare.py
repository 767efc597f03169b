"""What was claimed of a run against what was computed again: the first difference, by name.

The order is that of docs/spec/replay.md#what-is-compared. Roots decide; what opens them only says
where two of them differ.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final, Literal, TypeAlias

from tallystick.contracts.generation import Generation
from tallystick.contracts.opening import Opening
from tallystick.contracts.receipt import Core
from tallystick.evidence.gemm_trace import GROUP_BYTES, GemmTrace
from tallystick.evidence.observed import ObservedEvidence, decode_observed
from tallystick.evidence.routes import ExpertRoutes, decode_routes, last_layer_from
from tallystick.evidence.schedule import OperationSchedule, ScheduleStep
from tallystick.evidence.state_tree import first_difference, leaf_index, locate, row_name

_CHECK: Final = 4
_ID_BYTES: Final = 4

Verdict: TypeAlias = Literal["equal", "differ", "not_committed"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that differs. ``position`` counts tokens of the sequence from 0.

    ``layer`` is a layer number, or None when it is the token sampled there that differs.
    """

    what: str
    position: int | None
    layer: int | None

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True, slots=True)
class ClaimedEvidence:
    """What a compute receipt and its bundle claim beyond the core; None is what is not claimed.

    ``schedule_commitment`` is that of an observed schedule. ``routes`` and ``observed`` come from
    the bundle's parts: they say where something differs.
    """

    worker_state_root: str | None
    schedule_commitment: str | None
    routes: ExpertRoutes | None = field(default=None, repr=False)
    observed: ObservedEvidence | None = field(default=None, repr=False)


def verdict(claimed: str | None, found: str | None) -> Verdict:
    """Say of one root whether what was computed again gives it."""
    if claimed is None:
        return "not_committed"
    return "equal" if claimed == found else "differ"


def compare(
    core: Core, opening: Opening, found: Generation, claimed: ClaimedEvidence
) -> Difference | None:
    """Return the first difference between what was claimed and what was computed again."""
    request = _request(core, opening, found)
    if request is not None:
        return request
    candidates = [d for d in (_token(core, opening, found), _state(core, opening, found)) if d]
    if candidates:
        # A state that differs explains a token that differs at the same position.
        return min(candidates, key=lambda d: (d.position or 0, d.layer is None))
    if found.state_root != core.evidence.state_root:
        return Difference(
            "the state root differs, and the opening's leaf checks do not show where",
            None,
            None,
        )
    evidence = _evidence(core, found, claimed)
    if evidence is not None:
        return evidence
    if base64.b64decode(found.output) != base64.b64decode(opening.output):
        return Difference("the output bytes are not the pieces of the sampled tokens", None, None)
    if found.stop_reason != core.stop_reason:
        return Difference(
            f"the generation stops by {found.stop_reason}, the receipt says {core.stop_reason}",
            None,
            None,
        )
    return None


def _request(core: Core, opening: Opening, found: Generation) -> Difference | None:
    """Compare what the run began with."""
    if found.rendered_prompt != opening.rendered_prompt:
        return Difference("the chat template renders another prompt", None, None)
    if found.chat_template_digest != core.chat_template_digest:
        return Difference("the model carries another chat template", None, None)
    if found.prompt_ids != opening.prompt_ids:
        index = _first_unequal(found.prompt_ids, opening.prompt_ids)
        return Difference(f"the prompt has another token at position {index}", index, None)
    if found.layers != core.evidence.layers:
        return Difference(
            f"the model has {found.layers} layers, the receipt says {core.evidence.layers}",
            None,
            None,
        )
    if found.context_tokens != core.context_tokens:
        return Difference(
            f"the request opens a context of {found.context_tokens} tokens, "
            f"the receipt says {core.context_tokens}",
            None,
            None,
        )
    return None


def _token(core: Core, opening: Opening, found: Generation) -> Difference | None:
    if found.sampled_ids == opening.sampled_ids:
        return None
    index = _first_unequal(found.sampled_ids, opening.sampled_ids)
    position = core.prompt_tokens - 1 + index
    if index == len(found.sampled_ids):
        what = f"the generation is over at generated token {index - 1}, and the receipt goes on"
    else:
        what = f"generated token {index} does not follow from the logits at position {position}"
    return Difference(what, position, None)


def _state(core: Core, opening: Opening, found: Generation) -> Difference | None:
    """The root decides; the leaf checks, which nobody signed, only say where."""
    if found.state_root == core.evidence.state_root:
        return None
    index = first_difference(
        base64.b64decode(opening.leaf_checks), base64.b64decode(found.leaf_checks)
    )
    if index is None:
        return None
    layers = core.evidence.layers
    position, layer = locate(index, core.prompt_tokens, layers)
    return Difference(
        f"the committed state differs first at {row_name(position, layer, layers)}",
        position,
        layer,
    )


def _evidence(core: Core, found: Generation, claimed: ClaimedEvidence) -> Difference | None:
    """Compare the other roots: routes, schedule, trace, and the worker's own."""
    if found.expert_route_root != core.evidence.expert_route_root:
        last_from = last_layer_from(core.runtime_class.policy, core.prompt_tokens)
        return _routes(claimed.routes, found.routes, last_from)
    observed = _observed(found.observed_evidence)
    if found.schedule_commitment != claimed.schedule_commitment:
        return _schedule(claimed.observed, observed)
    if found.gemm_trace_root != core.evidence.gemm_trace_root:
        return _trace(claimed.observed, observed)
    if found.worker_state_root != claimed.worker_state_root:
        return Difference(
            "the worker's own state root is not that of these states under its credential: "
            "it was computed for another worker, or not from these states",
            None,
            None,
        )
    return None


def _routes(claimed: ExpertRoutes | None, found: str, last_from: int) -> Difference:
    """Name the first token and layer whose chosen experts differ."""
    computed = decode_routes(base64.b64decode(found)) if found else None
    if claimed is None or computed is None:
        return _only_one("expert routes", claimed is not None, computed is not None)
    if (claimed.layers, claimed.experts, claimed.used) != (
        computed.layers,
        computed.experts,
        computed.used,
    ):
        return Difference("the expert routes are of another number of experts", None, None)
    width = computed.used * _ID_BYTES
    row = _first_unequal_block(claimed.ids, computed.ids, width)
    if row is None:
        return _nowhere("expert route root")
    layers = computed.layers
    before = last_from * (layers - 1)
    if row < before:
        position, layer = divmod(row, layers - 1)
    else:
        position, layer = divmod(row - before, layers)
        position += last_from
    return Difference(
        f"the chosen experts differ first at position {position}, layer {layer} of {layers}",
        position,
        layer,
    )


def _schedule(claimed: ObservedEvidence | None, found: ObservedEvidence | None) -> Difference:
    """Name the first step and operation in which two schedules differ."""
    if claimed is None or found is None:
        return _only_one("an observed schedule", claimed is not None, found is not None)
    steps = zip_longest(claimed.schedule.steps, found.schedule.steps)
    for theirs, ours in steps:
        step = ours or theirs
        if theirs is None or ours is None:
            return Difference(
                f"the schedules have different numbers of steps: only one has {_named(step)}",
                step.first_position,
                None,
            )
        if _place(theirs) != _place(ours):
            return Difference(
                f"the schedule's steps differ first at {_named(ours)}", ours.first_position, None
            )
        event = _first_event(claimed.schedule, theirs, found.schedule, ours)
        if event is not None:
            return Difference(
                f"the schedule differs first at operation {event} of {_named(ours)}",
                ours.first_position,
                None,
            )
    return _nowhere("schedule's commitment")


def _trace(claimed: ObservedEvidence | None, found: ObservedEvidence | None) -> Difference:
    """Name the first matrix product whose sketches differ. The schedules are equal here."""
    theirs = None if claimed is None else claimed.trace
    ours = None if found is None else found.trace
    if theirs is None or ours is None or found is None:
        return _only_one("a trace of matrix products", theirs is not None, ours is not None)
    group = _first_unequal_block(theirs.groups, ours.groups, GROUP_BYTES)
    if group is None:
        return _nowhere("root of the trace of matrix products")
    if group >= ours.events:
        return Difference("the trace goes on behind the last matrix product", None, None)
    return _product(found.schedule, ours, group)


def _product(schedule: OperationSchedule, trace: GemmTrace, group: int) -> Difference:
    place = trace.places()[group]
    for step in schedule.steps:
        if place < step.events:
            break
        place -= step.events
    stage = schedule.operations[step.indexes()[place]].stage
    where = "outside of layers" if stage == 0 else f"layer {stage - 1}"
    return Difference(
        f"matrix product {group} differs, operation {place} of {_named(step)}, {where}",
        step.first_position,
        None if stage == 0 else stage - 1,
    )


def _first_event(
    left: OperationSchedule, mine: ScheduleStep, right: OperationSchedule, other: ScheduleStep
) -> int | None:
    def operations(schedule: OperationSchedule, step: ScheduleStep) -> Iterator[object]:
        return (schedule.operations[index] for index in step.indexes())

    pairs = zip_longest(operations(left, mine), operations(right, other))
    return next((event for event, (a, b) in enumerate(pairs) if a != b), None)


def _place(step: ScheduleStep) -> tuple[int, int, int, int]:
    return step.phase, step.number, step.first_position, step.tokens


def _named(step: ScheduleStep) -> str:
    return f"{step.phase.label} step {step.number}"


def _observed(text: str) -> ObservedEvidence | None:
    return decode_observed(base64.b64decode(text)) if text else None


def _only_one(what: str, claimed: bool, found: bool) -> Difference:
    if claimed and not found:
        return Difference(
            f"the receipt has {what}, and this run of this model has none", None, None
        )
    if found and not claimed:
        return Difference(
            f"this run of this model has {what}, and the receipt has none", None, None
        )
    return _nowhere(f"commitment to {what}")


def _nowhere(what: str) -> Difference:
    return Difference(f"the {what} differs, and the private part does not show where", None, None)


def exact_positions(core: Core, opening: Opening, found: Generation) -> int:
    """Count the generated positions whose token and (when committed) whose every state is equal."""
    claimed = base64.b64decode(opening.leaf_checks)
    computed = base64.b64decode(found.leaf_checks)
    prompt, layers = core.prompt_tokens, core.evidence.layers
    differ = found.state_root != core.evidence.state_root
    if differ and claimed == computed:
        return 0  # somewhere a state differs, and it is not known where
    exact = 0
    for i, (a, b) in enumerate(zip(opening.sampled_ids, found.sampled_ids, strict=False)):
        equal = a == b
        if equal and differ:
            first = leaf_index(prompt - 1 + i, 0, prompt, layers) * _CHECK
            last = first + (layers + 1) * _CHECK
            equal = claimed[first:last] == computed[first:last]
        exact += equal
    return exact


def _first_unequal(a: Sequence[int], b: Sequence[int]) -> int:
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return min(len(a), len(b))


def _first_unequal_block(a: bytes, b: bytes, width: int) -> int | None:
    """Return the number of the first block of ``width`` bytes that differs or is missing."""
    if a == b:
        return None
    starts = range(0, max(len(a), len(b)), width)
    return next(i for i, at in enumerate(starts) if a[at : at + width] != b[at : at + width])
