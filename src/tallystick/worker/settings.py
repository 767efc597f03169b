"""The settings of a worker: one YAML file, strict (docs/spec/worker.md#settings)."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Final

from tallystick.canonical.yaml import parse_yaml
from tallystick.contracts.codec import decode
from tallystick.contracts.residency import MAX_RING_DEPTH
from tallystick.contracts.types import IntRange, LongText, MaxLength, OneOf
from tallystick.errors import EvidenceError, InputError
from tallystick.store.files import read_given
from tallystick.store.home import user_path

WORKER_SCHEMA: Final = "tallystick.worker/v1"
MAX_SETTINGS: Final = 64 * 1024
_DAY: Final = 24 * 3600

Seconds = Annotated[int, IntRange(1, _DAY)]


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker may be told. Paths are absolute, or relative to the settings' own folder.

    ``queue`` and ``receipts`` None are those of the data folder. ``spool`` is a folder whose files
    are submitted. ``models`` are names, or paths (with a separator); None: every model of the data
    folder. ``bundles`` are directories, among which a run's bundle is found by its digest; one that
    is missing is passed over. ``ring_depth`` is how many layers of a model are in memory at a time,
    0 for all. ``run_seconds`` bounds one run, ``grace_seconds`` what a run gets to finish once the
    worker is told to stop. ``health`` is a file that is rewritten every few seconds.
    """

    schema: Annotated[str, OneOf((WORKER_SCHEMA,))]
    queue: LongText | None
    receipts: LongText | None
    spool: LongText | None
    models: Annotated[tuple[LongText, ...], MaxLength(256)] | None
    bundles: Annotated[tuple[LongText, ...], MaxLength(256)] | None
    key: LongText | None
    audit_key: LongText | None
    health: LongText | None
    threads: Annotated[int, IntRange(1, 512)] | None
    ring_depth: Annotated[int, IntRange(0, MAX_RING_DEPTH)]
    lease_seconds: Seconds
    run_seconds: Seconds
    grace_seconds: Annotated[int, IntRange(0, _DAY)]
    idle_milliseconds: Annotated[int, IntRange(10, 3600 * 1000)]


DEFAULTS: Final = WorkerSettings(
    schema=WORKER_SCHEMA,
    queue=None,
    receipts=None,
    spool=None,
    models=None,
    bundles=None,
    key=None,
    audit_key=None,
    health=None,
    threads=None,
    ring_depth=0,
    lease_seconds=120,
    run_seconds=3600,
    grace_seconds=60,
    idle_milliseconds=500,
)


def read_settings(path: Path) -> WorkerSettings:
    """Return the settings in the file ``path``. Raises InputError naming the field."""
    data = read_given(path, max_bytes=MAX_SETTINGS, what="the worker's settings")
    return parse_settings(data, folder=path.absolute().parent)


def parse_settings(data: bytes, *, folder: Path) -> WorkerSettings:
    """Return the settings in the YAML ``data``; what is left out has its default value.

    Only ``schema`` may not be left out. Relative paths are taken from ``folder``. Raises InputError
    naming the field.
    """
    value = parse_yaml(data, max_bytes=MAX_SETTINGS, where="worker settings")
    if not isinstance(value, dict):
        raise InputError("the worker settings are no mapping", expected="name: value lines")
    defaults = {field.name: getattr(DEFAULTS, field.name) for field in fields(DEFAULTS)}
    del defaults["schema"]
    try:
        settings = decode(WorkerSettings, {**defaults, **value}, where="worker settings")
    except EvidenceError as error:
        raise InputError.of(error) from None
    return _placed(settings, folder)


def _placed(settings: WorkerSettings, folder: Path) -> WorkerSettings:
    def place(text: str | None) -> str | None:
        return None if text is None else str(folder / user_path(text))

    models, bundles = settings.models, settings.bundles
    return replace(
        settings,
        queue=place(settings.queue),
        receipts=place(settings.receipts),
        spool=place(settings.spool),
        # What has a separator is a path, as everywhere a model is named.
        models=models and tuple(str(folder / user_path(m)) if os.sep in m else m for m in models),
        bundles=bundles and tuple(str(folder / user_path(name)) for name in bundles),
        key=place(settings.key),
        audit_key=place(settings.audit_key),
        health=place(settings.health),
    )
