"""What a worker tells of each run that it fetched, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tallystick.contracts.receipt import Memory
from tallystick.errors import RunFailedError, TallystickError, UnavailableError
from tallystick.execution.launch import OnProgress, no_progress
from tallystick.queues.port import MAX_TEXT
from tallystick.queues.spool import CollectedFiles
from tallystick.telemetry.bus import EventBus, LocalBus

Outcome = Literal["done", "failed", "dead", "again", "released", "lost"]


@dataclass(frozen=True, slots=True)
class Turn:
    """What became of one fetched run. ``reason`` says why it is not done; nothing private in it.

    ``done``: its set is at ``place``. ``failed`` and ``dead`` are the queue's states. ``again``: it
    waits for another attempt. ``released``: it waits, and this was no attempt. ``lost``: the lease
    is another's or ran out, or the queue could not be told.

    ``memory`` is what the receipt says of the child's, None when nothing was executed or there is
    no receipt. ``kept`` is by how many bytes the worker's own resident memory had grown when the
    run was over: what did not come back, however the run ended.
    """

    job_id: str
    outcome: Outcome
    receipt_digest: str | None
    place: Path | None
    reason: str | None
    seconds: float
    memory: Memory | None = None
    kept: int = 0


@dataclass(frozen=True, slots=True)
class Listener:
    """Who is told what a worker does: each turn, each look at the spool that found something, and
    each time something cannot be used and is tried again later; with which job a turn begins, and
    how far its work is. The events of its runs go over ``bus``.
    """

    on_turn: Callable[[Turn], None] = lambda _turn: None
    on_collected: Callable[[CollectedFiles], None] = lambda _files: None
    on_trouble: Callable[[UnavailableError], None] = lambda _error: None
    on_begin: Callable[[str], None] = lambda _job_id: None
    on_progress: OnProgress = no_progress
    bus: EventBus = field(default_factory=LocalBus)


def as_failure(error: Exception) -> TallystickError:
    """Return what an unforeseen exception means; its own text may be private."""
    kind = type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        return RunFailedError(f"the system refused something ({kind})", found=error.strerror)
    return RunFailedError(f"internal error ({kind})")


def words(error: TallystickError) -> str:
    """Return an error as one line for the queue: what happened, what was expected and found."""
    expected, found = _first(error.expected), _first(error.found)
    told = error.message
    if expected:
        told += f": expected {expected}" + (f", found {found}" if found else "")
    elif found:
        told += f": {found}"
    plain = "".join(letter if letter.isprintable() else " " for letter in told)
    return plain.strip()[:MAX_TEXT] or type(error).__name__


def _first(text: str | None) -> str:
    """Return the first part of a text: what follows may be a child's own words."""
    return (text or "").partition(";")[0].partition("\n")[0]
