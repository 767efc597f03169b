"""What every job of an engine child works with: its voice, and the engine with a model loaded."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from tallystick.contracts.residency import NO_RING, Residency, RingPlan
from tallystick.engine.libllama.adapter import LlamaModel, open_model
from tallystick.engine.libllama.compiled_tap import open_taps
from tallystick.engine.libllama.library import Library
from tallystick.engine.libllama.tap import TapMaker
from tallystick.engine.pages import MappedFile
from tallystick.engine.ring import Happening, LayerRing
from tallystick.errors import EvidenceError, IncomparableError
from tallystick.evidence.adapter.offload import scan_offload
from tallystick.execution.jobs import EngineSetup
from tallystick.sandbox.channel import Channel
from tallystick.telemetry.events import MAX_LAYER_EVENTS, EventKind, Stamper
from tallystick.telemetry.rss import resident_bytes

_LAYER_EVENTS: Final[Mapping[Happening, EventKind]] = {
    "hit": EventKind.PREFETCH_HIT,
    "miss": EventKind.PREFETCH_MISS,
    "installed": EventKind.LAYER_INSTALLED,
    "evicted": EventKind.LAYER_EVICTED,
}


class Reporter:
    """Sends events, tokens and progress; every event carries time and memory at source.

    None of them waits for the supervisor. An event that there is no room for is dropped; it has had
    its number all the same, so that the supervisor knows.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._stamp = Stamper(resident_bytes)
        self._last = 0.0
        self._layer_events = 0

    def layer(self, happening: Happening, layer: int) -> None:
        """Report what happened to a layer in a ring, unless enough of that was reported.

        What is not reported has no number either: it was not dropped, the receipt's counts have it.
        """
        if self._layer_events < MAX_LAYER_EVENTS:
            self._layer_events += 1
            self.event(_LAYER_EVENTS[happening], layer=layer)

    def event(self, kind: EventKind, index: int | None = None, layer: int | None = None) -> None:
        """Report a telemetry event."""
        event = self._stamp(kind, index, layer)
        self._channel.offer(
            "event",
            {
                "event": str(event.kind),
                "seq": event.seq,
                "monotonic_ns": str(event.monotonic_ns),
                "wall_ns": str(event.wall_ns),
                "rss": str(event.rss),
                "index": event.index,
                "layer": event.layer,
            },
        )

    @property
    def events(self) -> int:
        """How many events there were, dropped ones included."""
        return self._stamp.next_seq

    def progress(self, what: str) -> Callable[[int, int], None]:
        """Return a progress function that speaks at most five times a second."""

        def report(done: int, total: int) -> None:
            now = time.monotonic()
            if done == total or now - self._last > 0.2:
                self._last = now
                self._channel.progress(what, done, total)

        return report

    def token(self, index: int, text: bytes) -> None:
        """Report a token and its bytes."""
        self.event(EventKind.TOKEN_EMITTED, index)
        self.text(index, text)

    def text(self, index: int, text: bytes) -> None:
        """Send piece ``index`` of what the supervisor streams on. It is never dropped."""
        self._channel.post("text", {"index": index, "bytes": base64.b64encode(text).decode()})

    def data(self, piece: bytes) -> None:
        """Send a piece of much that the supervisor streams on."""
        self._channel.send_data(piece)


# A process that is forked by a template has the engine already.
_loaded: dict[tuple[str, str, str | None], tuple[Library, TapMaker]] = {}


def load_engine(setup: EngineSetup) -> tuple[Library, TapMaker]:
    """Return the library and the observer of ``setup``, loaded once in this process."""
    key = (setup.library, setup.identity, setup.observer)
    if key not in _loaded:
        library = Library(Path(setup.library))
        observer = None if setup.observer is None else Path(setup.observer)
        _loaded[key] = library, open_taps(library, observer)
    return _loaded[key]


class Engine:
    """The library and the model of one job; with a ``plan`` its layers move in a ring."""

    def __init__(
        self,
        setup: EngineSetup,
        model_fd: int,
        reporter: Reporter,
        plan: RingPlan | None = None,
    ) -> None:
        self.library, taps = load_engine(setup)
        self.threads = setup.threads
        self.observer = taps.kind
        reporter.event(EventKind.LOADING)
        started = time.monotonic_ns()
        loading = reporter.progress("loading")
        self.model: LlamaModel = open_model(
            self.library, model_fd, taps, lambda done: loading(int(done * 1000), 1000)
        )
        self.load_ns = time.monotonic_ns() - started
        reporter.event(EventKind.LOAD_COMPLETE)
        require_processor(self.library.offload_log())
        self._asked_depth = 0 if plan is None else plan.depth
        self._ring: LayerRing | None = None
        # With room for every layer nothing has to move: the loader has read them all.
        if plan is not None and plan.depth < self.model.layers:
            self._ring = LayerRing(
                MappedFile(model_fd), plan.extents, self.model.layers, plan.depth, reporter.layer
            )
            self.model.move_layers(self._ring)

    def residency(self) -> Residency:
        """Return what became of the model's pages so far."""
        if self._ring is None:
            return replace(NO_RING, ring_depth=self._asked_depth)
        return self._ring.residency()


def require_processor(log: str) -> None:
    """Raise IncomparableError where the library's log says that a layer is on a GPU."""
    try:
        offload = scan_offload(log)
    except EvidenceError as error:
        raise IncomparableError(error.message, expected=error.expected, found=error.found) from None
    if not offload.on_processor:
        raise IncomparableError(
            "the engine put layers on a GPU",
            expected="every layer on the processor",
            found=f"{offload.layers} of {offload.total} layers elsewhere",
            hint="install the pinned build of the engine, which has no GPU in it",
        )
