"""`observe`: run a model under `sequential` and stream the transcript of its graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from tallystick.canonical.json import parse_strict
from tallystick.contracts.runtime import SEQUENTIAL
from tallystick.contracts.sandbox_profile import SandboxProfile, holding
from tallystick.errors import (
    EvidenceError,
    IncomparableError,
    InputError,
    RunFailedError,
    UsageError,
)
from tallystick.evidence.adapter.gates import HeaderGate, check_header, gate_of
from tallystick.evidence.observer.records import (
    MAX_GENERATED,
    MAX_LINE,
    MAX_TRANSCRIPT,
    OBSERVERS,
)
from tallystick.evidence.observer.sealing import decode_header
from tallystick.execution.jobs import ObserveJob
from tallystick.execution.launch import OnProgress, find_engine, no_progress, run_job
from tallystick.models.registry import open_model, resolve
from tallystick.store.home import home as default_home

DEFAULT_TOKENS: Final = 2
_MAX_PROMPT_BYTES: Final = 1024 * 1024

OnLine = Callable[[bytes], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveOptions:
    """What a user may choose about one observed run; ``prompt`` is private.

    ``observer`` is "off", "graph" or "sketch"; ``output_bytes`` says whether the result's record
    carries the answer's bytes.
    """

    prompt: str = field(repr=False)
    observer: str = "sketch"
    policy: str = SEQUENTIAL
    max_tokens: int = DEFAULT_TOKENS
    output_bytes: Literal["omit", "emit"] = "omit"


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """Counts of an observed run; everything else is in its transcript."""

    events: int
    routes: int
    prompt_tokens: int
    generated_tokens: int


def observe(
    model: str,
    options: ObserveOptions,
    *,
    on_line: OnLine,
    home: Path | None = None,
    sandbox: SandboxProfile | None = None,
    on_progress: OnProgress = no_progress,
) -> ObservedRun:
    """Run ``model`` (a name or a path) and give every line of its transcript to ``on_line``.

    The lines (docs/spec/observer.md) are private: prompt and answer are in the last one. A run
    that fails on the way leaves a transcript without that last line, which no reader accepts.
    ``sandbox`` holds every child that opens the model; SandboxError where it cannot. Also raises
    UsageError, InputError, IncomparableError or RunFailedError.
    """
    _check(options)
    where = home or default_home()
    engine = find_engine(where)
    chosen = resolve(model, where, on_progress, sandbox)
    gate = gate_of(chosen.facts)
    lines = TranscriptLines(on_line, lambda line: require_gate(line, gate))
    with open_model(chosen) as opened:
        job = ObserveJob(
            setup=engine.setup(1),
            model_fd=opened.fd,
            file_name=chosen.path.name,
            prompt=options.prompt,
            max_tokens=options.max_tokens,
            observer=options.observer,
            output_bytes=options.output_bytes,
        )
        outcome = run_job(
            job,
            (),
            on_progress=on_progress,
            on_text=lines.take,
            model_fd=opened.fd,
            sandbox=holding(sandbox),
        )
        opened.unchanged()
    return _observed_run(outcome.body)


class TranscriptLines:
    """Cuts the child's pieces into lines. It may send no more than a reader would accept.

    ``on_header`` looks at the first line before it is passed on.
    """

    def __init__(self, on_line: OnLine, on_header: OnLine) -> None:
        self._on_line = on_line
        self._on_header = on_header
        self._size = 0

    def take(self, piece: bytes) -> None:
        """Pass on the lines of ``piece``. Raises RunFailedError for what is no transcript."""
        self._size += len(piece)
        if not piece.endswith(b"\n") or self._size > MAX_TRANSCRIPT:
            raise RunFailedError("the child sent a malformed transcript")
        first = self._size == len(piece)
        for line in piece.splitlines(keepends=True):
            if first:
                self._on_header(line)
                first = False
            self._on_line(line)


def require_gate(line: bytes, gate: HeaderGate) -> None:
    """Hold the first line to what the model's file says.

    Raises IncomparableError when the engine saw another model than the file describes.
    """
    try:
        header = decode_header(parse_strict(line, max_bytes=MAX_LINE), where="header")
        # How far the file stretches its positions is not among its facts.
        scale = header.model.rope_freq_scale_train
        check_header(header, replace(gate, rope_frequency_scale=scale))
    except EvidenceError as error:
        raise IncomparableError(
            f"the engine's view of the model is not that of its file: {error.message}",
            expected=error.expected,
            found=error.found,
        ) from None


def _check(options: ObserveOptions) -> None:
    if options.policy != SEQUENTIAL:
        raise UsageError(
            "only sequential runs are observed step by step",
            expected=f"--policy {SEQUENTIAL}",
            found=options.policy[:40],
            hint="under another policy the shapes of products depend on how rows share a batch",
        )
    if options.observer not in OBSERVERS:
        raise UsageError(
            "unknown observer", expected=" or ".join(OBSERVERS), found=options.observer[:40]
        )
    if not 1 <= options.max_tokens <= MAX_GENERATED:
        raise UsageError(
            "the number of tokens to generate is out of range",
            expected=f"1 to {MAX_GENERATED}",
            found=str(options.max_tokens),
        )
    try:
        size = len(options.prompt.encode())
    except UnicodeEncodeError:
        raise InputError("the prompt is not valid Unicode", expected="UTF-8 text") from None
    if not 1 <= size <= _MAX_PROMPT_BYTES or "\x00" in options.prompt:
        raise InputError(
            "the prompt cannot be used",
            expected=f"1 to {_MAX_PROMPT_BYTES} bytes of text without NUL",
            found=f"{size} bytes",
        )


def _observed_run(body: dict[str, Any]) -> ObservedRun:
    def count(name: str) -> int:
        value = body.get(name)
        if type(value) is not int or not 0 <= value < 2**32:
            raise RunFailedError("the child sent a malformed result", found=name)
        return value

    return ObservedRun(
        count("events"), count("routes"), count("prompt_tokens"), count("generated_tokens")
    )
