"""Where the tests find public conformance data, which is read in place and not copied here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]


def vector_dir(name: str) -> Path:
    """Return the directory of the public vectors called ``name``.

    It is searched in ``$TALLYSTICK_VECTORS``, or else beside the repository. Where it is missing
    the test is skipped, but fails under ``CI``: there the vectors must be present.
    """
    configured = os.environ.get("TALLYSTICK_VECTORS")
    base = Path(configured) if configured else _ROOT.parent / "shared" / "vectors"
    directory = base / name
    if not directory.is_dir():
        reason = f"the public vectors {name!r} are not here; set TALLYSTICK_VECTORS to their folder"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return directory


def spec_vectors() -> Path:
    """Return the directory of this project's own golden vectors."""
    return _ROOT / "docs" / "spec" / "vectors"
