"""What every job of an engine child works with: its voice, and the engine with a model loaded."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from pathlib import Path

from tallystick.engine.libllama.adapter import LlamaModel, open_model
from tallystick.engine.libllama.compiled_tap import open_taps
from tallystick.engine.libllama.library import Library
from tallystick.engine.libllama.tap import TapMaker
from tallystick.errors import EvidenceError, IncomparableError
from tallystick.evidence.adapter.offload import scan_offload
from tallystick.execution.jobs import EngineSetup
from tallystick.sandbox.channel import Channel
from tallystick.telemetry.events import EventKind, Stamper
from tallystick.telemetry.rss import resident_bytes


class Reporter:
    """Sends events, tokens and progress; every event carries time and memory at source.

    None of them waits for the supervisor. An event that there is no room for is dropped; it has had
    its number all the same, so that the supervisor knows.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._stamp = Stamper(resident_bytes)
        self._last = 0.0

    def event(self, kind: EventKind, index: int | None = None) -> None:
        """Report a telemetry event."""
        event = self._stamp(kind, index)
        self._channel.offer(
            "event",
            {
                "event": str(event.kind),
                "seq": event.seq,
                "monotonic_ns": str(event.monotonic_ns),
                "wall_ns": str(event.wall_ns),
                "rss": str(event.rss),
                "index": event.index,
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
    """The library and the model of one job."""

    def __init__(self, setup: EngineSetup, model_fd: int, reporter: Reporter) -> None:
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
