"""The observer: the engine's scheduler callback, which sees every node of a graph.

The scheduler asks about each node before it is evaluated; where the answer is yes it stops after
the node, and the output can be read before anything overwrites it. Two taps with one result:
`CompiledTap` (engine/observer.c) and `PythonTap`. Both also check, in the graph itself, what has
no getter: flash attention off and a KV cache of 16-bit floats. What nobody saw is not checked:
`require_cache` demands that a write into the cache was recognised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from tallystick.engine.port import Observation, Watch
from tallystick.errors import IncomparableError, RunFailedError

#: How many elements of a matrix product are read at most.
MAX_READ_ELEMENTS: Final = 64
#: How many nodes are remembered from evaluation to evaluation: far more than one graph has.
MAX_KEPT: Final = 65536


class Tap(Protocol):
    """What watches the graphs of one context."""

    callback: Any
    user_data: Any
    #: Writes into a KV cache that were recognised so far.
    cache_writes: int

    def take(self) -> Observation:
        """Return what was watched since the last call, see `ObservedContext.observation`."""


class LayerListener(Protocol):
    """Who is told of the end of each layer, in the middle of an evaluation: a layer ring."""

    def boundary(self, layer: int) -> None:
        """Note that ``layer`` is done."""

    def failed(self, error: BaseException) -> None:
        """Keep an error of the call, which must not pass through the engine."""


class TapMaker(Protocol):
    """Makes the taps of one library."""

    @property
    def kind(self) -> Literal["compiled", "python"]:
        """What the taps are made of: a fact for the receipt; their results are equal."""

    def open(self, watch: Watch, layers: LayerListener | None = None) -> Tap:
        """Return a new tap, which tells ``layers`` of the end of each layer."""


@dataclass(frozen=True, slots=True)
class Sights:
    """What a tap counted of things that must not be. ``unreadable`` counts tensors in odd forms."""

    flash_nodes: int
    cache_nodes_not_f16: int
    bad_rows: int
    unreadable: int


def check_graph(seen: Sights) -> None:
    """Raise when a graph shows what the context was opened without, or unreadable tensors."""
    if seen.flash_nodes:
        raise IncomparableError(
            "the engine evaluated flash attention although it was turned off",
            expected="no FLASH_ATTN_EXT node",
            found=f"{seen.flash_nodes} nodes",
        )
    if seen.cache_nodes_not_f16:
        raise IncomparableError(
            "the KV cache does not hold 16-bit floats",
            expected="F16 cache tensors",
            found=f"{seen.cache_nodes_not_f16} other writes",
        )
    if seen.bad_rows:
        raise RunFailedError(
            "a layer output is not a plain matrix of floats", found=f"{seen.bad_rows} tensors"
        )
    if seen.unreadable:
        raise RunFailedError(
            "a tensor that is to be read has another form than expected",
            expected="contiguous f32 products, matrices of i32 expert ids",
            found=f"{seen.unreadable} tensors",
        )


def require_cache(writes: int) -> None:
    """Raise when no write into a KV cache was recognised in the graphs of a model that has one."""
    if writes <= 0:
        raise IncomparableError(
            "the type of the KV cache cannot be seen in the engine's graph",
            expected="a SET_ROWS node into cache_k_l or cache_v_l",
            found="none",
            hint="this architecture names its cache in a way that is not known",
        )
