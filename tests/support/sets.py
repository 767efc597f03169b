"""Valid artifact sets without an engine: fixed results, consistent in every field."""

from __future__ import annotations

import base64
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from tallystick.attest.bundlekeys import AuditKey
from tallystick.attest.keys import SigningKey
from tallystick.attest.trust import TrustPolicy
from tallystick.bundles.match import Materialised, no_bundle
from tallystick.canonical.hashing import domain_hash, format_digest, sha256
from tallystick.compute.families import describe
from tallystick.contracts import digests
from tallystick.contracts.commitments import local_network_id
from tallystick.contracts.compute_receipt import JobClass, epoch_of
from tallystick.contracts.egress import EgressReport
from tallystick.contracts.generation import Generation, HostFacts, Timings
from tallystick.contracts.layout import MemberKind
from tallystick.contracts.manifest import RuntimeManifest
from tallystick.contracts.platform import (
    DeviceFacts,
    EngineBuildFacts,
    LoadedLibrary,
    PlatformFacts,
    ProgramFacts,
    WheelFacts,
)
from tallystick.contracts.receipt import FingerprintPart
from tallystick.contracts.request import (
    PRODUCER,
    RUN_SCHEMA,
    Chat,
    EvidencePart,
    ExpectedDigest,
    InferenceRun,
)
from tallystick.contracts.residency import NO_RING
from tallystick.contracts.runtime import EngineBuild, Knob, RowClass, RuntimeClass
from tallystick.contracts.ticket import Ticket
from tallystick.evidence.observed import encode_observed
from tallystick.evidence.routes import encode_routes
from tallystick.evidence.state_tree import leaf_count
from tallystick.models.manifest import PinnedFacts, Runtime, build_manifest
from tallystick.receipts.build import BuiltSet, Sealing, SetInputs
from tallystick.receipts.build_parts import SupervisorFacts
from tallystick.receipts.scheduling import (
    JobTerms,
    open_ticket,
    order_job,
    ticket_papers,
    tickets,
)
from tallystick.receipts.self_local import (
    JOB_SECRETS_BYTES,
    JobSecrets,
    self_local_credential,
    self_local_papers,
)
from tallystick.store.state.entry import StateEntry
from tallystick.telemetry.events import Event, EventKind
from tallystick.telemetry.log import encode_log
from tallystick.worker.papers import RunPapers, record_in
from tests.support import compute_sets
from tests.support.builds import build_set

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
SIGNER = SigningKey.from_seed(bytes(range(32)))
STRANGER = SigningKey.from_seed(bytes(range(1, 33)))
SCHEDULER = SigningKey.from_seed(bytes(range(2, 34)))
AUDIT_KEY = AuditKey(bytes(range(100, 132)))
#: Stands for the private opening, which has no file of its own.
OPENING = "opening"
TRUST = TrustPolicy.for_keys([SIGNER.public])
PROMPT = "What does a tally stick prove? 割り符 🪵"
OUTPUT = b"That both halves were one."
LAYERS = 3
PROMPT_IDS = (1, 450, 77, 12, 9004)
SAMPLED_IDS = (31, 8, 1500, 2)
_START_NS = 1_796_000_000_000_000_000


def fake_digest(label: str) -> str:
    """Return a digest that stands for something a test has no need of."""
    return format_digest(domain_hash("tallystick.test", 1, [label.encode()]))


def make_run(**changes: Any) -> InferenceRun:
    """Return a private, greedy, raw-prompt run; ``changes`` replace fields."""
    none = digests.no_bundle_digest()
    run = InferenceRun(
        schema=RUN_SCHEMA,
        producer=PRODUCER,
        run_id="01890a5d-ac96-774b-bcce-b302099a8057",
        model_path="models/tiny.gguf",
        model_digest=fake_digest("model"),
        dataset=ExpectedDigest(none),
        task=ExpectedDigest(none),
        model=ExpectedDigest(fake_digest("model")),
        prompt=PROMPT,
        prompt_path=None,
        split=None,
        tile=None,
        chat=None,
        add_special=True,
        parse_special=False,
        max_tokens=8,
        temperature="0",
        seed=None,
        policy="row-class",
        evidence=("states",),
        disclosure="private",
        sandbox_profile="none",
        enforcement="none",
        network_id=None,
        replica_slot=None,
        expires_at=None,
        blind=sha256(b"the blind of the tests").hex(),
    )
    return replace(run, **changes)


