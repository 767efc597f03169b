"""The layer ring: at most so many layers of a model are in memory at a time.

The engine evaluates one layer after the other. Where a layer ends its pages are given up, and the
next ones are read ahead while the engine computes (docs/spec/execution.md#layer-ring). No bit
depends on it: pages of a file are read again as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, Protocol

from tallystick.contracts.residency import Extent, Residency
from tallystick.engine.pages import Span
from tallystick.errors import IncomparableError, RunFailedError

#: What happened to a layer; see docs/spec/telemetry.md for the events' meanings.
Happening = Literal["hit", "miss", "installed", "evicted"]
Tell = Callable[[Happening, int], None]


class Pages(Protocol):
    """What a ring moves: see :class:`tallystick.engine.pages.MappedFile`."""

    def spans(self, start: int, end: int) -> tuple[Span, ...]:
        """Return the whole pages within a range of the file."""

    def drop(self, spans: Iterable[Span]) -> None:
        """Give pages up."""

    def fetch(self, spans: Iterable[Span]) -> None:
        """Read pages ahead."""

    def absent(self, spans: Iterable[Span]) -> int:
        """Return how many pages are not in memory."""


class LayerRing:
    """Moves ``layers`` layers through memory, ``depth`` of them (fewer than all) at a time.

    The loader has read everything, so making a ring begins with giving every layer up. What that
    shows decides whether the kernel tells the truth about pages: where it says that every one of
    them is still there, nothing it says is taken for a hit.

    Raises IncomparableError when the extents name other layers than the engine has, or the kernel
    does not give pages up.
    """

    def __init__(
        self, pages: Pages, extents: Iterable[Extent], layers: int, depth: int, tell: Tell
    ) -> None:
        self._pages = pages
        self._layers, self._depth, self._tell = layers, depth, tell
        self._spans: list[tuple[Span, ...]] = [() for _ in range(layers)]
        self._held: set[int] = set(range(layers))
        self._at = layers  # the layer that is evaluated now; all are behind between evaluations
        self._failure: Exception | None = None
        self._evictions = self._hits = self._misses = 0
        unused = self._place(extents)
        try:
            pages.drop(unused)
            for layer in range(layers):
                self._evict(layer)
            self._observable = any(pages.absent(spans) for spans in self._spans)
        except OSError as error:
            raise _impossible(
                "a kernel that gives up the pages of a mapping", error.strerror or "an error"
            ) from None

    def _place(self, extents: Iterable[Extent]) -> tuple[Span, ...]:
        """Find the pages of each layer; return those that the engine does not use."""
        unused: tuple[Span, ...] = ()
        for extent in extents:
            found = self._pages.spans(extent.start, extent.end)
            if extent.layer < self._layers:
                self._spans[extent.layer] += found
            else:
                unused += found
        for layer, spans in enumerate(self._spans):
            if not spans:
                raise _impossible(
                    "tensors of every layer that fill a page of memory", f"none of layer {layer}"
                )
        return unused

    def begin(self) -> None:
        """Note that an evaluation begins, with layer 0; what goes wrong is told by :meth:`end`."""
        self._at = 0
        try:
            self._enter()
        except OSError as error:
            self._failure = error

    def boundary(self, layer: int) -> None:
        """Note that ``layer`` is done: it is given up, and the next one begins.

        Called by the engine, through which no exception may pass: :meth:`end` raises it.
        """
        if self._failure is not None:
            return
        try:
            if layer != self._at or layer == self._layers:
                raise _impossible(
                    f"layers that are evaluated one after the other: now layer {self._at}",
                    f"the end of layer {layer}",
                )
            self._leave()
        except Exception as error:
            self._failure = error

    def failed(self, error: BaseException) -> None:
        """Keep an error that a caller of :meth:`boundary` met, for :meth:`end`."""
        if self._failure is None and isinstance(error, Exception):
            self._failure = error

    def end(self) -> None:
        """Note that the evaluation is over. Raises what went wrong in it.

        IncomparableError when the ends of layers could not be seen, RunFailedError when the kernel
        refused to move pages.
        """
        # The last layer's output is not computed in a batch without outputs.
        if self._failure is None and self._at == self._layers - 1:
            self.boundary(self._at)
        failure = self._failure
        if isinstance(failure, OSError):
            raise RunFailedError(
                "the kernel did not move the pages of a layer", found=failure.strerror
            ) from None
        if failure is not None:
            raise failure
        if self._at != self._layers:
            raise _impossible(
                f"the ends of {self._layers} layers in the engine's graph", f"{self._at} of them"
            )

    def residency(self) -> Residency:
        """Return what was done so far, and what was seen."""
        name = "ring" if self._observable else "unobservable"
        return Residency(self._depth, name, self._evictions, self._hits, self._misses)

    def _leave(self) -> None:
        self._evict(self._at)
        self._at += 1
        if self._at < self._layers:
            self._enter()
        else:
            self._read_ahead()  # the first ones, for the next evaluation

    def _enter(self) -> None:
        """Look whether the layer is there before anything else of it is asked for."""
        if self._observable:
            if self._pages.absent(self._spans[self._at]):
                self._misses += 1
                self._tell("miss", self._at)
            else:
                self._hits += 1
                self._tell("hit", self._at)
        self._read_ahead()

    def _read_ahead(self) -> None:
        for ahead in range(self._at, self._at + self._depth):
            layer = ahead % self._layers
            if layer not in self._held:
                self._pages.fetch(self._spans[layer])
                self._held.add(layer)
                self._tell("installed", layer)

    def _evict(self, layer: int) -> None:
        self._pages.drop(self._spans[layer])
        self._held.discard(layer)
        self._evictions += 1
        self._tell("evicted", layer)


def _impossible(expected: str, found: str) -> IncomparableError:
    return IncomparableError(
        "a layer ring is not possible for this model, or here",
        expected=expected,
        found=found,
        hint="run without a ring (--ring-depth 0)",
    )
