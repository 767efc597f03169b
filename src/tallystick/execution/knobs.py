"""The engine's kernel switches: environment variables that it reads once, when it is loaded."""

from __future__ import annotations

from typing import Final

from tallystick.contracts.runtime import Knob

# The switch for the tiled kernel: as the engine decides itself, never, always.
KNOB_SETTINGS: Final = (
    (),
    (Knob("GGML_CPU_TILED_MM", "0"),),
    (Knob("GGML_CPU_TILED_MM_FORCE", "1"),),
)


def knob_text(knobs: tuple[Knob, ...]) -> str:
    """Return knobs as ``NAME=VALUE`` words, or "no knob"."""
    return " ".join(f"{knob.name}={knob.value}" for knob in knobs) or "no knob"
