"""Valid compute receipts with their bundles, without an engine: every level, dense and experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tallystick.attest.keys import SigningKey
from tallystick.canonical.hashing import format_digest, sha256
from tallystick.compute.architecture import (
    Architecture,
    DeltaNetMixer,
    ExpertFeedForward,
)
from tallystick.compute.families import describe
from tallystick.compute.operations import (
    ExpertGemm,
    ExpertRoute,
    GatedDeltaNet,
    Gemm,
    Operation,
    RmsNorm,
)
from tallystick.compute.schedule import ScheduledOperation
from tallystick.contracts import digests
from tallystick.contracts.bundle import BundlePrivate, BundlePublic, receipt_binding
from tallystick.contracts.compute_receipt import (
    ComputeReceipt,
    SignedReceipt,
    encode,
    receipt_id,
    signing_digest,
)
from tallystick.contracts.manifest import RuntimeManifest
from tallystick.contracts.model import ModelFacts
from tallystick.contracts.opening import OPENING_SCHEMA, Opening
from tallystick.contracts.platform import (
    DeviceFacts,
    EngineBuildFacts,
    LoadedLibrary,
    PlatformFacts,
    ProgramFacts,
    WheelFacts,
)
from tallystick.contracts.receipt import Core, Evidence, Observed
from tallystick.contracts.request import PRODUCER, InferenceRun
from tallystick.contracts.runtime import RowClass, RuntimeClass
from tallystick.evidence.gemm_trace import GemmTrace, make_trace
from tallystick.evidence.observed import ObservedEvidence
from tallystick.evidence.portable import PortableEvidence
from tallystick.evidence.portable_parts import GatheredEvidence, RunNumbers, make_portable
from tallystick.evidence.routes import ExpertRoutes, RouteBuilder
from tallystick.evidence.schedule import (
    OperationSchedule,
    ScheduleBuilder,
    SchedulePhase,
    pack_indexes,
)
from tallystick.evidence.state_tree import leaf_count
from tallystick.models.manifest import PinnedFacts, Runtime, build_manifest
from tallystick.receipts.compute import (
    ComputeInputs,
    build_compute_receipt,
    bundle_parts,
    papers_nullifier,
)
from tallystick.receipts.compute_case import ComputeCase, ComputeContext, ComputeDocuments
from tallystick.receipts.self_local import (
    JOB_SECRETS_BYTES,
    JobSecrets,
    self_local_credential,
    self_local_papers,
)
from tests.support.documents import (
    BLIND,
    ENGINE,
    RUNTIME,
    digest_of,
    example_core,
    example_facts,
    example_observed,
    example_run,
)

WORKER = SigningKey.from_seed(sha256(b"worker of the tests"))
STRANGER = SigningKey.from_seed(sha256(b"nobody's key"))
END_TIME = "2026-11-30T12:00:01.250Z"
TIMESTAMP = 1_796_040_001_250
PROMPT_IDS = (1, 2, 3, 4)
SAMPLED_IDS = (5, 6, 7)
POSITIONS = len(PROMPT_IDS) + len(SAMPLED_IDS) - 1
LAYERS = 3
EXPERTS, USED = 4, 2
STATE_ROOT = sha256(b"a state root")
SEQUENTIAL = replace(
    RUNTIME, policy="sequential", prompt_class=RowClass(1, 1), decode_class=RowClass(1, 1)
)


def random_bytes(label: str, length: int) -> bytes:
    """Return bytes that stand for ``length`` random ones."""
    blocks = (sha256(f"{label} {block}".encode()) for block in range(-(-length // 32)))
    return b"".join(blocks)[:length]


@dataclass(frozen=True, slots=True)
class MadeReceipt:
    """A compute receipt, its bundle's parts, and what they were made of."""

    inputs: ComputeInputs
    signed: SignedReceipt
    documents: ComputeDocuments
    routes: ExpertRoutes | None
    trace: GemmTrace | None

    @property
    def public(self) -> BundlePublic:
        """The public part of the bundle."""
        assert self.documents.public is not None
        return self.documents.public

    @property
    def private(self) -> BundlePrivate:
        """The private part of the bundle."""
        assert self.documents.private is not None
        return self.documents.private

    def case(self, context: ComputeContext | None = None, **changes: Any) -> ComputeCase:
        """Return a verification of the documents with some of them replaced."""
        return ComputeCase(replace(self.documents, **changes), context or ComputeContext())

    def resigned(self, key: SigningKey = WORKER, **changes: Any) -> ComputeDocuments:
        """Return the documents around another body, signed, named and bound anew.

        What the bundle and the observed part say of the receipt's bytes is adapted, nothing else.
        """
        return rebound(self.documents, replace(self.signed.body, **changes), key)


