"""The models that a worker has: which file a declared digest means."""

from __future__ import annotations

from pathlib import Path

from tallystick.errors import InputError
from tallystick.execution.launch import OnProgress, no_progress
from tallystick.models.add import hash_file
from tallystick.models.listing import list_models


def find_model(
    digest: str,
    names: tuple[str, ...] | None,
    home: Path,
    on_progress: OnProgress = no_progress,
) -> str:
    """Return the name or path of the model with this digest; ``names`` None: any named one.

    A named model is known by its pin: its file is not opened here. A file that is named by its
    path is hashed, or known by the digest cache. Raises InputError when there is none.
    """
    known = {item.name: item.pin.digest for item in list_models(home) if item.pin is not None}
    wanted = tuple(known) if names is None else names
    for name in wanted:
        if known.get(name) == digest:
            return name
    for path in (Path(name) for name in wanted if name not in known):
        if path.is_file() and hash_file(path, home, on_progress).digest == digest:
            return str(path)
    raise InputError(
        "this worker does not have the run's model",
        expected=digest,
        found=f"{len(wanted)} models",
        hint="pull or add the model, or name it in the worker's settings",
    )
