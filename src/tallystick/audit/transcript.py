"""Hold a transcript of `observe` against a model's file; no engine is needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallystick.compute.families import describe
from tallystick.compute.rules import RULES_V3
from tallystick.errors import InputError
from tallystick.evidence.adapter.gates import gate_of
from tallystick.evidence.adapter.transcript import adapt_transcript
from tallystick.evidence.observer.records import MAX_TRANSCRIPT
from tallystick.evidence.schedule_checks import check_schedule
from tallystick.execution.launch import OnProgress, no_progress
from tallystick.models.registry import resolve
from tallystick.store.home import home as default_home

_PIECE: Final = 1 << 20
#: The roots of a transcript by itself are of no use: they are blinded when a run commits to them.
_NO_BLIND: Final = bytes(32)


@dataclass(frozen=True, slots=True)
class TranscriptReport:
    """What a transcript holds; nothing of it depends on the text. ``commitment`` is in hex."""

    observer: str
    prefill_tokens: int
    generated_tokens: int
    events: int
    operations: int
    products: int
    routes: int
    commitment: str


def check_transcript(
    path: Path, model: str, *, home: Path | None = None, on_progress: OnProgress = no_progress
) -> TranscriptReport:
    """Read the transcript at ``path`` and hold it against ``model`` (a name or a path).

    Raises EvidenceError when it is no transcript, or not one of a run of this model;
    IncomparableError for an unknown architecture, InputError when a file cannot be read.
    """
    facts = resolve(model, home or default_home(), on_progress).facts
    adapted = adapt_transcript(_pieces(path), gate_of(facts), _NO_BLIND)
    result, schedule = adapted.transcript.result, adapted.evidence.schedule
    prefill, generated = len(result.prompt_token_ids), len(result.generated_token_ids)
    check_schedule(schedule, describe(facts), prefill, generated)
    return TranscriptReport(
        observer=adapted.transcript.header.observer,
        prefill_tokens=prefill,
        generated_tokens=generated,
        events=adapted.transcript.events,
        operations=schedule.events,
        products=schedule.gemms,
        routes=0 if adapted.routes is None else adapted.routes.rows,
        commitment=schedule.commitment(RULES_V3.ruleset_id).hex(),
    )


def _pieces(path: Path) -> Iterator[bytes]:
    size = 0
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                size += len(piece)
                yield piece
                if size > MAX_TRANSCRIPT:  # the reader has refused it already
                    return
    except OSError as error:
        raise InputError(
            "the transcript cannot be read", found=f"{path}: {error.strerror}"
        ) from None
