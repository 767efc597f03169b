"""Runs the program's own commands in a data folder of the benchmark's own, and watches them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.big.machine import Resident, children

_LOOK_EVERY: Final = 0.05  # seconds


class CommandFailedError(Exception):
    """A command ended with another status than 0."""


@dataclass(frozen=True, slots=True)
class Done:
    """A finished command: its JSON document, wall time, and the memory of both its processes."""

    document: dict[str, Any]
    seconds: float
    supervisor: Resident
    child: Resident


@dataclass(frozen=True, slots=True)
class Program:
    """The program, with ``home`` as its data folder; ``threads`` None takes every core."""

    home: Path
    threads: int | None = None

    @property
    def computing(self) -> tuple[str | Path, ...]:
        """The options of every command that computes with the model."""
        return () if self.threads is None else ("--threads", str(self.threads))

    def run(self, *words: str | Path, stdin: str = "") -> Done:
        """Run ``tallystick WORDS --json`` to its end. Raises CommandFailedError."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("TALLYSTICK_")}
        command = [sys.executable, "-m", "tallystick", *map(str, words), "--json"]
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as answer:
            given.write(stdin.encode())
            given.seek(0)
            started = time.monotonic()
            process = subprocess.Popen(
                command,
                env={**kept, "TALLYSTICK_HOME": str(self.home)},
                stdin=given,
                stdout=answer,
            )
            supervisor, child = _watch(process)
            seconds = time.monotonic() - started
            answer.seek(0)
            text = answer.read().decode()
        if process.returncode:
            raise CommandFailedError(
                f"{' '.join(command[2:])}: exit status {process.returncode}\n{text}"
            )
        return Done(json.loads(text), seconds, supervisor, child)


def _watch(process: subprocess.Popen[bytes]) -> tuple[Resident, Resident]:
    """Wait for ``process``; return its own peaks, and the largest of the children it starts."""
    supervisor, child = Resident(), Resident()
    while process.poll() is None:
        supervisor = supervisor.with_process(process.pid)
        for pid in children(process.pid):
            child = child.with_process(pid)
        time.sleep(_LOOK_EVERY)
    return supervisor, child
