"""The supervisor's half of a layer ring: how deep it is, and where the layers are."""

from __future__ import annotations

import contextlib
import os

from tallystick.contracts.residency import MAX_RING_DEPTH, Residency, RingPlan
from tallystick.contracts.sandbox_profile import SandboxProfile
from tallystick.errors import RunFailedError, UsageError
from tallystick.models.layers_child import read_extents
from tallystick.models.registry import OpenModel


def check_depth(depth: int) -> None:
    """Raise UsageError for a depth that no ring can have; 0 is no ring."""
    if not 0 <= depth <= MAX_RING_DEPTH:
        raise UsageError(
            "the depth of the layer ring is out of range",
            expected=f"0 (every layer stays in memory) to {MAX_RING_DEPTH}",
            found=str(depth),
        )


def ring_plan(opened: OpenModel, depth: int, sandbox: SandboxProfile | None) -> RingPlan | None:
    """Return what a child needs to keep ``depth`` layers of the model in memory; None for 0.

    Who reads the file's header is held by ``sandbox``. Raises what that reading may raise.
    """
    check_depth(depth)
    if not depth:
        return None
    with contextlib.suppress(OSError):
        os.fsync(opened.fd)  # pages of a file that was just written cannot be given up before
    return RingPlan(depth, read_extents(opened.fd, sandbox).extents)


def require_asked(found: Residency, depth: int) -> None:
    """Raise RunFailedError when a child tells of another ring than it was asked for."""
    if found.ring_depth != depth:
        raise RunFailedError(
            "the child kept another number of layers in memory than it was asked to",
            expected=f"ring depth {depth}",
            found=str(found.ring_depth),
        )
