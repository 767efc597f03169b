"""The ring's order of moves, on pages that only count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from tallystick.contracts.residency import Extent, Residency
from tallystick.engine.pages import Span
from tallystick.engine.ring import LayerRing
from tallystick.errors import IncomparableError, RunFailedError

PAGE = 4096


class CountedPages:
    """A file of pages in memory; ``told`` False is a kernel that says every page is there."""

    def __init__(self, pages: int, *, told: bool = True, slow: bool = False) -> None:
        self.there = set(range(pages))
        self.asked: set[int] = set()
        self.told, self.slow = told, slow
        self.broken: OSError | None = None

    def spans(self, start: int, end: int) -> tuple[Span, ...]:
        return (Span(start, end - start, start),) if end > start else ()

    def drop(self, spans: Iterable[Span]) -> None:
        if self.broken is not None:
            raise self.broken
        self.there -= self._pages(spans)

    def fetch(self, spans: Iterable[Span]) -> None:
        self.asked |= self._pages(spans)
        if not self.slow:
            self.arrive()

    def arrive(self) -> None:
        self.there |= self.asked
        self.asked.clear()

    def absent(self, spans: Iterable[Span]) -> int:
        return len(self._pages(spans) - self.there) if self.told else 0

    @staticmethod
    def _pages(spans: Iterable[Span]) -> set[int]:
        return {page for s in spans for page in range(s.start // PAGE, (s.start + s.size) // PAGE)}


def extents(layers: int, pages: int = 2) -> tuple[Extent, ...]:
    size = pages * PAGE
    return tuple(Extent(n, n * size, (n + 1) * size) for n in range(layers))


class Story:
    """A ring of ``layers`` layers, and all that it told."""

    def __init__(self, layers: int, depth: int, pages: CountedPages | None = None) -> None:
        self.layers = layers
        self.pages = pages or CountedPages(2 * layers)
        self.told: list[tuple[str, int]] = []
        self.ring = LayerRing(
            self.pages, extents(layers), layers, depth, lambda what, n: self.told.append((what, n))
        )

    def evaluate(self, ends: Sequence[int] | None = None) -> None:
        """Evaluate, each layer touching its pages; ``ends`` are the ends that the engine shows."""
        self.ring.begin()
        for layer in range(self.layers) if ends is None else ends:
            self.pages.there |= {2 * layer, 2 * layer + 1}
            self.ring.boundary(layer)
        self.ring.end()


def test_after_the_load_nothing_is_left() -> None:
    story = Story(3, 1)
    assert story.told == [("evicted", 0), ("evicted", 1), ("evicted", 2)]
    assert story.pages.there == set()
    assert story.ring.residency() == Residency(1, "ring", 3, 0, 0)


def test_the_order_of_moves() -> None:
    story = Story(3, 2)
    del story.told[:]
    story.evaluate()
    assert story.told == [
        ("miss", 0), ("installed", 0), ("installed", 1),
        ("evicted", 0), ("hit", 1), ("installed", 2),
        ("evicted", 1), ("hit", 2), ("installed", 0),
        ("evicted", 2), ("installed", 1),
    ]  # fmt: skip
    del story.told[:]
    story.evaluate()
    assert story.told[0] == ("hit", 0)
    assert story.ring.residency() == Residency(2, "ring", 9, 5, 1)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_never_more_layers_than_the_depth(depth: int) -> None:
    story = Story(5, depth)
    held = set(range(5))
    most = 0
    for _ in range(3):
        story.evaluate()
    for what, layer in story.told:
        if what == "evicted":
            held.remove(layer)
        elif what == "installed":
            assert layer not in held
            held.add(layer)
            most = max(most, len(held))
    assert most == depth
    assert len(story.pages.there) == 2 * depth


def test_what_is_not_there_yet_is_a_miss() -> None:
    story = Story(3, 2, CountedPages(6, slow=True))
    story.evaluate()
    assert story.ring.residency() == Residency(2, "ring", 6, 0, 3)


def test_a_kernel_that_says_everything_is_there_is_not_believed() -> None:
    story = Story(3, 2, CountedPages(6, told=False))
    story.evaluate()
    assert story.ring.residency() == Residency(2, "unobservable", 6, 0, 0)
    assert {what for what, _ in story.told} == {"evicted", "installed"}


def test_layers_that_the_engine_does_not_use_are_given_up_for_good() -> None:
    pages = CountedPages(8)
    ring = LayerRing(pages, extents(4), 3, 1, lambda _what, _layer: None)
    assert pages.there == set()
    assert ring.residency().evictions == 3


def test_the_last_end_may_be_missing() -> None:
    story = Story(3, 1)
    story.evaluate((0, 1))
    story.evaluate()
    assert story.ring.residency() == Residency(1, "ring", 9, 1, 5)


@pytest.mark.parametrize("ends", [(), (0,), (1,), (0, 2), (0, 0, 1, 2), (0, 1, 2, 3)])
def test_layers_out_of_order_are_refused(ends: tuple[int, ...]) -> None:
    story = Story(4, 2) if ends != (0, 1, 2, 3) else Story(3, 2)
    with pytest.raises(IncomparableError, match="ring"):
        story.evaluate(ends)


def test_a_layer_without_a_page_is_refused() -> None:
    with pytest.raises(IncomparableError) as caught:
        LayerRing(CountedPages(6), extents(2), 3, 1, lambda _what, _layer: None)
    assert caught.value.found == "none of layer 2"


def test_a_kernel_that_refuses() -> None:
    pages = CountedPages(6)
    pages.broken = OSError(22, "Invalid argument")
    with pytest.raises(IncomparableError, match="ring"):
        Story(3, 1, pages)
    story = Story(3, 1)
    story.pages.broken = OSError(5, "Input/output error")
    with pytest.raises(RunFailedError) as caught:
        story.evaluate()
    assert caught.value.found == "Input/output error"


def test_what_went_wrong_in_a_call_is_told_at_the_end() -> None:
    story = Story(3, 1)
    story.ring.begin()
    story.ring.failed(ValueError("in the middle"))
    with pytest.raises(ValueError, match="middle"):
        story.ring.end()
