"""`model calibrate`: measure a model's row classes, or the machine's fingerprint, anew."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tallystick.contracts.model import Calibration
from tallystick.contracts.sandbox_profile import SandboxProfile
from tallystick.execution import fingerprint as fingerprints
from tallystick.execution.calibrate import calibrate
from tallystick.execution.launch import OnProgress, find_engine, no_progress
from tallystick.models import calibrations
from tallystick.models.registry import open_model, resolve
from tallystick.store.home import home as default_home


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A fresh calibration and where it is stored."""

    calibration: Calibration
    path: Path


def calibrate_model(
    model: str,
    *,
    threads: int | None = None,
    sandbox: SandboxProfile | None = None,
    home: Path | None = None,
    on_progress: OnProgress = no_progress,
) -> MeasuredModel:
    """Calibrate ``model`` (a name or a path) now, and store the result for later runs.

    ``sandbox`` holds every child that opens the model; SandboxError where it cannot. Raises
    IncomparableError, with a reason for each kernel setting, when no row class is exact.
    """
    where = home or default_home()
    engine = find_engine(where)
    chosen = resolve(model, where, on_progress, sandbox)
    fingerprint = fingerprints.current(where, engine, on_progress)
    with open_model(chosen) as opened:
        made = calibrate(
            opened,
            chosen.facts,
            engine,
            fingerprint,
            threads=threads,
            sandbox=sandbox,
            on_progress=on_progress,
        )
        opened.unchanged()
    return MeasuredModel(made, calibrations.save(where, made))


def measure_fingerprint(
    *, home: Path | None = None, on_progress: OnProgress = no_progress
) -> fingerprints.Fingerprint:
    """Run the numeric conformance suite now, whatever this boot's cache says."""
    where = home or default_home()
    return fingerprints.renew(where, find_engine(where), on_progress)
