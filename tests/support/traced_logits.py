"""Print a digest of the logits of a few tokens, traced in each way and untraced.

``python -m tests.support.traced_logits MODEL``: a process of its own, as it loads the engine.
"""

from __future__ import annotations

import hashlib
import os
import sys

from tallystick.engine.libllama.adapter import LlamaContext, open_model
from tallystick.engine.libllama.library import Library
from tallystick.engine.libllama.locate import library_path
from tallystick.engine.libllama.python_tap import PythonTaps
from tallystick.engine.port import ContextSpec, Rows, Watch

SPEC = ContextSpec(4096, 1, 1, 1)
TOKENS = (0, 261, 287, 292, 295, 17, 200)


def digest(context: LlamaContext) -> str:
    logits = hashlib.sha256()
    for position, token in enumerate(TOKENS):
        context.evaluate(Rows((token,), (position,), (0,), (True,)))
        logits.update(context.logits(0))
    context.close()
    return logits.hexdigest()


def main(path: str) -> None:
    library = Library(library_path())
    descriptor = os.open(path, os.O_RDONLY)
    with open_model(library, descriptor, PythonTaps(library)) as model:
        for name, context in (
            ("off", model.open_context(SPEC)),
            ("graph", model.open_observed(SPEC, Watch(graph="nodes"))),
            ("sketch", model.open_observed(SPEC, Watch("layers", "experts", "products"))),
        ):
            sys.stdout.write(f"{name} {digest(context)}\n")


if __name__ == "__main__":
    main(sys.argv[1])
