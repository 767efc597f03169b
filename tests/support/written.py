"""Sets on disk, as a run leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tallystick.store.artifacts import Member, prepare


def write_set(directory: Path, members: Sequence[Member], marker: Member) -> Path:
    """Write one set into ``directory`` (new, or empty and owner-only) and return it."""
    with prepare(directory) as place:
        return place.write(members, marker)
