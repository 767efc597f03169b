"""Calibrate a model: which knob settings and row classes are exact here, and which is fastest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallystick.contracts.model import (
    CALIBRATION_SCHEMA,
    Calibration,
    ExactCombination,
    ModelFacts,
)
from tallystick.contracts.request import PRODUCER
from tallystick.contracts.runtime import Knob, RowClass
from tallystick.contracts.sandbox_profile import SandboxProfile, holding
from tallystick.errors import IncomparableError, RunFailedError
from tallystick.execution.fingerprint import Fingerprint
from tallystick.execution.jobs import CalibrateJob
from tallystick.execution.knobs import KNOB_SETTINGS, knob_text
from tallystick.execution.launch import InstalledEngine, OnProgress, no_progress, run_job
from tallystick.models import calibrations
from tallystick.models.registry import OpenModel

SUITE: Final = "rows-2"
_SMALLEST_CLASS: Final = 2
_TILED_ROWS: Final = 8
# Weights of these types never take the tiled kernel: one setting is all settings.
_UNTILED: Final = frozenset(
    {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "I8", "I16", "I32", "I64", "F64"}
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one knob setting is not exact for this model."""

    knobs: tuple[Knob, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Setting:
    """A knob setting and the smallest floor that may be looked for under it."""

    knobs: tuple[Knob, ...]
    min_floor: int


def settings_for(facts: ModelFacts) -> tuple[Setting, ...]:
    """Return the settings worth trying for a model with these weight types.

    Known thresholds are not left to a trial, which could miss them by luck: one row has a kernel
    of its own, and where the engine decides itself the tiled kernel starts at 8 rows, counted for
    experts in what each of them receives, so that no floor fixes it.
    """
    default, *forced = KNOB_SETTINGS
    if all(kind.name in _UNTILED for kind in facts.weight_types):
        return (Setting(default, _SMALLEST_CLASS),)
    chosen = tuple(Setting(knobs, _SMALLEST_CLASS) for knobs in forced)
    return chosen if facts.experts else (Setting(default, _TILED_ROWS), *chosen)


def calibrate(
    model: OpenModel,
    facts: ModelFacts,
    engine: InstalledEngine,
    fingerprint: Fingerprint,
    *,
    threads: int | None = None,
    sandbox: SandboxProfile | None = None,
    on_progress: OnProgress = no_progress,
) -> Calibration:
    """Return every exact combination, fastest generation first.

    ``sandbox`` holds the children that evaluate the model; SandboxError where it cannot. Raises
    IncomparableError with each setting's reason when none is exact.
    """
    exact: list[ExactCombination] = []
    refused: list[Refusal] = []
    layers = 0
    settings = settings_for(facts)
    for number, setting in enumerate(settings):
        knobs = setting.knobs

        def report(what: str, done: int, total: int, number: int = number) -> None:
            if what == "calibrating" and total:
                on_progress(what, number * total + done, len(settings) * total)

        job = CalibrateJob(engine.setup(threads), model.fd, setting.min_floor)
        body = run_job(
            job, knobs, on_progress=report, model_fd=model.fd, sandbox=holding(sandbox)
        ).body
        floor, top, layers = (
            _number(body, "floor"),
            _number(body, "max_rows"),
            _number(body, "layers"),
        )
        if floor == 0:
            refused.append(Refusal(knobs, str(body.get("reason"))[:200]))
            continue
        exact.append(
            ExactCombination(
                knobs=knobs,
                row_class=RowClass(floor, top),
                decode_speed=_number(body, "decode_speed"),
                prefill_speed=_number(body, "prefill_speed"),
            )
        )
    if not exact:
        raise IncomparableError(
            "no exact row class was found for this model on this machine",
            expected="a kernel setting under which a batched pass gives the bits of a generation",
            found="; ".join(f"{knob_text(r.knobs)}: {r.reason}" for r in refused),
            hint="use --policy sequential, which replays token by token, or another quantisation",
        )
    exact.sort(key=lambda found: -found.decode_speed)
    return Calibration(
        schema=CALIBRATION_SCHEMA,
        producer=PRODUCER,
        model_digest=model.digest,
        engine=engine.build,
        fingerprint=fingerprint.digest,
        suite=SUITE,
        layers=layers,
        combinations=tuple(exact),
    )


def calibration_of(
    home: Path,
    model: OpenModel,
    facts: ModelFacts,
    engine: InstalledEngine,
    fingerprint: Fingerprint,
    *,
    threads: int | None = None,
    sandbox: SandboxProfile | None = None,
    on_progress: OnProgress = no_progress,
) -> Calibration:
    """Return the stored calibration of this model here, calibrating first when there is none.

    The rest is as for :func:`calibrate`.
    """
    known = calibrations.load(home, model.digest, engine.build.library, fingerprint.digest)
    if known is not None and known.suite == SUITE:
        return known
    made = calibrate(
        model,
        facts,
        engine,
        fingerprint,
        threads=threads,
        sandbox=sandbox,
        on_progress=on_progress,
    )
    calibrations.save(home, made)
    return made


def _number(body: dict[str, object], name: str) -> int:
    value = body.get(name)
    if type(value) is not int or not 0 <= value < 2**53:
        raise RunFailedError("the calibration child sent a malformed result", found=name)
    return value