def rebound(documents: ComputeDocuments, body: ComputeReceipt, key: SigningKey) -> ComputeDocuments:
    """Return ``documents`` around ``body``, signed with ``key``."""
    signed = SignedReceipt(body, key.sign(signing_digest(body)))
    palw = encode(signed)
    public = documents.public
    return replace(
        documents,
        palw=palw,
        receipt=signed,
        public=public
        and replace(public, receipt_binding=receipt_binding(palw), receipt_id=receipt_id(body)),
        observed=replace(documents.observed, compute_receipt_digest=format_digest(sha256(palw))),
    )


@cache
def make_receipt(
    *parts: str, experts: bool = False, sequential: bool = False, public: bool = False
) -> MadeReceipt:
    """Return the receipt of a run that was asked for these parts of evidence."""
    runtime = SEQUENTIAL if sequential else RUNTIME
    run = replace(
        example_run(),
        policy=runtime.policy,
        evidence=parts,
        replica_slot=None,
        disclosure="public" if public else "private",
    )
    facts = model_facts(experts=experts)
    model = describe(facts)
    manifest = make_manifest(facts, runtime)
    secrets = JobSecrets.of(random_bytes("secrets", JOB_SECRETS_BYTES))
    credential = self_local_credential(secrets, WORKER.public.raw, TIMESTAMP)
    papers = self_local_papers(
        secrets,
        credential,
        run,
        model_profile_id=manifest.model_profile_id,
        max_prefill_tokens=manifest.shape_profile.max_prefill_tokens,
    )
    gathered = gather(parts, model, sequential=sequential)
    numbers = RunNumbers(
        papers_nullifier(papers), manifest.shape_profile_id, len(PROMPT_IDS), len(SAMPLED_IDS)
    )
    evidence = make_portable(gathered, numbers, model, BLIND)
    inputs = ComputeInputs(
        run=run,
        papers=papers,
        manifest=manifest,
        evidence=evidence,
        core=make_core(run, runtime, gathered, evidence),
        prompt_ids=PROMPT_IDS,
        sampled_ids=SAMPLED_IDS,
        prompt_nonce=secrets.prompt_nonce,
        output_nonce=secrets.output_nonce,
        timestamp=TIMESTAMP,
    )
    return assemble(inputs, gathered)


def assemble(inputs: ComputeInputs, gathered: GatheredEvidence) -> MadeReceipt:
    """Build, sign and bundle a receipt."""
    signed = build_compute_receipt(inputs, WORKER)
    trace = None if gathered.observed is None else gathered.observed.trace
    opening = Opening(
        schema=OPENING_SCHEMA,
        producer=PRODUCER,
        receipt_digest=digest_of("the receipt"),
        request=inputs.run,
        rendered_prompt=inputs.run.prompt,
        prompt_ids=inputs.prompt_ids,
        sampled_ids=inputs.sampled_ids,
        output="c2Vh",
        leaf_checks="",
    )
    public, private = bundle_parts(inputs, signed, opening, routes=gathered.routes, trace=trace)
    palw = encode(signed)
    documents = ComputeDocuments(
        palw=palw,
        receipt=signed,
        public=public,
        private=private,
        core=inputs.core,
        core_digest=digests.core_digest(inputs.core),
        observed=make_observed(palw),
    )
    return MadeReceipt(inputs, signed, documents, gathered.routes, trace)


def make_observed(palw: bytes) -> Observed:
    """Return the observed part of the receipt that names this compute receipt."""
    return replace(
        example_observed(),
        end_time=END_TIME,
        worker_id=WORKER.public.key_id,
        compute_receipt_digest=format_digest(sha256(palw)),
    )


def model_facts(*, experts: bool) -> ModelFacts:
    """Return the facts of a model of three layers."""
    facts = replace(example_facts(), chat_template_digest=digest_of("template"))
    return replace(facts, experts=EXPERTS, experts_used=USED) if experts else facts


def make_platform() -> PlatformFacts:
    """Return what a child would say of its platform."""
    return PlatformFacts(
        libraries=(
            LoadedLibrary("libgomp.so.1", digest_of("gomp")),
            LoadedLibrary("libm.so.6", digest_of("math")),
            LoadedLibrary("xllamacpp.so", ENGINE.library),
        ),
        build=EngineBuildFacts("AVX2 = 1", "0.9", "abcdef0"),
        wheel=WheelFacts("xllamacpp", "2026.10.11549", digest_of("record")),
        device=DeviceFacts("cpu", "x86_64", "Example CPU"),
        program=ProgramFacts("0.1.0", digest_of("sources"), "CPython 3.11.2"),
        environment=("GGML_CPU_TILED_MM=0", "LANG=C.UTF-8"),
    )


def make_manifest(facts: ModelFacts, runtime: RuntimeClass) -> RuntimeManifest:
    """Return the manifest of a model and a runtime class."""
    return build_manifest(
        PinnedFacts(facts, digest_of("model"), 2**40, None),
        Runtime(ENGINE, runtime, make_platform(), context_tokens(runtime)),
    )


