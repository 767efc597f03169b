"""A template whose children are served or hostile ones, as its request says."""

from __future__ import annotations

import os
import sys
from typing import Any

from tallystick import errors
from tallystick.sandbox.template_child import serve_template
from tests.support.children import hostile, served


def _prepare(request: Any) -> None:
    if kind := request.get("error"):
        raise getattr(errors, kind)("what", found="that")
    if request.get("die"):
        os._exit(7)
    if request.get("defect"):
        raise ValueError("private words")


def _work(request: Any, channel: Any) -> None:
    (served if "do" in request else hostile).work(request, channel)


if __name__ == "__main__":
    serve_template(int(sys.argv[1]), _prepare, _work)
