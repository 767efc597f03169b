"""What an engine child reports about one run; never leaves the supervisor as it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from tallystick.contracts.platform import PlatformFacts
from tallystick.contracts.residency import Residency
from tallystick.contracts.types import (
    U32,
    U64,
    Base64,
    Count,
    Digest,
    MaxLength,
    OneOf,
    ShortText,
    TokenId,
)

StopReason = Annotated[str, OneOf(("length", "end_of_generation"))]


@dataclass(frozen=True, slots=True)
class Timings:
    """Monotonic durations in nanoseconds, measured in the child."""

    load: U64
    prefill: U64
    decode: U64
    seal: U64


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What the child saw of the machine it ran on; ``renderer`` is "none" without a chat."""

    cpu: ShortText
    cpu_features: ShortText
    libc: ShortText
    kernel: ShortText
    python: ShortText
    threads: Count
    observer: Annotated[str, OneOf(("compiled", "python", "none"))]
    renderer: ShortText


@dataclass(frozen=True, slots=True)
class Generation:
    """The whole private result of one run.

    ``sampled_ids`` has 1..max_tokens ids, the end-of-generation id included when it was drawn;
    ``output`` is base64 of their pieces without special tokens. What was not asked for, or what
    the model does not have, is None, 0 or "":

    * the state tree (docs/spec/state-tree.md): ``state_root``, ``state_leaves``, ``leaf_checks``
      (base64), and the root of the same rows bound to the worker's credential;
    * the chosen experts: ``expert_route_root``, ``routes`` (base64 of the encoded ExpertRoutes);
    * the observed graphs: the schedule's commitment and number of operations, the trace's root and
      number of products, ``observed_evidence`` (base64 of the encoded ObservedEvidence).
    """

    rendered_prompt: Annotated[str, MaxLength(4 * 1024 * 1024)] = field(repr=False)
    chat_template_digest: Digest | None
    prompt_ids: tuple[TokenId, ...] = field(repr=False)
    sampled_ids: tuple[TokenId, ...] = field(repr=False)
    output: Base64 = field(repr=False)
    stop_reason: StopReason
    context_tokens: Count
    layers: U32
    state_root: Digest | None
    state_leaves: U64
    leaf_checks: Base64 = field(repr=False)
    worker_state_root: Digest | None
    expert_route_root: Digest | None
    routes: Base64 = field(repr=False)
    schedule_commitment: Digest | None
    schedule_events: U64
    gemm_trace_root: Digest | None
    trace_events: U64
    observed_evidence: Base64 = field(repr=False)
    self_check: Annotated[str, OneOf(("not_run", "passed"))]
    timings: Timings
    rss_before: U64
    residency: Residency
    host: HostFacts
    platform: PlatformFacts
