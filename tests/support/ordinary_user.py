"""Run a piece of a test as a user whom file modes bind, even when the tests run as root."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

ORDINARY_UID = 65534


def run_as_ordinary_user(body: Callable[[Path], None]) -> None:
    """Call ``body`` with a fresh directory in a forked child that has dropped root.

    Raises AssertionError with the child's traceback when ``body`` raised.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        status = 0
        try:
            _drop_root()
            with tempfile.TemporaryDirectory() as directory:
                body(Path(directory))
        except BaseException:
            os.write(writer, traceback.format_exc().encode()[-60000:])
            status = 1
        os._exit(status)
    os.close(writer)
    with open(reader, "rb") as pipe:
        report = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    assert status == 0, report


def _drop_root() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(ORDINARY_UID)
        os.setuid(ORDINARY_UID)
        tempfile.tempdir = "/tmp"
