"""Where a transcript is, never going back.

Of a run: AwaitingPrefill, then Prefill{step}, then Decode{step}. Of a sealing pass:
AwaitingSealing, then Sealing{step}.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tallystick.errors import EvidenceError


@dataclass(frozen=True, slots=True)
class AwaitingPrefill:
    """Nothing was evaluated yet."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """The prompt is evaluated; ``step`` counts its tokens from 0."""

    step: int


@dataclass(frozen=True, slots=True)
class Decode:
    """Generated tokens are evaluated; ``step`` counts them from 0, after ``prefill_steps``."""

    step: int
    prefill_steps: int


@dataclass(frozen=True, slots=True)
class AwaitingSealing:
    """Nothing of a sealing pass was evaluated yet."""


@dataclass(frozen=True, slots=True)
class Sealing:
    """A finished run is evaluated again; ``step`` counts the chunks from 0."""

    step: int


State: TypeAlias = AwaitingPrefill | Prefill | Decode | AwaitingSealing | Sealing


def advance(state: State, phase: str, step: int) -> State:
    """Return the state after an event of ``phase`` and ``step``.

    A step is followed by itself or the next one, the last of the prompt also by decode step 0.
    Nothing leads from a run to a sealing pass, or back.
    Raises EvidenceError for anything else.
    """
    after: State = Prefill(step)
    if isinstance(state, AwaitingPrefill):
        fine = phase == "prefill" and step == 0
    elif isinstance(state, Prefill):
        fine = phase == "prefill" and step in (state.step, state.step + 1)
        if phase == "decode":
            fine = step == 0
            after = Decode(0, state.step + 1)
    elif isinstance(state, AwaitingSealing | Sealing):
        known = (0,) if isinstance(state, AwaitingSealing) else (state.step, state.step + 1)
        fine = phase == "sealing" and step in known
        after = Sealing(step)
    else:
        fine = phase == "decode" and step in (state.step, state.step + 1)
        after = Decode(step, state.prefill_steps)
    if not fine:
        raise EvidenceError(
            "a transcript's steps are out of order",
            expected=_allowed(state),
            found=f"{phase} step {step}",
        )
    return after


def position(state: State) -> int:
    """Return the position of the token that a run evaluates in ``state``."""
    if isinstance(state, Decode):
        return state.prefill_steps + state.step
    return state.step if isinstance(state, Prefill) else 0


def steps(state: State) -> tuple[int, int]:
    """Return how many prefill and decode steps there were up to ``state``, its own included."""
    if isinstance(state, Decode):
        return state.prefill_steps, state.step + 1
    return (state.step + 1, 0) if isinstance(state, Prefill) else (0, 0)


def chunks_of(state: State) -> int:
    """Return how many steps of a sealing pass there were up to ``state``, its own included."""
    return state.step + 1 if isinstance(state, Sealing) else 0


def _allowed(state: State) -> str:
    if isinstance(state, AwaitingSealing):
        return "sealing step 0"
    if isinstance(state, Sealing):
        return f"sealing step {state.step} or {state.step + 1}"
    if isinstance(state, AwaitingPrefill):
        return "prefill step 0"
    if isinstance(state, Prefill):
        return f"prefill step {state.step} or {state.step + 1}, or decode step 0"
    return f"decode step {state.step} or {state.step + 1}"
