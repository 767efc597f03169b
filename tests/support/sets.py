"""Valid artifact sets without an engine: fixed results, consistent in every field."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from tallystick.attest import dsse
from tallystick.attest.bundlekeys import AuditKey
from tallystick.attest.keys import SigningKey
from tallystick.attest.statements import execution_statement
from tallystick.attest.trust import TrustPolicy
from tallystick.canonical.hashing import domain_hash, format_digest, sha256
from tallystick.canonical.json import jcs, parse_strict
from tallystick.contracts import digests
from tallystick.contracts.bundle import (
    BundlePrivate,
    BundlePublic,
    decode_private,
    encode_private,
    encode_public,
)
from tallystick.contracts.codec import decode_bytes
from tallystick.contracts.generation import Generation, HostFacts, Timings
from tallystick.contracts.layout import (
    BUNDLE,
    ENVELOPES,
    MARKER,
    MEMBERS,
    PUBLIC_JSON,
    RECEIPT,
    MemberKind,
)
from tallystick.contracts.manifest import RuntimeManifest
from tallystick.contracts.opening import ReceiptSet
from tallystick.contracts.platform import (
    DeviceFacts,
    EngineBuildFacts,
    LoadedLibrary,
    PlatformFacts,
    ProgramFacts,
    WheelFacts,
)
from tallystick.contracts.receipt import FingerprintPart, Receipt
from tallystick.contracts.request import PRODUCER, RUN_SCHEMA, Chat, ExpectedDigest, InferenceRun
from tallystick.contracts.runtime import EngineBuild, Knob, RowClass, RuntimeClass
from tallystick.evidence.state_tree import leaf_count
from tallystick.models.manifest import PinnedFacts, Runtime, build_manifest
from tallystick.receipts.build import BuiltSet, Sealing, SetInputs, build_set
from tallystick.receipts.build_parts import SupervisorFacts
from tallystick.receipts.sealing import Envelope, bundle_id, open_with, parse, seal
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
from tests.support.documents import example_facts

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
SIGNER = SigningKey.from_seed(bytes(range(32)))
STRANGER = SigningKey.from_seed(bytes(range(1, 33)))
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
    runtime_class: RuntimeClass | None = None, generation: Generation | None = None
) -> RuntimeManifest:
    """Return the manifest of a test set: the model has as many layers as the result says."""
    result = generation or make_generation()
    facts = replace(
        example_facts(),
        layers=result.layers,
        context_train=4096,
        chat_template_digest=fake_digest("template"),
    )
    return build_manifest(
        PinnedFacts(facts, fake_digest("model"), 123_456_789, None),
        Runtime(
            make_engine(), runtime_class or make_class(), result.platform, result.context_tokens
        ),
    )


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


def make_set(
    run: InferenceRun | None = None,
    generation: Generation | None = None,
    *,
    key: SigningKey = SIGNER,
    runtime_class: RuntimeClass | None = None,
    facts: SupervisorFacts | None = None,
    telemetry: bytes | None = None,
    label: str = "papers",
) -> BuiltSet:
    """Build one valid set."""
    result = generation or make_generation()
    runtime = runtime_class or make_class()
    declared = run or make_run()
    manifest = make_manifest(runtime, result)
    papers = make_papers(declared, manifest, key, label)
    return build_set(
        SetInputs(
            run=declared,
            generation=result,
            runtime_class=runtime,
            engine=make_engine(),
            manifest=manifest,
            papers=papers.papers,
            facts=facts or make_facts(),
            telemetry=telemetry or encode_log(make_events(len(result.sampled_ids))),
        ),
        Sealing(
            AUDIT_KEY,
            random_bytes(f"{label} salt", 32),
            random_bytes(f"{label} nonce", 24),
            papers.prompt_nonce,
            papers.output_nonce,
        ),
        key,
        record_anywhere,
    )


def make_ordinary() -> BuiltSet:
    """Build a set of the size that an everyday run leaves: 30 layers, 64 and 256 tokens."""
    prompt, sampled, layers = 64, 256, 30
    leaves = leaf_count(prompt, sampled, layers)
    generation = make_generation(
        prompt_ids=tuple(range(1000, 1000 + prompt)),
        sampled_ids=tuple(range(2000, 2000 + sampled)),
        output=base64.b64encode(b"word " * sampled).decode(),
        context_tokens=1280,
        layers=layers,
        state_leaves=leaves,
        leaf_checks=base64.b64encode(bytes(4 * leaves)).decode(),
    )
    return make_set(make_run(max_tokens=1024), generation)


@dataclass(frozen=True, slots=True)
class Forger:
    """An attacker who edits one document of a set and makes every digest agree again.

    He holds the audit key, so that the bundle can be sealed anew; not the worker's signing key,
    unless one is given.
    """

    files: Mapping[str, bytes]

    @property
    def set_id(self) -> str:
        """The id of the untouched set."""
        return next(name for name in self.files if name.endswith(MARKER.suffix))[:32]

    def data(self, kind: MemberKind) -> bytes:
        """Return the bytes of one member."""
        return self.files[kind.name(self.set_id)]

    def document(self, suffix: str) -> Any:
        """Return one member as a JSON value of its own; ``OPENING`` is inside the bundle."""
        if suffix == OPENING:
            return parse_strict(self.private.opening, max_bytes=1 << 26)
        return parse_strict(self.files[self.set_id + suffix], max_bytes=1 << 26)

    @property
    def envelope(self) -> Envelope:
        """The sealed bundle."""
        return parse(self.data(BUNDLE))

    @property
    def private(self) -> BundlePrivate:
        """The private part of the bundle."""
        return decode_private(open_with(self.envelope, AUDIT_KEY))

    def sealed(
        self, private: BundlePrivate | None = None, public: BundlePublic | None = None
    ) -> bytes:
        """Return the bundle with other parts, sealed with the right key and the same header."""
        envelope = self.envelope
        return seal(
            envelope.public if public is None else encode_public(public),
            encode_private(private or self.private),
            receipt_binding=envelope.receipt_binding if public is None else public.receipt_binding,
            key=AUDIT_KEY,
            salt=envelope.salt,
            nonce=envelope.nonce,
        )

    def with_opening(self, value: Any) -> dict[str, bytes]:
        """Return the set whose bundle holds the opening ``value``."""
        return self.with_member(BUNDLE, self.sealed(replace(self.private, opening=jcs(value))))

    def with_receipt(self, value: Any, *, key: SigningKey | None = None) -> dict[str, bytes]:
        """Return a set around the receipt ``value``: renamed, opening and marker adapted.

        The old signature stays, or ``key`` signs a matching statement.
        """
        receipt_bytes = jcs(value)
        core, observed = sha256(jcs(value["core"])), sha256(jcs(value["observed"]))
        digest = format_digest(domain_hash("geoai.receipt", 1, [core, observed]))
        opening = self.document(OPENING)
        opening["receipt_digest"] = digest
        public = self.document(PUBLIC_JSON.suffix)
        public["receipt_digest"], public["core_digest"] = digest, format_digest(core)
        bundle = self.sealed(replace(self.private, opening=jcs(opening)))
        public["verification_bundle_id"] = format_digest(bundle_id(bundle))
        envelopes = self.data(ENVELOPES)
        if key is not None:
            receipt = decode_bytes(Receipt, receipt_bytes, max_bytes=1 << 20)
            statement = execution_statement(receipt, receipt_bytes)
            envelopes = dsse.sign(statement, dsse.PAYLOAD_TYPE, [key]) + b"\n"
        return reseal(
            digest,
            {
                **{kind: self.data(kind) for kind in MEMBERS},
                RECEIPT: receipt_bytes,
                PUBLIC_JSON: jcs(public),
                ENVELOPES: envelopes,
                BUNDLE: bundle,
            },
        )

    def with_member(self, kind: MemberKind, data: bytes) -> dict[str, bytes]:
        """Return the set with one member replaced and the marker adapted."""
        contents = {kind: self.data(kind) for kind in MEMBERS}
        marker = decode_bytes(ReceiptSet, self.data(MARKER), max_bytes=65536)
        return reseal(marker.receipt_digest, {**contents, kind: data}, set_id=self.set_id)


def reseal(
    receipt_digest: str, contents: Mapping[MemberKind, bytes], *, set_id: str | None = None
) -> dict[str, bytes]:
    """Return files by name under the right id, with a completion marker that fits them."""
    name = set_id or digests.receipt_id(receipt_digest)
    files = {kind.name(name): data for kind, data in contents.items()}
    marker = {
        "schema": "misaka.palw.receipt-set.v2",
        "producer": PRODUCER,
        "receipt_digest": receipt_digest,
        "members": [
            {
                "name": kind.name(name),
                "digest": format_digest(sha256(contents[kind])),
                "visibility": kind.visibility,
            }
            for kind in MEMBERS
        ],
    }
    files[MARKER.name(name)] = jcs(marker)  # type: ignore[arg-type]
    return files
