"""Transcripts of a sealing pass: what their header says, and what each step evaluates.

A step is a chunk of the run's positions, and which one follows from the header alone
(docs/spec/observer.md#sealing-passes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

from tallystick.canonical.json import JSONValue
from tallystick.contracts.codec import decode
from tallystick.contracts.runtime import ROW_CLASS, RowClass
from tallystick.contracts.types import U32, Count, IntRange, OneOf, ShortText
from tallystick.errors import EvidenceError
from tallystick.evidence.chunks import chunk_sizes
from tallystick.evidence.observer.records import (
    CONTEXT_TOKENS,
    MAX_GENERATED,
    SCHEMA,
    SCHEMA_VERSION,
    AnyEvent,
    Header,
    ModelRecord,
    ObservationPolicy,
    Result,
    Route,
    RuntimeRecord,
)

#: What a pass is observed for; one that is not observed leaves no transcript.
SEALING_OBSERVERS: Final = ("graph", "sketch")


@dataclass(frozen=True, slots=True)
class SealingPolicy:
    """How the pass was evaluated. The first six decide about its steps; all others follow.

    ``generated_tokens`` counts the last one too, which is not evaluated. ``n_threads`` is a fact.
    """

    policy: Annotated[str, OneOf((ROW_CLASS,))]
    row_floor: Count
    row_max: Count
    prompt_tokens: Annotated[int, IntRange(1, CONTEXT_TOKENS)]
    generated_tokens: Annotated[int, IntRange(1, MAX_GENERATED)]
    n_ctx: Count
    n_threads: Count
    n_batch: U32
    n_ubatch: U32
    n_seq_max: U32
    n_threads_batch: U32
    sampler: Annotated[str, OneOf(("greedy", "seeded"))]
    flash_attn: ShortText = "disabled"
    type_k: ShortText = "f16"
    type_v: ShortText = "f16"
    split_mode: ShortText = "none"
    use_mmap: bool = True


@dataclass(frozen=True, slots=True)
class SealingHeader:
    """The first record of a sealing pass's transcript."""

    record: Annotated[str, OneOf(("header",))]
    schema: Annotated[str, OneOf((SCHEMA,))]
    schema_version: Annotated[int, IntRange(SCHEMA_VERSION, SCHEMA_VERSION)]
    producer: Annotated[str, OneOf(("tallystick",))]
    observer: Annotated[str, OneOf(SEALING_OBSERVERS)]
    trace_variant: ShortText
    cuda_kernel_trace: bool
    model: ModelRecord
    runtime: RuntimeRecord
    execution_policy: SealingPolicy
    observation_policy: ObservationPolicy


AnyHeader: TypeAlias = Header | SealingHeader
Record: TypeAlias = AnyHeader | AnyEvent | Route | Result


@dataclass(frozen=True, slots=True)
class SealingStep:
    """One chunk: positions ``first``..``first + tokens - 1``, and ``scratch`` rows behind them.

    ``outputs`` rows of the batch have outputs; the last layer may have these only. ``due`` of its
    rows belong to positions whose choice of experts counts: the last ones of the chunk.
    """

    first: int
    tokens: int
    scratch: int
    outputs: int
    due: int

    @property
    def rows(self) -> int:
        """Number of rows in the batch."""
        return self.tokens + self.scratch


def sealing_policy(
    row_class: RowClass, prompt: int, generated: int, *, cells: int, threads: int, sampler: str
) -> SealingPolicy:
    """Return the policy of a pass over so many tokens in a context of ``cells``."""
    rows = min(row_class.max_rows, cells)
    return SealingPolicy(
        policy=ROW_CLASS,
        row_floor=row_class.floor,
        row_max=row_class.max_rows,
        prompt_tokens=prompt,
        generated_tokens=generated,
        n_ctx=cells,
        n_threads=threads,
        n_batch=rows,
        n_ubatch=rows,
        n_seq_max=row_class.floor,
        n_threads_batch=threads,
        sampler=sampler,
    )


def check_policy(policy: SealingPolicy) -> None:
    """Require that what follows from a policy's first values is what it says. EvidenceError."""
    if policy.row_floor > policy.row_max:
        raise EvidenceError("the header's row class has a floor above its largest batch")
    if policy.n_ctx < policy.prompt_tokens + policy.generated_tokens - 1:
        raise EvidenceError("the header's context does not hold the run's positions")
    expected = sealing_policy(
        RowClass(policy.row_floor, policy.row_max),
        policy.prompt_tokens,
        policy.generated_tokens,
        cells=policy.n_ctx,
        threads=policy.n_threads,
        sampler=policy.sampler,
    )
    if policy != expected:
        raise EvidenceError("the header's execution_policy is not the one that is accepted")


def sealing_steps(policy: SealingPolicy) -> tuple[SealingStep, ...]:
    """Return the steps of a pass, in order."""
    positions = policy.prompt_tokens + policy.generated_tokens - 1
    row_class = RowClass(policy.row_floor, policy.row_max)
    found: list[SealingStep] = []
    first = 0
    for tokens in chunk_sizes(positions, row_class):
        end = first + tokens
        scratch = max(0, row_class.floor - tokens)
        due = max(0, min(tokens, end - (policy.prompt_tokens - 1)))
        asked = max(due, min(tokens, row_class.floor)) + scratch if due else 0
        found.append(SealingStep(first, tokens, scratch, asked, due))
        first = end
    return tuple(found)


def decode_header(value: JSONValue, *, where: str) -> AnyHeader:
    """Return the header ``value``, of a run or of a sealing pass, by what its policy has.

    Raises EvidenceError for what is neither.
    """
    policy = value.get("execution_policy") if isinstance(value, dict) else None
    if isinstance(policy, dict) and "policy" in policy:
        return decode(SealingHeader, value, where=where)
    return decode(Header, value, where=where)
