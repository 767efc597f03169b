"""A file system that is soon full."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(directory: Path, options: str) -> Iterator[Path]:
    """Mount a tmpfs with mount ``options`` at the new ``directory``.

    Skips where only root could, and where even root may not (but under CI that fails).
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root on Linux")
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tallystick-test", str(directory)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        reason = f"no tmpfs can be mounted here: {mounted.stderr.strip()}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def fill(filler: Path) -> None:
    """Write to ``filler`` until there is no room."""
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(1024)):
            pass
