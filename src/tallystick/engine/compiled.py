"""Build the compiled observer with the system's C compiler, once, or say that there is none.

A plain ``cc`` call on one C file of ours: no Python headers, no build system, well under a
second. Where it cannot be built the Python observer gives the same bytes, more slowly
(docs/adr/0004-compiled-observer.md).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

from tallystick.errors import TallystickError
from tallystick.store.home import ensure_private_dir, owned

_FLAGS = ("-O2", "-shared", "-fPIC", "-std=c11")


def ensure_observer(cache: Path) -> Path | None:
    """Return the path of the compiled observer below ``cache``, building it when it is absent.

    None when there is no compiler, it fails, nothing can be kept in ``cache``, or
    ``TALLYSTICK_OBSERVER=python`` asks for none.
    """
    if os.environ.get("TALLYSTICK_OBSERVER") == "python":
        return None
    source = resources.files("tallystick.engine").joinpath("observer.c").read_bytes()
    key = hashlib.sha256(source + " ".join((*_FLAGS, os.uname().machine)).encode()).hexdigest()
    directory = cache / "observer"
    target = directory / f"{key[:32]}.so"
    if _is_ours(target):
        return target
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    try:
        ensure_private_dir(directory)
        return target if _build(compiler, source, target) else None
    except (TallystickError, OSError):
        return None


def _is_ours(path: Path) -> bool:
    """A library that someone else could have written is not loaded."""
    with contextlib.suppress(OSError):
        state = path.lstat()
        return owned(state) and state.st_size > 0
    return False


def _build(compiler: str, source: bytes, target: Path) -> bool:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        code = Path(scratch, "observer.c")
        code.write_bytes(source)
        made = Path(scratch, "observer.so")
        try:
            subprocess.run(
                [compiler, *_FLAGS, "-o", str(made), str(code)],
                check=True,
                capture_output=True,
                timeout=60,
            )
        except (OSError, subprocess.SubprocessError):
            return False
        made.chmod(0o500)
        made.rename(target)
    return True
