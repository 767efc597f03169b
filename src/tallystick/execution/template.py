"""The template of an engine child: it has imported and loaded what every run needs, and no model.

``python -m tallystick.execution.template DESCRIPTOR``, started by a supervisor that runs for long.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from tallystick.contracts.codec import decode
from tallystick.execution.child import handle, settle
from tallystick.execution.child_engine import load_engine
from tallystick.execution.jobs import Preload
from tallystick.sandbox.template_child import serve_template

# Each child of a locked run enters it, and imports nothing then.
_CAGE = "tallystick.sandbox.cage"


def _prepare(request: Any) -> None:
    preload = decode(Preload, request, where="preload")
    for name in (*preload.modules, _CAGE):
        importlib.import_module(name)
    load_engine(preload.setup)


if __name__ == "__main__":
    settle()
    serve_template(int(sys.argv[1]), _prepare, handle)
    sys.stderr.flush()
    os._exit(0)
