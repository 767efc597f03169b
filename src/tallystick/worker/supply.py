"""The models that a worker has: which file a declared digest means, and which ones it lacks."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

from tallystick.errors import InputError, ModelNotHereError
from tallystick.execution.launch import OnProgress, no_progress
from tallystick.models.add import hash_file
from tallystick.models.listing import list_models

_LOOK_AGAIN_SECONDS: Final = 60.0
_MOST: Final = 256


class MissingModels:
    """The models that runs asked for and that are not here, so that no run of them is claimed.

    One that was added since is found within a minute.
    """

    def __init__(self, names: tuple[str, ...] | None, home: Path) -> None:
        self._names = names
        self._home = home
        self._looked: dict[str, float] = {}

    def add(self, digest: str) -> None:
        """Note that a model was looked for, just now, and is not here; the last 256 are kept."""
        self._looked[digest] = time.monotonic()
        while len(self._looked) > _MOST:
            del self._looked[next(iter(self._looked))]

    def digests(self) -> tuple[str, ...]:
        """Return the digests of what is not here, having looked again where it is time."""
        for digest, looked in tuple(self._looked.items()):
            if time.monotonic() - looked >= _LOOK_AGAIN_SECONDS:
                self._look(digest)
        return tuple(self._looked)

    def _look(self, digest: str) -> None:
        try:
            find_model(digest, self._names, self._home)
        except InputError:
            self._looked[digest] = time.monotonic()
        else:
            del self._looked[digest]


def find_model(
    digest: str,
    names: tuple[str, ...] | None,
    home: Path,
    on_progress: OnProgress = no_progress,
) -> str:
    """Return the name or path of the model with this digest; ``names`` None: any named one.

    A named model is known by its pin: its file is not opened here. A file that is named by its
    path is hashed, or known by the digest cache. Raises ModelNotHereError when there is none.
    """
    known = {item.name: item.pin.digest for item in list_models(home) if item.pin is not None}
    wanted = tuple(known) if names is None else names
    for name in wanted:
        if known.get(name) == digest:
            return name
    for path in (Path(name) for name in wanted if name not in known):
        with contextlib.suppress(InputError):  # a file that cannot be read is not here either
            if path.is_file() and hash_file(path, home, on_progress).digest == digest:
                return str(path)
    raise ModelNotHereError(
        "this worker does not have the run's model",
        expected=digest,
        found=f"{len(wanted)} models",
        hint="pull or add the model, or name it in the worker's settings",
    )
