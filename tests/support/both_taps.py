"""Compare what the compiled and the Python observer see, batch by batch, in every way of watching.

``python -m tests.support.both_taps MODEL OBSERVER``: a process of its own, as it loads the engine.
Prints for each way how many layers, routes, nodes and readings there were. Fails at a difference.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import Literal

from tallystick.engine.libllama.adapter import ObservedLlamaContext, open_model
from tallystick.engine.libllama.compiled_tap import CompiledTaps
from tallystick.engine.libllama.library import Library
from tallystick.engine.libllama.locate import library_path
from tallystick.engine.libllama.python_tap import PythonTaps
from tallystick.engine.port import ContextSpec, NodeReading, Observation, Rows, Watch

SPEC = ContextSpec(cells=512, max_rows=16, sequences=2, threads=1)
#: A prompt of which the last rows have outputs, one without any, and two single tokens.
BATCHES = (
    Rows(tuple(range(3, 11)), tuple(range(8)), (0,) * 8, (False,) * 5 + (True,) * 3),
    Rows((7, 8), (8, 9), (0, 0), (False, False)),
    Rows((9,), (10,), (0,), (True,)),
    Rows((11,), (11,), (0,), (True,)),
)
ROWS: tuple[Literal["none", "layers"], ...] = ("none", "layers")
ROUTES: tuple[Literal["none", "experts"], ...] = ("none", "experts")
GRAPHS: tuple[Literal["none", "nodes", "products"], ...] = ("none", "nodes", "products")
WATCHES = tuple(Watch(*each) for each in itertools.product(ROWS, ROUTES, GRAPHS))


def plain(seen: Observation) -> tuple[object, ...]:
    """Return ``seen`` as values that compare; the views in it live until the next batch."""
    return (
        [(block.layer, block.rows, bytes(block.data)) for block in seen.layers],
        [(r.layer, r.rows, r.used, r.experts, bytes(r.data)) for r in seen.routes],
        [(reading.node, reading.data) for reading in seen.nodes],
    )


def check_identity(first: Observation, second: Observation) -> None:
    """Two evaluations of the same shape have the same node objects."""
    kept: dict[object, int] = {}
    for reading in (*first.nodes, *second.nodes):
        assert kept.setdefault(reading.node, id(reading.node)) == id(reading.node)


def counts(seen: Observation) -> tuple[int, ...]:
    read: list[NodeReading] = [reading for reading in seen.nodes if reading.data is not None]
    return len(seen.layers), len(seen.routes), len(seen.nodes), len(read)


def run(contexts: list[ObservedLlamaContext]) -> list[Observation]:
    """Evaluate every batch in both contexts; return what the first saw."""
    kept = []
    for batch in BATCHES:
        seen = []
        for context in contexts:
            context.evaluate(batch)
            seen.append(context.observation())
        assert plain(seen[0]) == plain(seen[1])
        kept.append(seen[0])
    return kept


def main(path: str, observer: str) -> None:
    library = Library(library_path())
    descriptor = os.open(path, os.O_RDONLY)
    makers = (CompiledTaps(library, Path(observer)), PythonTaps(library))
    models = [open_model(library, descriptor, maker) for maker in makers]
    for watch in WATCHES:
        contexts = [model.open_observed(SPEC, watch) for model in models]
        seen = run(contexts)
        check_identity(seen[-2], seen[-1])
        numbers = " ".join(map(str, counts(seen[-1])))
        sys.stdout.write(f"{watch.rows} {watch.routes} {watch.graph} {numbers}\n")
        for context in contexts:
            context.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