def context_tokens(runtime: RuntimeClass) -> int:
    """Return the cells that a run of the tests opens."""
    return 4096 if runtime.policy == "sequential" else 512


def gather(parts: tuple[str, ...], model: Architecture, *, sequential: bool) -> GatheredEvidence:
    """Return evidence of the parts that were asked for; its values are invented."""
    schedule = make_schedule(model, sequential=sequential)
    trace = None
    if "gemm" in parts:
        lanes = [sha256(f"sketch {event}".encode()) for event in range(schedule.gemms)]
        trace = make_trace(schedule, lanes)
    observed = ObservedEvidence(schedule, trace) if {"graph", "gemm"} & {*parts} else None
    routed = isinstance(model.layers[0].feed_forward, ExpertFeedForward)
    return GatheredEvidence(
        observed=observed,
        routes=make_routes(sequential=sequential)
        if routed and {"states", "gemm"} & {*parts}
        else None,
        state_root=STATE_ROOT if "states" in parts else None,
    )


def make_schedule(model: Architecture, *, sequential: bool) -> OperationSchedule:
    """Return a schedule of all positions: one step each, or one chunk."""
    builder = ScheduleBuilder()
    if not sequential:
        places = [builder.place(item) for item in step_operations(model, POSITIONS)]
        builder.add(SchedulePhase.SEALING, 0, 0, POSITIONS, pack_indexes(places))
        return builder.finish()
    for position in range(POSITIONS):
        places = [builder.place(item) for item in step_operations(model, 1)]
        decode = position - len(PROMPT_IDS)
        phase = SchedulePhase.DECODE if decode >= 0 else SchedulePhase.PREFILL
        number = decode if decode >= 0 else position
        builder.add(phase, number, position, 1, pack_indexes(places))
    return builder.finish()


def step_operations(model: Architecture, tokens: int) -> list[ScheduledOperation]:
    """Return operations of one evaluation, those that no layer of ``model`` can do without."""
    found = []
    for stage, layer in enumerate(model.layers, 1):
        operations: list[Operation] = [RmsNorm(64, tokens), Gemm(64, tokens, 64, 1)]
        if isinstance(layer.feed_forward, ExpertFeedForward):
            experts, used = layer.feed_forward.experts, layer.feed_forward.used
            operations.append(ExpertRoute(tokens, experts, used))
            operations.append(ExpertGemm(64, tokens, 64, experts, used))
        found += [ScheduledOperation(stage, operation) for operation in operations]
        if isinstance(layer.mixer, DeltaNetMixer):
            # Engines name the recurrence after no layer.
            found.append(ScheduledOperation(0, GatedDeltaNet(tokens, 2, 16, 16)))
    return found


def make_routes(*, sequential: bool) -> ExpertRoutes:
    """Return routes of every position."""
    last_from = 0 if sequential else len(PROMPT_IDS) - 1
    builder = RouteBuilder(LAYERS, EXPERTS, USED, last_from=last_from)
    row = b"".join(index.to_bytes(4, "little") for index in (3, 1))
    due = builder.rows_due(0, POSITIONS)
    builder.push(0, POSITIONS, [row * POSITIONS] * (LAYERS - 1) + [row * due])
    return builder.finish()


def make_core(
    run: InferenceRun,
    runtime: RuntimeClass,
    gathered: GatheredEvidence,
    evidence: PortableEvidence,
) -> Core:
    """Return the core of a run with this evidence."""
    states = gathered.state_root is not None

    def root_of(part: object, root: bytes) -> str | None:
        return None if part is None else format_digest(root)

    trace = None if gathered.observed is None else gathered.observed.trace
    return replace(
        example_core(),
        request_digest=digests.request_digest(run),
        runtime_class=runtime,
        runtime_class_id=digests.runtime_class_id(runtime),
        context_tokens=context_tokens(runtime),
        disclosure=run.disclosure,
        evidence=Evidence(
            level=gathered.level.name.lower(),
            state_root=root_of(gathered.state_root, evidence.state_root),
            state_leaves=leaf_count(len(PROMPT_IDS), len(SAMPLED_IDS), LAYERS) if states else 0,
            layers=LAYERS,
            expert_route_root=root_of(gathered.routes, evidence.expert_route_root),
            gemm_trace_root=root_of(trace, evidence.gemm_root),
        ),
        canonical_compute_units=evidence.claimed_units,
    )


#: Every kind of receipt by name: its maker.
KINDS: dict[str, Callable[[], MadeReceipt]] = {
    "none": make_receipt,
    "graph": lambda: make_receipt("graph"),
    "gemm": lambda: make_receipt("gemm", sequential=True),
    "gemm sealed": lambda: make_receipt("gemm"),
    "states": lambda: make_receipt("states"),
    "all of experts": lambda: make_receipt("states", "graph", "gemm", experts=True),
    "experts sequential": lambda: make_receipt("gemm", experts=True, sequential=True),
    "states of experts": lambda: make_receipt("states", experts=True),
}
