"""The strict reader of transcripts (docs/spec/observer.md#reading).

It takes bytes in pieces of any size and gives records. Sizes and counts are held to their bounds
before anything is kept or parsed, and after one error nothing more is accepted, ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Final

from tallystick.canonical.json import JSONValue, parse_canonical
from tallystick.contracts.codec import decode
from tallystick.errors import EvidenceError
from tallystick.evidence.observer.checks import check_event, check_header_values
from tallystick.evidence.observer.derive import route_layer
from tallystick.evidence.observer.event_lines import EventLines
from tallystick.evidence.observer.records import (
    CONTEXT_TOKENS,
    MAX_EVENTS,
    MAX_LINE,
    MAX_TRANSCRIPT,
    PRODUCT,
    AnyEvent,
    Event,
    GemmEvent,
    Header,
    Result,
    Route,
    SketchEvent,
)
from tallystick.evidence.observer.sealing import (
    AnyHeader,
    Record,
    SealingHeader,
    SealingStep,
    decode_header,
    sealing_steps,
)
from tallystick.evidence.observer.states import (
    AwaitingPrefill,
    AwaitingSealing,
    State,
    advance,
    chunks_of,
    position,
    steps,
)

_BEGINNING: Final = b'{"cuda_kernel_trace":'  # the first of a header's sorted keys
_MAX_DEPTH: Final = 8
_MAX_FOREIGN_DEPTH: Final = 32  # of a file of another kind, which is to be recognised as one
_WHERE: Final = "transcript"


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a transcript; a reader may be given narrower ones."""

    events: int = MAX_EVENTS
    line: int = MAX_LINE
    total: int = MAX_TRANSCRIPT


@dataclass(frozen=True, slots=True)
class Transcript:
    """What a whole transcript was: its first and last record, and counts."""

    header: AnyHeader
    result: Result = field(repr=False)
    events: int
    gemms: int
    routes: int
    prefill_steps: int
    decode_steps: int
    sealing_steps: int


