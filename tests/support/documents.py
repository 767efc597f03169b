"""One valid example of every document, small and with every optional part used somewhere."""

from __future__ import annotations

from dataclasses import fields, replace

from tallystick.canonical.hashing import format_digest, sha256
from tallystick.contracts import digests
from tallystick.contracts.dataset import (
    MANIFEST_SCHEMA,
    MODEL_REF_FILE,
    DatasetManifest,
    DeclaredFile,
    DeclaredModel,
    Imagery,
    RunParameters,
    Split,
    Task,
)
from tallystick.contracts.exec_envelope import (
    ExecEnvelope,
    ExecSandbox,
    ProvenanceChain,
    ReceiptValidator,
    exec_envelope,
)
from tallystick.contracts.model import (
    CALIBRATION_SCHEMA,
    FACTS_SCHEMA,
    PIN_SCHEMA,
    Calibration,
    ExactCombination,
    ModelFacts,
    ModelPin,
    ModelShape,
    WeightType,
)
from tallystick.contracts.model_ref import MODEL_REF_SCHEMA, ModelRef
from tallystick.contracts.opening import (
    OPENING_SCHEMA,
    SET_SCHEMA,
    Opening,
    ReceiptSet,
    SetMember,
)
from tallystick.contracts.public_receipt import (
    MINT_CLASS,
    PUBLIC_RECEIPT_SCHEMA,
    Artifacts,
    ExpertRouteFigures,
    Gate,
    Mint,
    PrivacyFlags,
    PublicReceipt,
    SemanticScheduleFigures,
)
from tallystick.contracts.receipt import (
    RECEIPT_SCHEMA,
    Core,
    Durations,
    EgressAudit,
    Evidence,
    FingerprintPart,
    Host,
    Memory,
    Observed,
    Receipt,
    Sandbox,
)
from tallystick.contracts.request import PRODUCER, RUN_SCHEMA, Chat, ExpectedDigest, InferenceRun
from tallystick.contracts.runtime import EngineBuild, Knob, RowClass, RuntimeClass


def digest_of(label: str) -> str:
    """Return a digest that stands for ``label``."""
    return format_digest(sha256(label.encode()))


BLIND = sha256(b"example blind")
ENGINE = EngineBuild("libllama", "2026.10.11549", digest_of("library"))
RUNTIME = RuntimeClass(
    engine_library=ENGINE.library,
    fingerprint=digest_of("fingerprint"),
    policy="row-class",
    knobs=(Knob("GGML_CPU_TILED_MM", "0"),),
    prompt_class=RowClass(2, 512),
    decode_class=RowClass(2, 512),
)


def example_run() -> InferenceRun:
    """Return a request with a chat and a seed."""
    return InferenceRun(
        schema=RUN_SCHEMA,
        producer=PRODUCER,
        run_id="01890a5d-ac96-774b-bcce-b302099a8057",
        model_path="models/example.gguf",
        model_digest=digest_of("model"),
        dataset=ExpectedDigest(digests.no_bundle_digest()),
        task=ExpectedDigest(digests.no_bundle_digest()),
        model=ExpectedDigest(digest_of("model")),
        prompt='Où est "la mer"?\n\u20ac\U0001f30a\u0007',
        prompt_path=None,
        split=None,
        tile=None,
        chat=Chat(system=None, clock=1_700_000_000),
        add_special=True,
        parse_special=True,
        max_tokens=3,
        temperature="0.75",
        seed=2**64 - 1,
        policy="row-class",
        evidence=("states",),
        disclosure="private",
        sandbox_profile="none",
        enforcement="none",
        network_id=None,
        replica_slot=1,
        expires_at="2026-12-01T00:00:00.000Z",
        blind=BLIND.hex(),
    )


def example_core() -> Core:
    """Return the core of a receipt for :func:`example_run`."""
    run = example_run()
    none = digests.sandbox_profile_digest("none", "none")
    return Core(
        schema=RECEIPT_SCHEMA,
        producer=PRODUCER,
        request_digest=digests.request_digest(run),
        bundle_digest=digests.no_bundle_digest(),
        task_digest=digests.no_bundle_digest(),
        model_digest=run.model_digest,
        engine=ENGINE,
        runtime_class=RUNTIME,
        runtime_class_id=digests.runtime_class_id(RUNTIME),
        sandbox=Sandbox("none", none),
        chat_template_digest=digest_of("template"),
        context_tokens=512,
        prompt_tokens=4,
        sampled_tokens=3,
        prompt_commitment=digests.prompt_commitment(BLIND, None, run.prompt, (1, 2, 3, 4)),
        output_commitment=digests.output_commitment(BLIND, (5, 6, 7), b"sea"),
        disclosure="private",
        disclosed=None,
        evidence=Evidence("state_committed", digest_of("states"), 18, 3, None, None),
        canonical_compute_units=5,
        stop_reason="length",
        status="complete",
    )


