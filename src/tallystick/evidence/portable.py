"""The evidence of a run as its verification bundle carries it, in clear.

It holds what a verifier derives everything else from. The total and the ruleset that it claims are
never used: they are derived again, and must agree (docs/spec/evidence.md#portable-evidence).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from tallystick.canonical.codec import BinaryReader, BinaryWriter, decode_strict
from tallystick.compute.architecture import Architecture
from tallystick.compute.rules import RULES_V3, ruleset_of_version
from tallystick.compute.schedule import SemanticSummary, summarise_schedule
from tallystick.compute.semantic import semantic_units
from tallystick.contracts.commitments import (
    empty_gemm_root,
    empty_route_root,
    empty_state_root,
    no_trace_scheme,
    state_evidence_root,
)
from tallystick.contracts.compute_receipt import EvidenceLevel, TraceEvidence
from tallystick.errors import EvidenceError, InputError
from tallystick.evidence.gemm_trace import trace_scheme
from tallystick.evidence.schedule import (
    MAX_SCHEDULE_BYTES,
    OperationSchedule,
    read_schedule,
    write_schedule,
)
from tallystick.evidence.schedule_checks import check_schedule, price

PORTABLE_VERSION: Final = 1
MAX_PORTABLE_BYTES: Final = MAX_SCHEDULE_BYTES + 512
_WHERE: Final = "portable evidence"


class ScheduleKind(IntEnum):
    """Which schedule a receipt commits to: the one its model means, or the one observed."""

    SEMANTIC = 0
    OBSERVED = 1


@dataclass(frozen=True, slots=True)
class PortableEvidence:
    """What was committed about a computation, and the schedule when one was observed.

    ``decode_tokens`` counts the generated tokens. ``schedule`` is None where the semantic one is
    committed to. A root of a part that was not gathered is the empty one of contracts.commitments.
    ``claimed_units`` is in compute units of the ruleset.

    Raises EvidenceError when the fields contradict each other.
    """

    version: int
    level: EvidenceLevel
    prefill_tokens: int
    decode_tokens: int
    ruleset_version: int
    job_nullifier: bytes
    shape_profile_id: bytes
    schedule: OperationSchedule | None
    trace_events: int
    state_root: bytes = field(repr=False)
    expert_route_root: bytes = field(repr=False)
    gemm_root: bytes = field(repr=False)
    claimed_units: int
    claimed_ruleset_id: bytes

    def __post_init__(self) -> None:
        """Check, and derive again, everything for which the model is not needed."""
        if self.version != PORTABLE_VERSION:
            raise _refusal("version", str(PORTABLE_VERSION), str(self.version))
        if self.prefill_tokens < 1 or self.decode_tokens < 1:
            raise _refusal(
                "token counts", "at least 1", f"{self.prefill_tokens} and {self.decode_tokens}"
            )
        self._check_parts()
        self._check_ruleset()

    @property
    def kind(self) -> ScheduleKind:
        """Which schedule is committed to."""
        return ScheduleKind.SEMANTIC if self.schedule is None else ScheduleKind.OBSERVED

    @property
    def traced(self) -> bool:
        """Whether matrix products were sketched."""
        return self.gemm_root != empty_gemm_root()

    @property
    def trace_evidence(self) -> TraceEvidence:
        """Where the trace comes from: nothing here binds one to kernels."""
        return TraceEvidence.GRAPH_FALLBACK if self.traced else TraceEvidence.ABSENT

    @property
    def trace_scheme_id(self) -> bytes:
        """The 32-byte id of the scheme of the trace, or that of no trace."""
        if self.schedule is None or not self.traced:
            return no_trace_scheme()
        return trace_scheme(self.schedule)

    @property
    def gemm_trace_root(self) -> bytes:
        """The 32-byte root that the compute receipt carries: of all parts at the highest level."""
        if self.level is EvidenceLevel.STATE_COMMITTED:
            return state_evidence_root(self.state_root, self.expert_route_root, self.gemm_root)
        return self.gemm_root

    def _check_parts(self) -> None:
        states = self.state_root != empty_state_root()
        if states is not (self.level is EvidenceLevel.STATE_COMMITTED):
            raise _refusal("state_root", *_presence(not states, self.level))
        if not states and self.traced is not (self.level is EvidenceLevel.GEMM_TRACED):
            raise _refusal("gemm_root", *_presence(not self.traced, self.level))
        if self.expert_route_root != empty_route_root() and not (states or self.traced):
            raise _refusal("expert_route_root", *_presence(False, self.level))
        observed = self.traced or self.level is EvidenceLevel.GRAPH
        if self.schedule is None and observed:
            raise _refusal("schedule", "an observed schedule", "none")
        if self.schedule is not None and self.level is EvidenceLevel.NONE:
            raise _refusal("schedule", "none without evidence", "an observed schedule")
        events = self.schedule.gemms if self.schedule is not None and self.traced else 0
        if self.trace_events != events or (self.traced and not events):
            raise _refusal("trace_events", str(events), str(self.trace_events))

    def _check_ruleset(self) -> None:
        rules = ruleset_of_version(self.ruleset_version)
        if self.claimed_ruleset_id != rules.ruleset_id:
            raise _refusal("ruleset id", rules.ruleset_id.hex(), self.claimed_ruleset_id.hex())
        if rules is RULES_V3:
            return  # priced from the model: see :func:`derive`
        if self.schedule is None:
            raise _refusal("schedule", f"an observed one for ruleset v{rules.version}", "none")
        units = price(self.schedule, rules)
        if units != self.claimed_units:
            raise _refusal("compute units", str(units), str(self.claimed_units))


@dataclass(frozen=True, slots=True)
class DerivedEvidence:
    """What follows from portable evidence and a model; a receipt has to say the same.

    ``compute_units`` are by the evidence's own ruleset, ``semantic_units`` by ruleset v3.
    """

    schedule_commitment: bytes
    schedule_events: int
    compute_units: int
    semantic_units: int
    semantic: SemanticSummary


def derive(evidence: PortableEvidence, architecture: Architecture) -> DerivedEvidence:
    """Return commitment, counts and price of ``evidence``, all computed anew for a model.

    Raises EvidenceError when the observed schedule cannot be one of this model and these counts,
    and when the price is another than the claimed one.
    """
    prefill, generated = evidence.prefill_tokens, evidence.decode_tokens
    rules = ruleset_of_version(evidence.ruleset_version)
    try:
        semantic = summarise_schedule(architecture, prefill, generated)
        meant = units = semantic_units(architecture, prefill, generated).compute_units
    except InputError as error:  # the counts come from evidence
        raise EvidenceError(error.message, expected=error.expected, found=error.found) from None
    commitment, events = semantic.commitment, semantic.operations
    if evidence.schedule is not None:
        check_schedule(evidence.schedule, architecture, prefill, generated)
        commitment = evidence.schedule.commitment(rules.ruleset_id)
        events = evidence.schedule.events
        if rules is not RULES_V3:
            units = price(evidence.schedule, rules)
    if units != evidence.claimed_units:
        raise _refusal("compute units", str(units), str(evidence.claimed_units))
    return DerivedEvidence(commitment, events, units, meant, semantic)


def encode_portable(evidence: PortableEvidence) -> bytes:
    """Return the one encoding of ``evidence``."""
    writer = BinaryWriter()
    writer.u16(evidence.version)
    writer.u8(evidence.level)
    writer.u32(evidence.prefill_tokens)
    writer.u32(evidence.decode_tokens)
    writer.u16(evidence.ruleset_version)
    writer.digest(evidence.job_nullifier)
    writer.digest(evidence.shape_profile_id)
    writer.u8(evidence.kind)
    if evidence.schedule is not None:
        write_schedule(writer, evidence.schedule)
    writer.u64(evidence.trace_events)
    for root in (evidence.state_root, evidence.expert_route_root, evidence.gemm_root):
        writer.digest(root)
    writer.u64(evidence.claimed_units)
    writer.digest(evidence.claimed_ruleset_id)
    return writer.finish()


def decode_portable(data: bytes) -> PortableEvidence:
    """Return the evidence that ``data`` encodes. Raises EvidenceError for anything else."""
    return decode_strict(data, _read_portable, max_bytes=MAX_PORTABLE_BYTES, where=_WHERE)


def _read_portable(reader: BinaryReader) -> PortableEvidence:
    return PortableEvidence(
        version=reader.u16(),
        level=EvidenceLevel(_one_of(reader, len(EvidenceLevel))),
        prefill_tokens=reader.u32(),
        decode_tokens=reader.u32(),
        ruleset_version=reader.u16(),
        job_nullifier=reader.digest(),
        shape_profile_id=reader.digest(),
        schedule=_read_kind(reader),
        trace_events=reader.u64(),
        state_root=reader.digest(),
        expert_route_root=reader.digest(),
        gemm_root=reader.digest(),
        claimed_units=reader.u64(),
        claimed_ruleset_id=reader.digest(),
    )


def _read_kind(reader: BinaryReader) -> OperationSchedule | None:
    kind = _one_of(reader, len(ScheduleKind))
    return read_schedule(reader) if kind == ScheduleKind.OBSERVED else None


def _one_of(reader: BinaryReader, number: int) -> int:
    value = reader.u8()
    if value >= number:
        raise reader.refusal("not a listed kind", expected=f"0..{number - 1}", found=str(value))
    return value


def _presence(due: bool, level: EvidenceLevel) -> tuple[str, str]:
    texts = ("the root of no such part", "a root of gathered evidence")
    return f"{texts[due]} at level {level.name.lower()}", texts[not due]


def _refusal(what: str, expected: str, found: str) -> EvidenceError:
    return EvidenceError(f"{_WHERE}: {what} does not hold", expected=expected, found=found)
