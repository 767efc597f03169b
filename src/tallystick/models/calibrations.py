"""Calibrations on disk: what was measured once for a model, an engine library and a fingerprint."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallystick.canonical.hashing import parse_digest
from tallystick.contracts.codec import decode_bytes, encode_bytes
from tallystick.contracts.model import Calibration
from tallystick.errors import EvidenceError
from tallystick.models.registry import models_dir, replace_document
from tallystick.store.home import owned

MAX_CALIBRATION: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class LoadedCalibration:
    """A calibration, or the reason why a stored one was ignored; both None: there is none."""

    calibration: Calibration | None
    ignored: str | None


def calibration_path(home: Path, model_digest: str, engine_library: str, fingerprint: str) -> Path:
    """Return where the calibration for these three digests is kept."""
    model = parse_digest(model_digest).hex()
    library = parse_digest(engine_library).hex()[:16]
    return (
        models_dir(home)
        / "calibration"
        / f"{model}.{library}.{parse_digest(fingerprint).hex()[:16]}.json"
    )


def load(
    home: Path, model_digest: str, engine_library: str, fingerprint: str
) -> Calibration | None:
    """Return the stored calibration for these digests, None when there is no usable one."""
    return examine(home, model_digest, engine_library, fingerprint).calibration


def examine(
    home: Path, model_digest: str, engine_library: str, fingerprint: str
) -> LoadedCalibration:
    """Return what :func:`load` returns, and why a stored file was ignored.

    A damaged file, or one made for other digests, is no error: calibrating again replaces it.
    """
    path = calibration_path(home, model_digest, engine_library, fingerprint)
    try:
        with path.open("rb") as file:
            if not owned(os.fstat(file.fileno())):
                return LoadedCalibration(None, "the file belongs to, or is open to, others")
            data = file.read(MAX_CALIBRATION + 1)
        calibration = decode_bytes(
            Calibration, data, max_bytes=MAX_CALIBRATION, where="calibration"
        )
    except (FileNotFoundError, NotADirectoryError):
        return LoadedCalibration(None, None)
    except OSError as error:
        return LoadedCalibration(None, f"cannot be read: {error.strerror}")
    except EvidenceError as error:
        return LoadedCalibration(None, error.message)
    found = (calibration.model_digest, calibration.engine.library, calibration.fingerprint)
    if found != (model_digest, engine_library, fingerprint):
        return LoadedCalibration(None, "it was made for another model, engine or machine")
    if not calibration.combinations:
        return LoadedCalibration(None, "it names no exact combination")
    return LoadedCalibration(calibration, None)


def save(home: Path, calibration: Calibration) -> Path:
    """Write ``calibration`` atomically and return its path. Raises UnavailableError."""
    path = calibration_path(
        home, calibration.model_digest, calibration.engine.library, calibration.fingerprint
    )
    replace_document(path, encode_bytes(calibration))
    return path