def example_observed() -> Observed:
    """Return the observed part of a receipt for :func:`example_run`."""
    return Observed(
        run_digest=digests.run_digest(example_run()),
        run_id="01890a5d-ac96-774b-bcce-b302099a8057",
        start_time="2026-11-30T12:00:00.000Z",
        end_time="2026-11-30T12:00:01.250Z",
        durations_ns=Durations(1, 2, 3, 0, 2**63),
        enforcement_level="none",
        egress_audit=EgressAudit("not_run", None),
        rss=Memory(1000, 2000, 0),
        gpu_memory=None,
        ring_depth=0,
        evictions=0,
        prefetch_hits=0,
        prefetch_misses=0,
        residency="all_resident",
        dropped_events=0,
        telemetry_digest=digest_of("telemetry"),
        self_check="not_run",
        compute_receipt_digest=digest_of("compute receipt"),
        exec_envelope_digest=digest_of("execution envelope"),
        worker_state_root=None,
        worker_id="local",
        host=Host(
            cpu="Example CPU",
            cpu_features="avx2",
            libc="glibc 2.36",
            kernel="Linux 6.1",
            python="3.11.2",
            threads=2,
            observer="compiled",
            renderer="none",
            dropped_environment=("GGML_EXAMPLE",),
            fingerprint_parts=(FingerprintPart("llama", "0123456789abcdef"),),
        ),
    )


def example_receipt() -> Receipt:
    """Return a whole receipt."""
    return Receipt(example_core(), example_observed())


def example_opening() -> Opening:
    """Return the opening that belongs to :func:`example_receipt`."""
    run = example_run()
    return Opening(
        schema=OPENING_SCHEMA,
        producer=PRODUCER,
        receipt_digest=digests.receipt_digest(example_receipt()),
        request=run,
        rendered_prompt=run.prompt,
        prompt_ids=(1, 2, 3, 4),
        sampled_ids=(5, 6, 7),
        output="c2Vh",
        leaf_checks="AAAAAA==",
    )


def example_set() -> ReceiptSet:
    """Return the completion marker that belongs to :func:`example_receipt`."""
    digest = digests.receipt_digest(example_receipt())
    name = digests.receipt_id(digest)
    return ReceiptSet(
        schema=SET_SCHEMA,
        producer=PRODUCER,
        receipt_digest=digest,
        members=(
            SetMember(f"{name}.geoai.json", digest_of("receipt"), "public"),
            SetMember(f"{name}.opening", digest_of("opening"), "private"),
        ),
    )


def example_shape() -> ModelShape:
    """Return the widths of a small dense model."""
    absent = dict.fromkeys((field.name for field in fields(ModelShape)), 0)
    return replace(ModelShape(**absent), heads=4, heads_kv=2, feed_forward=256)


def example_facts() -> ModelFacts:
    """Return the facts of a small model."""
    return ModelFacts(
        schema=FACTS_SCHEMA,
        gguf_version=3,
        architecture="llama",
        name="example",
        layers=3,
        embedding=64,
        context_train=512,
        vocabulary=1000,
        experts=0,
        experts_used=0,
        shape=example_shape(),
        parameters=123456,
        tensors=30,
        weight_types=(WeightType("Q8_0", 21, 99999), WeightType("F32", 9, 1024)),
        tokenizer_model="gpt2",
        tokenizer_digest=digest_of("tokenizer"),
        chat_template_digest=None,
        template_uses_clock=False,
        needs_normalising=(),
    )


def example_pin() -> ModelPin:
    """Return the pin of a small model."""
    return ModelPin(
        schema=PIN_SCHEMA,
        producer=PRODUCER,
        name="example",
        path="models/example.gguf",
        digest=digest_of("model"),
        size=2**40,
        source="https://example.org/example.gguf",
        derived_from=None,
        transform=None,
        facts=example_facts(),
    )


def example_calibration() -> Calibration:
    """Return a calibration with one exact combination."""
    return Calibration(
        schema=CALIBRATION_SCHEMA,
        producer=PRODUCER,
        model_digest=digest_of("model"),
        engine=ENGINE,
        fingerprint=RUNTIME.fingerprint,
        suite="calibration/v1",
        layers=3,
        combinations=(ExactCombination(RUNTIME.knobs, RowClass(2, 512), 40_000, 150_000),),
    )


