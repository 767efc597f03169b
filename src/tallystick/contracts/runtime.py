"""The runtime class: what has to be equal before two machines may be compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from tallystick.contracts.types import Count, Digest, OneOf, ShortText

ROW_CLASS: Final = "row-class"
SEQUENTIAL: Final = "sequential"
Policy = Annotated[str, OneOf((ROW_CLASS, SEQUENTIAL))]


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """The engine that ran: ``library`` is the sha256 of the shared object file."""

    name: ShortText
    version: ShortText
    library: Digest


@dataclass(frozen=True, slots=True)
class Knob:
    """One environment variable that the engine library reads once, when it is loaded."""

    name: Annotated[str, OneOf(("GGML_CPU_TILED_MM", "GGML_CPU_TILED_MM_FORCE"))]
    value: Annotated[str, OneOf(("0", "1"))]


@dataclass(frozen=True, slots=True)
class RowClass:
    """Batches of ``floor``..``max_rows`` rows give every row the same bits."""

    floor: Count
    max_rows: Count


@dataclass(frozen=True, slots=True)
class RuntimeClass:
    """Equal runtime classes: bits may be compared. Otherwise nothing may be concluded."""

    engine_library: Digest
    fingerprint: Digest
    policy: Policy
    knobs: tuple[Knob, ...]
    prompt_class: RowClass
    decode_class: RowClass
