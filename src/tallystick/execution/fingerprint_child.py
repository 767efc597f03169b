"""Run the numeric conformance suite in this (child) process and hash every raw output."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from tallystick.canonical.json import JSONValue
from tallystick.engine.libllama.adapter import open_model
from tallystick.engine.libllama.library import Library
from tallystick.engine.libllama.python_tap import PythonTaps
from tallystick.engine.port import ContextSpec, Rows, Watch
from tallystick.engine.suite.parts import SuitePart, suite
from tallystick.execution.child_engine import Reporter
from tallystick.execution.jobs import FingerprintJob


def run_fingerprint(job: FingerprintJob, reporter: Reporter) -> dict[str, JSONValue]:
    """Return {"parts": [[name, digest], ...], "libraries": [path, ...]}."""
    library = Library(Path(job.setup.library))
    # Without an observer compiled here: nothing but the pinned library takes part.
    taps = PythonTaps(library)
    progress = reporter.progress("fingerprint")
    parts = suite()
    found: list[JSONValue] = []
    for number, part in enumerate(parts):
        found.append([part.name, _digest(library, taps, part)])
        progress(number + 1, len(parts))
    return {"parts": found, "libraries": list(_mapped_libraries())}


def _digest(library: Library, taps: PythonTaps, part: SuitePart) -> str:
    """Return the sha256 over all layer outputs and logits of one part, batch by batch."""
    digest = hashlib.sha256()
    with tempfile.TemporaryFile() as file:
        file.write(part.build())
        file.flush()
        with open_model(library, file.fileno(), taps) as model:
            rows = max(part.batches)
            cells = -(-sum(part.batches) // 256) * 256
            spec = ContextSpec(cells, rows, 1, 1)
            context = model.open_observed(spec, Watch(rows="layers"))
            done = 0
            for count in part.batches:
                first = part.first_position + done
                tokens = part.tokens[done : done + count]
                positions = range(first, first + count)
                context.evaluate(Rows(tokens, positions, (0,) * count, (True,) * count))
                for block in context.observation().layers:
                    digest.update(f"{block.layer}:{block.rows}:".encode())
                    digest.update(block.data)
                for row in range(count):
                    digest.update(context.logits(row))
                done += count
            context.close()
    return f"sha256:{digest.hexdigest()}"


def _mapped_libraries() -> tuple[str, ...]:
    """Return the shared objects mapped into this process; none where the kernel does not tell."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:
            paths = {line.split(maxsplit=5)[-1].rstrip("\n") for line in lines if "/" in line}
    except OSError:
        return ()
    return tuple(sorted(p for p in paths if ".so" in os.path.basename(p) and p.isprintable()))