def example_public_receipt() -> PublicReceipt:
    """Return the public document of a small run; its digests stand for themselves."""
    ids = {
        name: digest_of(name)
        for name, kind in PublicReceipt.__annotations__.items()
        if kind == "Digest"
    }
    return PublicReceipt(
        schema=PUBLIC_RECEIPT_SCHEMA,
        producer=PRODUCER,
        **ids,
        job_class="self_local",
        replica_slot=0,
        evidence_level="gemm_traced",
        trace_evidence="graph_fallback",
        prefill_tokens=5,
        decode_tokens=2,
        prefill_graph_steps=5,
        decode_graph_steps=1,
        schedule_kind="observed",
        schedule_event_count=13770,
        trace_event_count=2466,
        canonical_compute_units=41692,
        semantic_compute_units_v3=41692,
        semantic_schedule=SemanticScheduleFigures(digest_of("schedule"), 1846, 80),
        expert_route=ExpertRouteFigures(digest_of("routes"), 240),
        timestamp=1_796_040_001_250,
        issued_epoch=498_900,
        expires_epoch=498_924,
        verification_epoch=498_900,
        artifacts=Artifacts(
            ENGINE.name, ENGINE.version, ENGINE.library, digest_of("model"), 23_938_321_728
        ),
        disclosure="private",
        mint=Mint(
            mint_class=MINT_CLASS,
            eligible=False,
            weight=0,
            ineligible_reasons=("not anchored",),
            mainnet_ready=False,
            mainnet_gates=(Gate("network.bond", "external", "needs a bond"),),
        ),
        privacy=replace(
            PrivacyFlags(**dict.fromkeys((flag.name for flag in fields(PrivacyFlags)), "sealed")),
            signing_keys="withheld",
        ),
    )


def example_model_ref() -> ModelRef:
    """Return a reference to the model of :func:`example_run`."""
    source = "https://example.org/example.gguf"
    return ModelRef(MODEL_REF_SCHEMA, PRODUCER, "example", digest_of("model"), 2**40, (source,))


def declared(path: str, size: int, media_type: str = "text/plain") -> DeclaredFile:
    """Return a file whose content stands for its path."""
    return DeclaredFile(path, sha256(path.encode()).hex(), size, media_type)


def example_manifest() -> DatasetManifest:
    """Return the manifest of a bundle with two tiles."""
    return DatasetManifest(
        schema=MANIFEST_SCHEMA,
        producer=PRODUCER,
        name="example-tiles",
        imagery=Imagery(
            source="made up",
            license="CC-BY-4.0",
            attribution="© nobody",
            tiles="data/{z}/{x}/{y}.png",
            descriptions=None,
            source_attestation="data/source.jsonl",
        ),
        splits=(
            Split("all", "task/all.txt", ("3/1/2", "3/1/6")),
            Split("test", None, ("3/1/6",)),
        ),
        files=(
            declared("data/3/1/2.png", 2**33, "image/png"),
            declared("data/3/1/6.png", 1, "image/png"),
            declared("data/source.jsonl", 900),
            declared(MODEL_REF_FILE, 321, "application/json"),
        ),
        task=Task(
            "task/prompt.txt", (declared("task/all.txt", 12), declared("task/prompt.txt", 80))
        ),
        model=DeclaredModel(MODEL_REF_FILE, digest_of("model")),
        run=RunParameters(
            chat=Chat(system="Answer with one word.", clock=None),
            max_tokens=16,
            temperature="0.25",
            seed=2**63,
            policy="row-class",
            evidence=("states", "gemm"),
            disclosure="public",
            sandbox_profile="full",
            enforcement="full",
        ),
    )


def example_exec_envelope() -> ExecEnvelope:
    """Return the envelope of an execution over the bundle of :func:`example_manifest`."""
    return exec_envelope(
        digest_of("model"),
        ExecSandbox("full", digest_of("profile")),
        ProvenanceChain(digest_of("run"), digest_of("manifest"), digest_of("source")),
        ReceiptValidator("tallystick", "0.1.0", digest_of("receipt schema")),
    )


def every_example() -> tuple[object, ...]:
    """Return one example of every document that has a schema."""
    return (
        example_run(),
        example_receipt(),
        example_opening(),
        example_set(),
        example_public_receipt(),
        example_facts(),
        example_pin(),
        example_calibration(),
        example_manifest(),
        example_model_ref(),
        example_exec_envelope(),
    )
