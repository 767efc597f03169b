"""Where a model's layers lie in its file, and how many of them a run keeps in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from tallystick.contracts.types import U32, U64, Count, MaxLength, OneOf

#: More layers than any engine holds: no ring is that deep.
MAX_RING_DEPTH: Final = 4096
MAX_EXTENTS: Final = 16384

RESIDENCIES: Final = ("all_resident", "ring", "unobservable")
ResidencyName = Literal["all_resident", "ring", "unobservable"]


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes ``start``..``end`` (exclusive) of a model file hold tensors of ``layer`` alone."""

    layer: U32
    start: U64
    end: U64


@dataclass(frozen=True, slots=True)
class LayerExtents:
    """Where the tensors of the layers are, in the order of the file; others are left out."""

    extents: Annotated[tuple[Extent, ...], MaxLength(MAX_EXTENTS)]


@dataclass(frozen=True, slots=True)
class RingPlan:
    """Keep at most ``depth`` layers in memory, which lie where ``extents`` say."""

    depth: Count
    extents: Annotated[tuple[Extent, ...], MaxLength(MAX_EXTENTS)]


@dataclass(frozen=True, slots=True)
class Residency:
    """What became of the model's pages in one run.

    ``ring_depth`` is what was asked for, 0 for no ring. ``prefetch_hits`` and ``prefetch_misses``
    count layers that were, and were not, wholly in memory when their evaluation began; both are 0
    where the kernel does not tell.
    """

    ring_depth: U32
    residency: Annotated[str, OneOf(RESIDENCIES)]
    evictions: U64
    prefetch_hits: U64
    prefetch_misses: U64


#: Nothing was given up: the receipt of every run without a ring.
NO_RING: Final = Residency(0, "all_resident", 0, 0, 0)