def make_generation(**changes: Any) -> Generation:
    """Return the result that belongs to :func:`make_run`; the state root is invented."""
    leaves = leaf_count(len(PROMPT_IDS), len(SAMPLED_IDS), LAYERS)
    generation = Generation(
        rendered_prompt=PROMPT,
        chat_template_digest=None,
        prompt_ids=PROMPT_IDS,
        sampled_ids=SAMPLED_IDS,
        output=base64.b64encode(OUTPUT).decode(),
        stop_reason="end_of_generation",
        context_tokens=256,
        layers=LAYERS,
        state_root=fake_digest("root"),
        state_leaves=leaves,
        leaf_checks=base64.b64encode(bytes(range(4 * leaves))).decode(),
        **{**no_evidence(), "worker_state_root": fake_digest("worker's root")},
        self_check="not_run",
        timings=Timings(load=5_000_000, prefill=7_000_000, decode=9_000_000, seal=0),
        rss_before=20_000_000,
        residency=NO_RING,
        host=HostFacts(
            cpu="Test CPU",
            cpu_features="avx2",
            libc="glibc 2.36",
            kernel="6.1",
            python="3.11.0",
            threads=2,
            observer="python",
            renderer="none",
        ),
        platform=make_platform(),
    )
    return replace(generation, **changes)


def no_evidence() -> dict[str, Any]:
    """Return the fields of a Generation about evidence that was not asked for, but the states."""
    return {
        "worker_state_root": None,
        "expert_route_root": None,
        "routes": "",
        "schedule_commitment": None,
        "schedule_events": 0,
        "gemm_trace_root": None,
        "trace_events": 0,
        "observed_evidence": "",
    }


def stateless(**changes: Any) -> Generation:
    """Return a result without committed states."""
    absent = {"state_root": None, "state_leaves": 0, "leaf_checks": "", "worker_state_root": None}
    return make_generation(**{**absent, **changes})


def make_platform() -> PlatformFacts:
    """Return what a child saw of its platform."""
    return PlatformFacts(
        libraries=(LoadedLibrary("libengine.so", fake_digest("library")),),
        build=EngineBuildFacts("AVX2 = 1", "0.9", "abc1234"),
        wheel=WheelFacts("engine", "1.0", fake_digest("wheel")),
        device=DeviceFacts("cpu", "x86_64", "Test CPU"),
        program=ProgramFacts("0.1", fake_digest("program"), "CPython 3.11.0"),
        environment=("LANG=C.UTF-8", "TZ=UTC"),
    )


def make_public() -> tuple[InferenceRun, Generation]:
    """Return a chat run with public disclosure and seeded sampling, and its result."""
    run = make_run(
        disclosure="public",
        chat=Chat(system="Be brief.", clock=1_796_000_000),
        temperature="0.7",
        seed=2**64 - 1,
        parse_special=True,
    )
    generation = make_generation(
        rendered_prompt=f"<|user|>{PROMPT}<|assistant|>",
        chat_template_digest=fake_digest("template"),
    )
    return run, generation


def make_engine() -> EngineBuild:
    """Return the engine build of every test set."""
    return EngineBuild(name="libllama", version="test-1", library=fake_digest("library"))


def make_class(**changes: Any) -> RuntimeClass:
    """Return a row-class runtime class of :func:`make_engine`."""
    row_class = RowClass(floor=2, max_rows=512)
    runtime_class = RuntimeClass(
        engine_library=fake_digest("library"),
        fingerprint=fake_digest("fingerprint"),
        policy="row-class",
        knobs=(Knob("GGML_CPU_TILED_MM", "0"),),
        prompt_class=row_class,
        decode_class=row_class,
    )
    return replace(runtime_class, **changes)


def make_facts(**changes: Any) -> SupervisorFacts:
    """Return what a supervisor saw."""
    facts = SupervisorFacts(
        start_ns=_START_NS,
        total_ns=30_123_456,
        rss_peak=90_000_000,
        rss_after=4096,
        dropped_environment=("OMP_NUM_THREADS",),
        fingerprint_parts=(FingerprintPart(name="llama-q8", digest="0123456789abcdef"),),
    )
    return replace(facts, **changes)


def make_events(tokens: int) -> list[Event]:
    """Return the events of a whole run that emitted ``tokens`` tokens."""
    kinds: list[tuple[EventKind, int | None]] = [
        (EventKind.INIT, None),
        (EventKind.LOADING, None),
        (EventKind.LOAD_COMPLETE, None),
        (EventKind.ARENA_RESET, None),
        *((EventKind.TOKEN_EMITTED, index) for index in range(tokens)),
        (EventKind.SHUTDOWN_COMPLETE, None),
    ]
    return [
        Event(kind, seq, 1_000_000 + seq * 1000, _START_NS + seq * 1000, 30_000_000, index)
        for seq, (kind, index) in enumerate(kinds)
    ]


