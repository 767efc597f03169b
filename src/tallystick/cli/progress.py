"""Progress of long work: one live line on a terminal, an occasional line in a log."""

from __future__ import annotations

import sys
import time
from typing import Final, Self

import click

from tallystick.cli.output import note, printable

# Seconds between two lines: repainted ones on a terminal, new ones where nobody watches.
_INTERVAL: Final = 0.1
_LOG_INTERVAL: Final = 5.0
# Work that is over before anyone could read a line about it is not announced.
_PATIENCE: Final = 0.5
_NAMES: Final = {
    "hashing": "hashing the model",
    "loading": "loading the model",
    "prompt": "reading the prompt",
    "calibrating": "calibrating this model on this machine (once)",
    "fingerprint": "measuring this machine's numeric fingerprint (once per boot)",
    "sealing": "re-executing the run for its evidence",
    "self-check": "checking the run before signing",
    "replay": "replaying",
    "observing": "observing",
}


def work_words(what: str) -> str:
    """Return what the work called ``what`` is, for people."""
    return _NAMES.get(what, what)


class WorkProgress:
    """Says on standard error what is being done and how far it is."""

    def __init__(self) -> None:
        self._visible = sys.stderr.isatty()
        self._work = ""
        self._since = 0.0
        self._painted = time.monotonic()
        self._width = 0

    def update(self, what: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` parts of the work called ``what`` are finished."""
        now = time.monotonic()
        if what != self._work:
            self._work, self._since = what, now
        if now - self._since < _PATIENCE:
            return
        share = f"  {100 * done // total:3d} %" if total else ""
        line = f"{work_words(what)}{share}"
        if not self._visible:
            self._log(line, now)
        elif done == total:
            self.clear()
        elif now - self._painted >= _INTERVAL:
            self._painted = now
            self._paint(line)

    def clear(self) -> None:
        """Remove the line, so that something else can be written."""
        if self._width:
            click.echo("\r" + " " * self._width + "\r", nl=False, err=True)
            self._width = 0

    def _log(self, line: str, now: float) -> None:
        if now - self._painted >= _LOG_INTERVAL:
            self._painted = now
            note(line)

    def _paint(self, line: str) -> None:
        line = printable(line)
        click.echo("\r" + line.ljust(self._width), nl=False, err=True)
        self._width = len(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
