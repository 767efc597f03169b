"""The templates of a supervisor that runs many jobs: one for each engine and knob setting."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from tallystick.contracts.codec import encode
from tallystick.execution.jobs import EngineSetup, Preload
from tallystick.execution.knobs import KNOB_SETTINGS
from tallystick.sandbox.template import Template, are_supported

PROGRAM: Final = "tallystick.execution.template"

_Key = tuple[str, str, str | None, tuple[tuple[str, str], ...]]


class Templates:
    """Makes templates when they are first needed, and again when one died or is out of date.

    Use it as a context manager, in the thread that runs the jobs: they end with it. What the engine
    reads when it is loaded (library, observer, environment) tells them apart.
    """

    #: No more: what is used least recently has to go.
    MOST: Final = len(KNOB_SETTINGS)

    def __init__(self) -> None:
        self._running: dict[_Key, Template] = {}

    def of(
        self, setup: EngineSetup, environment: Mapping[str, str], modules: tuple[str, ...]
    ) -> Template | None:
        """Return a template with the engine of ``setup`` loaded; None where there can be none.

        Raises what loading it raises.
        """
        if not are_supported():
            return None
        key = (setup.library, setup.identity, setup.observer, tuple(sorted(environment.items())))
        found = self._running.pop(key, None)
        if found is not None and not found.alive:
            found.close()
            found = None
        if found is None:
            while len(self._running) >= self.MOST:
                self._running.pop(next(iter(self._running))).close()
            found = Template(PROGRAM, encode(Preload(setup, modules)), environment)
        self._running[key] = found
        return found

    def pids(self) -> tuple[int, ...]:
        """Return the process ids of the running templates."""
        return tuple(template.pid for template in self._running.values())

    def close(self) -> None:
        """End them all."""
        while self._running:
            self._running.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