def make_manifest(
    runtime_class: RuntimeClass | None = None,
    generation: Generation | None = None,
    *,
    experts: bool = False,
) -> RuntimeManifest:
    """Return the manifest of a test set: the model has as many layers as the result says."""
    result = generation or make_generation()
    return build_manifest(
        make_model(result.layers, experts=experts),
        Runtime(
            make_engine(), runtime_class or make_class(), result.platform, result.context_tokens
        ),
    )


def make_model(layers: int = LAYERS, *, experts: bool = False) -> PinnedFacts:
    """Return the model of a test set."""
    facts = replace(
        compute_sets.model_facts(experts=experts),
        layers=layers,
        context_train=4096,
        chat_template_digest=fake_digest("template"),
    )
    return PinnedFacts(facts, fake_digest("model"), 123_456_789, None)


def random_bytes(label: str, length: int) -> bytes:
    """Return bytes that stand for ``length`` random ones."""
    blocks = (sha256(f"{label} {block}".encode()) for block in range(-(-length // 32)))
    return b"".join(blocks)[:length]


def make_papers(
    run: InferenceRun, manifest: RuntimeManifest, key: SigningKey, label: str = "papers"
) -> RunPapers:
    """Return the papers of a self-scheduled run; another ``label`` makes other secrets."""
    secrets = JobSecrets.of(random_bytes(label, JOB_SECRETS_BYTES))
    papers = self_local_papers(
        secrets,
        self_local_credential(secrets, key.public.raw, _START_NS // 1_000_000),
        run,
        model_profile_id=manifest.model_profile_id,
        max_prefill_tokens=4096,
    )
    return RunPapers(papers, secrets.prompt_nonce, secrets.output_nonce)


@cache
def record_anywhere(entry: StateEntry) -> bytes:
    """Accept one receipt into a store of its own and return the store's bytes."""
    with tempfile.TemporaryDirectory() as folder:
        return record_in(Path(folder))(entry)


def make_inputs(
    run: InferenceRun | None = None,
    generation: Generation | None = None,
    *,
    key: SigningKey = SIGNER,
    runtime_class: RuntimeClass | None = None,
    manifest: RuntimeManifest | None = None,
    facts: SupervisorFacts | None = None,
    telemetry: bytes | None = None,
    papers: RunPapers | None = None,
    label: str = "papers",
    materialised: Materialised | None = None,
    audit: EgressReport | None = None,
) -> tuple[SetInputs, Sealing]:
    """Return what one valid set is made of; another ``label`` gives it other secrets."""
    result = generation or make_generation()
    runtime = runtime_class or make_class()
    declared = run or make_run()
    manifest = manifest or make_manifest(runtime, result)
    papers = papers or make_papers(declared, manifest, key, label)
    inputs = SetInputs(
        run=declared,
        generation=result,
        runtime_class=runtime,
        engine=make_engine(),
        manifest=manifest,
        papers=papers.papers,
        facts=facts or make_facts(),
        telemetry=telemetry or encode_log(make_events(len(result.sampled_ids))),
        materialised=materialised or no_bundle(declared.model_digest),
        audit=audit,
    )
    sealing = Sealing(
        AUDIT_KEY,
        random_bytes(f"{label} salt", 32),
        random_bytes(f"{label} nonce", 24),
        papers.prompt_nonce,
        papers.output_nonce,
    )
    return inputs, sealing


def make_set(
    run: InferenceRun | None = None,
    generation: Generation | None = None,
    *,
    key: SigningKey = SIGNER,
    **changes: Any,
) -> BuiltSet:
    """Build one valid set; ``changes`` are more arguments of :func:`make_inputs`."""
    return build_set(*make_inputs(run, generation, key=key, **changes), key, record_anywhere)


def make_ordinary(number: int = 0) -> BuiltSet:
    """Build a set of the size that an everyday run leaves: 30 layers, some 64 and 256 tokens.

    Each ``number`` below 100 is another run of one model: other texts, tokens, counts and secrets.
    """
    prompt, sampled, layers = 60 + number, 256 - number, 30
    leaves = leaf_count(prompt, sampled, layers)
    text = f"{PROMPT} {number} " + "Answer in a sentence or two. " * 8
    generation = make_generation(
        rendered_prompt=text,
        prompt_ids=tuple(range(1000 + number, 1000 + number + prompt)),
        sampled_ids=tuple(range(2000 + number, 2000 + number + sampled)),
        output=base64.b64encode(b"word %d " % number * sampled).decode(),
        context_tokens=1280,
        layers=layers,
        state_root=fake_digest(f"root {number}"),
        state_leaves=leaves,
        leaf_checks=base64.b64encode(random_bytes(f"leaves {number}", 4 * leaves)).decode(),
    )
    run = make_run(
        run_id=f"01890a5d-ac96-774b-bcce-b302099a80{number:02d}",
        prompt=text,
        max_tokens=1024,
        blind=sha256(b"blind %d" % number).hex(),
    )
    return make_set(run, generation, label=f"set {number}")


def make_traced(
    *parts: EvidencePart, experts: bool = False, sequential: bool = False, **changes: Any
) -> BuiltSet:
    """Build a set with these parts of evidence, which are invented but agree with each other.

    ``changes`` are more arguments of :func:`make_set`.
    """
    facts = replace(compute_sets.model_facts(experts=experts), context_train=4096)
    gathered = compute_sets.gather(parts, describe(facts), sequential=sequential)
    prompt_ids, sampled_ids = compute_sets.PROMPT_IDS, compute_sets.SAMPLED_IDS
    common = {
        "prompt_ids": prompt_ids,
        "sampled_ids": sampled_ids,
        "context_tokens": 4096 if sequential else 256,
        "routes": _base64(None if gathered.routes is None else encode_routes(gathered.routes)),
        "observed_evidence": _base64(
            None if gathered.observed is None else encode_observed(gathered.observed)
        ),
    }
    if gathered.state_root is None:
        generation = stateless(**common)
    else:
        leaves = leaf_count(len(prompt_ids), len(sampled_ids), LAYERS)
        generation = make_generation(
            **common,
            state_root=format_digest(gathered.state_root),
            state_leaves=leaves,
            leaf_checks=_base64(bytes(4 * leaves)),
        )
    one = RowClass(1, 1)
    runtime = (
        make_class(policy="sequential", prompt_class=one, decode_class=one, knobs=())
        if sequential
        else make_class()
    )
    run = make_run(evidence=parts, policy=runtime.policy, parse_special=sequential)
    return make_set(
        run,
        generation,
        runtime_class=runtime,
        manifest=make_manifest(runtime, generation, experts=experts),
        **changes,
    )


def make_tickets(
    run: InferenceRun | None = None, *, network_id: bytes | None = None
) -> tuple[Ticket, ...]:
    """Order a job for SIGNER and STRANGER and return their tickets, by slot."""
    declared = run or make_run()
    issued = epoch_of(_START_NS // 1_000_000)
    terms = JobTerms(
        network_id=network_id or local_network_id(),
        scheduler_job_id=random_bytes("job", 32),
        job_class=JobClass.REPLICA_EXTERNAL,
        model_profile_id=make_manifest().model_profile_id,
        max_prefill_tokens=4096,
        issued_epoch=issued,
        expires_epoch=issued + 24,
    )
    keys = (SIGNER.public.raw, STRANGER.public.raw)
    job = order_job(declared, terms, SCHEDULER, keys, random_bytes("request nonce", 32))
    return tickets(declared, job)


def make_replica(ticket: Ticket, key: SigningKey, **changes: Any) -> BuiltSet:
    """Build the set of the worker with ``key``; ``changes`` are fields of the child's result."""
    label = f"slot {ticket.request.replica_slot}"
    owner = SigningKey.from_seed(random_bytes(f"{label} owner", 32))
    salt = random_bytes(f"{label} owner salt", 32)
    papers = ticket_papers(
        open_ticket(ticket), key.public, owner.public, salt, _START_NS // 1_000_000
    )
    nonces = (random_bytes(f"{label} {name} nonce", 32) for name in ("prompt", "output"))
    changes = {"worker_state_root": fake_digest(f"{label} root"), **changes}
    return make_set(
        ticket.request,
        make_generation(**changes),
        key=key,
        papers=RunPapers(papers, *nonces),
        label=label,
    )


def data_of(built: BuiltSet, kind: MemberKind) -> bytes:
    """Return the bytes of one member of a set."""
    return built.files()[kind.name(built.receipt_id)]


def _base64(data: bytes | None) -> str:
    return "" if data is None else base64.b64encode(data).decode()
