"""Reading a declared run from the bytes of a file (docs/spec/queue.md#spool-folder)."""

from __future__ import annotations

from pathlib import Path

from tallystick.canonical.json import parse_strict
from tallystick.contracts.codec import decode
from tallystick.contracts.request import RUN_SCHEMA, InferenceRun
from tallystick.errors import EvidenceError, InputError
from tallystick.queues.core import MAX_RUN_BYTES
from tallystick.store.files import read_given


def parse_run(data: bytes, *, where: str) -> InferenceRun:
    """Return the run that ``data`` declares: strict JSON, in whatever spelling.

    Raises InputError that begins with ``where`` and shows no value of the document.
    """
    try:
        value = parse_strict(data, max_bytes=MAX_RUN_BYTES)
        run = decode(InferenceRun, value, where="run")
        if (run.seed is None) != (run.temperature == "0"):
            raise EvidenceError(
                "run: bad field seed", expected="null exactly when the temperature is 0"
            )
    except EvidenceError as error:
        raise InputError(
            f"{where} is no {RUN_SCHEMA}: {error.message}",
            expected=error.expected,
            found=error.found,
            hint=error.hint,
        ) from None
    return run


def read_run(path: Path) -> InferenceRun:
    """Return the run that the file ``path`` declares. Raises InputError."""
    return parse_run(
        read_given(path, max_bytes=MAX_RUN_BYTES, what="the declared run"), where=str(path)
    )
