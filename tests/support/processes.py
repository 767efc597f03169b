"""Run a piece of a test in several processes at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence


def in_processes(tasks: Sequence[Callable[[], bytes]]) -> list[bytes]:
    """Run each task in a forked child of its own, all at once; return what they return."""
    gate_reader, gate_writer = os.pipe()
    pipes = []
    for task in tasks:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(gate_writer)
            os.read(gate_reader, 1)  # end of file when the parent opens the gate
            try:
                os.write(writer, task())
            except BaseException as error:
                os.write(writer, f"{type(error).__name__}: {error}".encode())
            os._exit(0)
        os.close(writer)
        pipes.append((child, reader))
    os.close(gate_reader)
    os.close(gate_writer)
    results = []
    for child, reader in pipes:
        with open(reader, "rb") as pipe:
            results.append(pipe.read())
        os.waitpid(child, 0)
    return results
