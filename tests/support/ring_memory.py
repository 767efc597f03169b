"""Evaluate a few tokens with a layer ring and watch this process's memory.

``python -m tests.support.ring_memory MODEL DEPTH``: a process of its own, as it loads the engine.
Prints JSON: resident bytes of files after the load and the most of them at the ends of layers,
bytes of the model in the page cache at the end, and what the ring says. Depth 0 is no ring.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from pathlib import Path

from tallystick.contracts.codec import encode
from tallystick.contracts.residency import NO_RING
from tallystick.engine.libllama.adapter import open_model
from tallystick.engine.libllama.library import Library
from tallystick.engine.libllama.locate import library_path
from tallystick.engine.libllama.python_tap import PythonTaps
from tallystick.engine.pages import MappedFile
from tallystick.engine.port import ContextSpec, Rows, Watch
from tallystick.engine.ring import LayerRing
from tallystick.models.layers import extents_of

SPEC = ContextSpec(cells=256, max_rows=8, sequences=2, threads=2)


def file_bytes() -> int:
    """Return RssFile: the resident bytes of files that this process has mapped."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssFile:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssFile")


def cached_bytes(descriptor: int) -> int:
    """Return how many bytes of the file are in the page cache; its owner is told the truth."""
    size = os.fstat(descriptor).st_size // mmap.PAGESIZE * mmap.PAGESIZE
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED):
        file = MappedFile(descriptor)
        return size - file.absent(file.spans(0, size)) * mmap.PAGESIZE


def main(path: str, depth: int) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    extents = extents_of(descriptor).extents
    library = Library(library_path())
    model = open_model(library, descriptor, PythonTaps(library))
    loaded = file_bytes()
    seen: list[int] = []
    ring = None
    if depth:

        def tell(what: str, _layer: int) -> None:
            if what in ("hit", "miss"):
                seen.append(file_bytes())

        ring = LayerRing(MappedFile(descriptor), extents, model.layers, depth, tell)
        model.move_layers(ring)
    context = model.open_observed(SPEC, Watch(rows="layers"))
    for step in range(3):
        context.evaluate(Rows((7, 8), (2 * step, 2 * step + 1), (0, 0), (False, True)))
        context.observation()
        seen.append(file_bytes())
    context.close()
    model.close()
    answer = {
        "loaded": loaded,
        "most": max(seen),
        "cached": cached_bytes(descriptor),
        "residency": encode(NO_RING if ring is None else ring.residency()),
    }
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
