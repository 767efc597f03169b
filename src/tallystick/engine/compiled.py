"""Build the compiled observer with the system's C compiler, once, or say that there is none.

A plain ``cc`` call on two C files of ours: no Python headers, no build system, well under a
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
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from tallystick.errors import TallystickError
from tallystick.store.home import ensure_private_dir, owned

_SOURCES = ("observer.h", "observer.c", "observer_nodes.c")
_FLAGS = ("-O2", "-shared", "-fPIC", "-std=c11")


def ensure_observer(cache: Path) -> Path | None:
    """Return the path of the compiled observer below ``cache``, building it when it is absent.

    None when there is no compiler, it fails, nothing can be kept in ``cache``, or
    ``TALLYSTICK_OBSERVER=python`` asks for none.
    """
    if os.environ.get("TALLYSTICK_OBSERVER") == "python":
        return None
    folder = resources.files("tallystick.engine")
    sources = {name: folder.joinpath(name).read_bytes() for name in _SOURCES}
    key = hashlib.sha256(b"".join(sources.values()))
    key.update(" ".join((*_FLAGS, os.uname().machine)).encode())
    directory = cache / "observer"
    target = directory / f"{key.hexdigest()[:32]}.so"
    if _is_ours(target):
        return target
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    try:
        ensure_private_dir(directory)
        return target if _build(compiler, sources, target) else None
    except (TallystickError, OSError):
        return None


def _is_ours(path: Path) -> bool:
    """A library that someone else could have written is not loaded."""
    with contextlib.suppress(OSError):
        state = path.lstat()
        return owned(state) and state.st_size > 0
    return False


def _build(compiler: str, sources: Mapping[str, bytes], target: Path) -> bool:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        for name, source in sources.items():
            Path(scratch, name).write_bytes(source)
        code = [str(Path(scratch, name)) for name in sources if name.endswith(".c")]
        made = Path(scratch, "observer.so")
        try:
            subprocess.run(
                [compiler, *_FLAGS, "-o", str(made), *code],
                check=True,
                capture_output=True,
                timeout=60,
            )
        except (OSError, subprocess.SubprocessError):
            return False
        made.chmod(0o500)
        made.rename(target)
    return True