class TranscriptReader:
    """Reads one transcript. Every method raises EvidenceError, and from then on always."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._line = bytearray()
        self._size = 0
        self._poisoned = False
        self._header: AnyHeader | None = None
        self._chunks: tuple[SealingStep, ...] = ()  # of a sealing pass
        self._result: Result | None = None
        self._state: State = AwaitingPrefill()
        self._events = self._gemms = self._routes = 0
        # An event of chosen experts, and the positions whose routes have to come next.
        self._owed: tuple[AnyEvent, list[int]] | None = None
        self._lines = EventLines()

    def feed(self, data: bytes) -> tuple[Record, ...]:
        """Take the next bytes and return the records whose lines they complete."""
        self._require_sound()
        try:
            return tuple(self._feed(data))
        except BaseException:
            self._poison()
            raise

    def finish(self) -> Transcript:
        """Say that there are no more bytes, and return what the transcript was."""
        self._require_sound()
        if self._line or self._header is None or self._result is None:
            error = self._unfinished()
            self._poison()
            raise error
        prefill, decoded = steps(self._state)
        return Transcript(
            self._header,
            self._result,
            self._events,
            self._gemms,
            self._routes,
            prefill,
            decoded,
            chunks_of(self._state),
        )

    def _unfinished(self) -> EvidenceError:
        line = bytes(self._line)
        if self._header is None and line and not _may_begin(line, self._limits.line):
            return _no_transcript()
        return EvidenceError(
            "the transcript is cut short",
            expected="a last line, the result",
            hint="copy it whole; if its run failed there is no more of it: observe again",
        )

    def _require_sound(self) -> None:
        if self._poisoned:
            raise EvidenceError("the transcript was refused before: nothing more is read of it")

    def _poison(self) -> None:
        self._poisoned = True
        self._line.clear()
        self._lines = EventLines()
        self._header = self._result = self._owed = None

    def _feed(self, data: bytes) -> Iterator[Record]:
        self._size += len(data)
        if self._size > self._limits.total:
            raise _too_large("transcript", self._limits.total)
        start = 0
        while start < len(data):
            end = data.find(b"\n", start)
            stop = len(data) if end < 0 else end
            if len(self._line) + stop - start + 1 > self._limits.line:
                raise _too_large("transcript's line", self._limits.line)
            self._line += data[start:stop]
            if end < 0:
                return
            line = bytes(self._line)
            self._line.clear()
            start = end + 1
            yield self._record(line)

    def _record(self, line: bytes) -> Record:
        if self._result is not None:
            raise EvidenceError("the transcript goes on behind its result")
        if self._header is not None and self._owed is None:
            again = self._lines.find(line)
            if again is not None:
                self._take_in_order(again)
                return again
        if self._header is None and not _may_begin(line, self._limits.line):
            raise _no_transcript()
        value = parse_canonical(line, max_bytes=self._limits.line, max_depth=_MAX_DEPTH)
        kind = _kind(value)
        if (kind is Header) != (self._header is None):
            raise EvidenceError("a transcript has one header, and it comes first")
        if self._owed is not None and kind is not Route:
            raise EvidenceError("an event of chosen experts is not followed by its route")
        if kind is Header:
            return self._take_header(decode_header(value, where=_WHERE))
        record = decode(kind, value, where=_WHERE)
        assert not isinstance(record, Header)
        if isinstance(record, Route):
            self._take_route(record)
        elif isinstance(record, Result):
            self._take_result(record)
        else:
            check_event(record, self._observer())
            self._take_in_order(record)
            self._lines.keep(line, record)
        return record

    def _take_header(self, header: AnyHeader) -> AnyHeader:
        check_header_values(header)
        self._header = header
        if isinstance(header, SealingHeader):
            self._chunks = sealing_steps(header.execution_policy)
            self._state = AwaitingSealing()
        return header

    def _take_in_order(self, event: AnyEvent) -> None:
        if self._events == self._limits.events:
            raise EvidenceError(
                "the transcript has too many events", expected=f"at most {self._limits.events}"
            )
        if event.event_seq != self._events + 1:
            raise EvidenceError(
                "an event's number is out of order",
                expected=str(self._events + 1),
                found=str(event.event_seq),
            )
        self._state = advance(self._state, event.phase, event.phase_step)
        self._events += 1
        self._gemms += event.tensor.op == PRODUCT
        if self._chunks and event.phase_step >= len(self._chunks):
            raise EvidenceError(
                "a sealing pass has more steps than the header's tokens make chunks",
                expected=str(len(self._chunks)),
            )
        layer = route_layer(event.tensor.name)
        if self._observer() == "sketch" and layer is not None:
            positions = self._positions(event, layer)
            self._owed = (event, positions) if positions else None

    def _positions(self, event: AnyEvent, layer: int) -> list[int]:
        """Return the positions whose chosen experts in ``layer`` are due after ``event``."""
        if not self._chunks:
            return [position(self._state)]
        assert self._header is not None
        step = self._chunks[event.phase_step]
        last = layer == self._header.model.n_layer - 1
        rows = prod(event.tensor.shape[1:])
        if rows != step.rows and not (last and rows == step.outputs):
            raise EvidenceError(
                "an event of chosen experts has other rows than its step",
                expected=str(step.rows),
                found=str(rows),
            )
        end = step.first + step.tokens
        return [*range(end - step.due if last else step.first, end)]

    def _take_route(self, route: Route) -> None:
        if self._owed is None:
            raise EvidenceError("a route does not follow an event of chosen experts")
        event, positions = self._owed
        due = positions.pop(0)
        if not positions:
            self._owed = None
        expected = (
            self._routes + 1,
            event.event_seq,
            event.phase,
            event.phase_step,
            due,
            event.layer,
            event.sources[0].shape[0] if event.sources else 0,
            event.tensor.shape[0],
        )
        found = (
            route.route_seq,
            route.event_seq,
            route.phase,
            route.phase_step,
            route.position,
            route.layer,
            route.expert_count,
            len(route.expert_ids),
        )
        if expected != found:
            raise EvidenceError("a route does not fit the event before it")
        if len({*route.expert_ids}) != len(route.expert_ids):
            raise EvidenceError(
                "a route names an expert twice",
                expected=f"{len(route.expert_ids)} different ids",
                found=f"{len({*route.expert_ids})} of them",
            )
        if max(route.expert_ids) >= route.expert_count:
            raise EvidenceError(
                "a route names an expert that does not exist",
                expected=f"ids below {route.expert_count}",
            )
        self._routes += 1

    def _take_result(self, result: Result) -> None:
        assert self._header is not None
        prompt, generated = len(result.prompt_token_ids), len(result.generated_token_ids)
        if not prompt or not generated or prompt + generated > CONTEXT_TOKENS:
            raise EvidenceError(
                "the result has an impossible number of tokens",
                expected=f"1 or more of each, {CONTEXT_TOKENS} in all",
                found=f"{prompt} and {generated}",
            )
        vocabulary = self._header.model.n_vocab
        if max(*result.prompt_token_ids, *result.generated_token_ids) >= vocabulary:
            raise EvidenceError("the result has an id beyond the vocabulary")
        if result.output_bytes and len(result.output_bytes) != result.output_n_bytes:
            raise EvidenceError(
                "the result has another number of output bytes than it says",
                expected=str(result.output_n_bytes),
                found=str(len(result.output_bytes)),
            )
        if result.event_count != self._events:
            raise EvidenceError(
                "the result counts other events than there are",
                expected=str(self._events),
                found=str(result.event_count),
            )
        self._require_evaluated(prompt, generated)
        self._result = result

    def _require_evaluated(self, prompt: int, generated: int) -> None:
        """Hold the numbers of tokens to the steps that there were."""
        header = self._header
        if isinstance(header, SealingHeader):
            policy = header.execution_policy
            if (prompt, generated) != (policy.prompt_tokens, policy.generated_tokens):
                raise EvidenceError("the result has other tokens than the header says")
            if chunks_of(self._state) != len(self._chunks):
                raise EvidenceError(
                    "a sealing pass has fewer steps than the header's tokens make chunks",
                    expected=str(len(self._chunks)),
                    found=str(chunks_of(self._state)),
                )
        # The first token is sampled from the prompt's logits, and the last is not evaluated.
        elif self._observer() != "off" and steps(self._state) != (prompt, generated - 1):
            raise EvidenceError(
                "the result has other tokens than were evaluated",
                expected="as many prompt tokens as prefill steps, one more generated than decoded",
            )

    def _observer(self) -> str:
        assert self._header is not None
        return self._header.observer


def read_transcript(pieces: Iterable[bytes], limits: Limits | None = None) -> Transcript:
    """Return what the transcript in ``pieces`` is, keeping only its first and last record.

    Raises EvidenceError when it is not one.
    """
    reader = TranscriptReader(limits)
    for piece in pieces:
        reader.feed(piece)
    return reader.finish()


def _may_begin(line: bytes, max_bytes: int) -> bool:
    """Say whether ``line``, the first, is of a transcript: any record's, or a damaged one."""
    if line.startswith(_BEGINNING):
        return True
    try:
        value = parse_canonical(line, max_bytes=max_bytes, max_depth=_MAX_FOREIGN_DEPTH)
    except EvidenceError:
        return line.startswith(b"{")
    return isinstance(value, dict) and "record" in value


def _no_transcript() -> EvidenceError:
    return EvidenceError(
        "this is not a transcript of `tallystick observe`",
        expected="the header as the first line",
        found="something else",
        hint="give the file that the output of `tallystick observe` was written to",
    )


def _kind(value: JSONValue) -> type[Header | AnyEvent | Route | Result]:
    """Return the type of the record ``value``; which keys it has to have follows from two."""
    if not isinstance(value, dict):
        raise EvidenceError(
            "a line of the transcript is not an object",
            expected="a JSON object",
            found=type(value).__name__,
        )
    record = value.get("record")
    if record == "header":
        return Header
    if record == "route":
        return Route
    if record == "result":
        return Result
    if record == "event":
        if value.get("stage") == "post_compute_sketch":
            return SketchEvent
        return GemmEvent if "gemm" in value else Event
    raise EvidenceError("a line of the transcript is of no known kind")


def _too_large(what: str, bound: int) -> EvidenceError:
    return EvidenceError(f"the {what} is too large", expected=f"at most {bound} bytes")
