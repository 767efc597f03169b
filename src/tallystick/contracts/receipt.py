"""``geoai.receipt/v1alpha1``: core (equal for two honest runs) and observed (this execution)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from tallystick.contracts.request import Disclosure, Enforcement, Producer
from tallystick.contracts.residency import RESIDENCIES
from tallystick.contracts.runtime import EngineBuild, RuntimeClass
from tallystick.contracts.types import (
    U32,
    U64,
    Count,
    Digest,
    OneOf,
    Pattern,
    ShortText,
    Timestamp,
    UuidText,
)

RECEIPT_SCHEMA: Final = "geoai.receipt/v1alpha1"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was committed about the computation.

    ``state_root`` is the salted Merkle root over the residual states and logits
    (docs/spec/state-tree.md), ``state_leaves`` its number of leaves, ``layers`` the model's
    number of layers. An absent part is null.
    """

    level: Annotated[str, OneOf(("none", "graph", "gemm_traced", "state_committed"))]
    state_root: Digest | None
    state_leaves: U64
    layers: U32
    expert_route_root: Digest | None
    gemm_trace_root: Digest | None


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The declared sandbox profile. ``none`` means: no isolation was enforced."""

    profile: ShortText
    profile_digest: Digest


@dataclass(frozen=True, slots=True)
class Disclosed:
    """Plain sha256 of the UTF-8 prompt and of the output, only with ``disclosure: public``."""

    prompt_digest: Digest
    output_digest: Digest


@dataclass(frozen=True, slots=True)
class Core:
    """Two honest runs of one request on one runtime class give the same bytes here."""

    schema: Annotated[str, OneOf((RECEIPT_SCHEMA,))]
    producer: Producer
    request_digest: Digest
    bundle_digest: Digest
    task_digest: Digest
    model_digest: Digest
    engine: EngineBuild
    runtime_class: RuntimeClass
    runtime_class_id: Digest
    sandbox: Sandbox
    chat_template_digest: Digest | None
    context_tokens: Count
    prompt_tokens: Count
    sampled_tokens: Count
    prompt_commitment: Digest
    output_commitment: Digest
    disclosure: Disclosure
    disclosed: Disclosed | None
    evidence: Evidence
    canonical_compute_units: U64
    stop_reason: Annotated[str, OneOf(("length", "end_of_generation"))]
    status: Annotated[str, OneOf(("complete",))]


@dataclass(frozen=True, slots=True)
class Durations:
    """Monotonic durations in nanoseconds; ``seal`` is zero without a sealing pass."""

    load: U64
    prefill: U64
    decode: U64
    seal: U64
    total: U64


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident bytes: the child before the load, its peak, the supervisor's change after."""

    before: U64
    peak: U64
    after: U64


@dataclass(frozen=True, slots=True)
class EgressAudit:
    """Summary of the egress probes. ``not_run`` is not a pass."""

    result: Annotated[str, OneOf(("not_run", "passed", "failed"))]
    statement_digest: Digest | None


@dataclass(frozen=True, slots=True)
class FingerprintPart:
    """One part of the numeric conformance suite: first 8 bytes of its digest, in hex."""

    name: ShortText
    digest: Annotated[str, Pattern(r"[0-9a-f]{16}", 16)]


@dataclass(frozen=True, slots=True)
class Host:
    """Facts about the machine. Facts, not keys: comparison goes by the runtime class.

    ``renderer`` is what rendered the chat template, with its version; "none" without a chat.
    """

    cpu: ShortText
    cpu_features: ShortText
    libc: ShortText
    kernel: ShortText
    python: ShortText
    threads: Count
    observer: Annotated[str, OneOf(("compiled", "python", "none"))]
    renderer: ShortText
    dropped_environment: tuple[ShortText, ...]
    fingerprint_parts: tuple[FingerprintPart, ...]


@dataclass(frozen=True, slots=True)
class Observed:
    """What this execution looked like; differs from run to run.

    ``ring_depth`` to ``residency`` say what became of the model's layers in memory
    (docs/spec/receipt.md#layers-in-memory).
    """

    run_digest: Digest
    run_id: UuidText
    start_time: Timestamp
    end_time: Timestamp
    durations_ns: Durations
    enforcement_level: Enforcement
    egress_audit: EgressAudit
    rss: Memory
    gpu_memory: Memory | None
    ring_depth: U32
    evictions: U64
    prefetch_hits: U64
    prefetch_misses: U64
    residency: Annotated[str, OneOf(RESIDENCIES)]
    dropped_events: U64
    telemetry_digest: Digest
    self_check: Annotated[str, OneOf(("not_run", "passed"))]
    compute_receipt_digest: Digest
    exec_envelope_digest: Digest
    worker_state_root: Digest | None
    worker_id: ShortText
    host: Host


@dataclass(frozen=True, slots=True)
class Receipt:
    """The two parts; named by ``receipt_digest``, compared by ``core_digest``."""

    core: Core
    observed: Observed
