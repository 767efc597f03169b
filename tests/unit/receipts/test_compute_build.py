"""Building a compute receipt: nothing is signed that a verifier would refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tallystick.attest.keys import SigningKey
from tallystick.canonical.hashing import format_digest, sha256
from tallystick.compute.families import describe
from tallystick.compute.rules import RULES_V1, RULES_V2, ComputeUnitRules
from tallystick.contracts.compute_receipt import (
    EvidenceLevel,
    JobClass,
    TraceEvidence,
    decode_strict,
    encode,
    epoch_of,
)
from tallystick.contracts.manifest import RuntimeManifest
from tallystick.contracts.manifest_facts import manifest_digests
from tallystick.errors import EvidenceError, InputError
from tallystick.evidence.schedule_checks import price
from tallystick.receipts.compute import ComputeInputs, build_compute_receipt, papers_nullifier
from tallystick.receipts.compute_case import ComputeCase, ComputeContext
from tallystick.receipts.compute_steps import COMPUTE_STEPS, require_all
from tallystick.receipts.compute_steps_evidence import refuse_kernel_trace
from tallystick.receipts.scheduling import JobTerms, order_job, ticket_papers
from tallystick.receipts.self_local import (
    JOB_SECRETS_BYTES,
    JobSecrets,
    self_local_credential,
    self_local_papers,
)
from tests.support.compute_sets import (
    KINDS,
    STRANGER,
    TIMESTAMP,
    WORKER,
    MadeReceipt,
    assemble,
    gather,
    make_receipt,
    model_facts,
    random_bytes,
)

OTHER = sha256(b"another value")
ALL = make_receipt("states", "graph", "gemm", experts=True)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_inputs_give_equal_bytes_that_decode(kind: str) -> None:
    made = KINDS[kind]()
    again = build_compute_receipt(made.inputs, WORKER)

    assert again == made.signed
    assert decode_strict(encode(again)) == again
    assert len(encode(again)) == 670


def inputs(**changes: Any) -> ComputeInputs:
    return replace(ALL.inputs, **changes)


def core(**changes: Any) -> ComputeInputs:
    return inputs(core=replace(ALL.inputs.core, **changes))


def evidence(**changes: Any) -> ComputeInputs:
    return inputs(evidence=replace(ALL.inputs.evidence, **changes))


def papers(**changes: Any) -> ComputeInputs:
    return inputs(papers=replace(ALL.inputs.papers, **changes))


def roots(**changes: Any) -> ComputeInputs:
    return core(evidence=replace(ALL.inputs.core.evidence, **changes))


def unvalidated() -> ComputeInputs:
    return inputs(
        manifest=replace(ALL.inputs.manifest, trace_capability=TraceEvidence.CUDA_KERNEL_LAUNCH)
    )


REFUSED: dict[str, tuple[Callable[[], ComputeInputs], str]] = {
    "manifest": (unvalidated, "trace_capability"),
    "prompt": (lambda: inputs(prompt_ids=(1, 2, 3)), "prefill_tokens"),
    "output": (lambda: inputs(sampled_ids=(5, 6)), "decode_tokens"),
    "more than asked": (lambda: inputs(sampled_ids=(5,) * 4), "more than was asked for"),
    "time": (lambda: inputs(timestamp=TIMESTAMP + 24 * 3_600_000), "not valid when"),
    "before its papers": (lambda: inputs(timestamp=TIMESTAMP - 3_600_000), "not valid when"),
    "request": (lambda: inputs(run=replace(ALL.inputs.run, prompt="other")), "request_commitment"),
    "slot": (lambda: inputs(run=replace(ALL.inputs.run, replica_slot=1)), "replica_slot"),
    "network": (lambda: inputs(run=replace(ALL.inputs.run, network_id="0" * 64)), "network_id"),
    "other parts": (
        lambda: inputs(run=replace(ALL.inputs.run, evidence=("states",))),
        "request_commitment",
    ),
    "scheduler": (lambda: papers(scheduler_key=STRANGER.public.raw), "did not sign the request"),
    "owner": (lambda: papers(owner_salt=OTHER), "owner_commitment"),
    "nonce": (lambda: papers(request_nonce=OTHER), "request_commitment"),
    "credential": (
        lambda: papers(
            credential=replace(ALL.inputs.papers.credential, worker_key=STRANGER.public.raw)
        ),
        "assignment.worker_key",
    ),
    "job": (lambda: evidence(job_nullifier=OTHER), "evidence.job_nullifier"),
    "shape": (lambda: evidence(shape_profile_id=OTHER), "evidence.shape_profile_id"),
    "units": (lambda: evidence(claimed_units=1), "compute units"),
    "state root": (lambda: roots(state_root="sha256:" + "1" * 64), "core.evidence roots"),
    "route root": (lambda: roots(expert_route_root=None), "core.evidence roots"),
    "trace root": (lambda: roots(gemm_trace_root=None), "core.evidence roots"),
    "level": (lambda: roots(level="gemm_traced"), "core.evidence.level"),
    "core prompt": (lambda: core(prompt_tokens=5), "core.prompt_tokens"),
    "core output": (lambda: core(sampled_tokens=4), "core.sampled_tokens"),
    "core units": (lambda: core(canonical_compute_units=1), "core.canonical_compute_units"),
    "policy": (
        lambda: core(runtime_class=replace(ALL.inputs.core.runtime_class, policy="sequential")),
        "evidence.trace_scheme_id",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_builder_refuses_what_a_verifier_would(name: str) -> None:
    make, message = REFUSED[name]
    with pytest.raises(EvidenceError) as caught:
        build_compute_receipt(make(), WORKER)
    assert message in str(caught.value)


def test_only_the_worker_of_the_credential_signs() -> None:
    with pytest.raises(EvidenceError, match="the worker's key"):
        build_compute_receipt(ALL.inputs, STRANGER)


@pytest.mark.parametrize("kind", TraceEvidence)
def test_no_kernel_trace_is_made(kind: TraceEvidence) -> None:
    if kind in (TraceEvidence.ABSENT, TraceEvidence.GRAPH_FALLBACK):
        refuse_kernel_trace(kind)
        return
    with pytest.raises(EvidenceError, match="trace_evidence") as caught:
        refuse_kernel_trace(kind)
    assert caught.value.found == kind.name.lower()


def test_a_short_nonce_is_refused() -> None:
    with pytest.raises(InputError, match="salt or nonce"):
        build_compute_receipt(inputs(output_nonce=bytes(31)), WORKER)


def priced_by(rules: ComputeUnitRules) -> MadeReceipt:
    """Return a receipt whose schedule is priced operation by operation."""
    made = make_receipt("gemm", sequential=True)
    manifest = with_rules(made.inputs.manifest, rules)
    schedule = made.inputs.evidence.schedule
    assert schedule is not None
    priced = replace(
        made.inputs.evidence,
        ruleset_version=rules.version,
        claimed_ruleset_id=rules.ruleset_id,
        claimed_units=price(schedule, rules),
    )
    return assemble(
        replace(
            made.inputs,
            manifest=manifest,
            evidence=priced,
            core=replace(made.inputs.core, canonical_compute_units=priced.claimed_units),
        ),
        gather(("gemm",), describe(model_facts(experts=False)), sequential=True),
    )


def with_rules(manifest: RuntimeManifest, rules: ComputeUnitRules) -> RuntimeManifest:
    return replace(
        manifest,
        cu_ruleset_id=rules.ruleset_id,
        digests=manifest_digests(
            manifest.decoded_facts(),
            manifest.runtime_class.decoded(),
            adapter_mapping_id=manifest.adapter_mapping_id,
            cu_ruleset_id=rules.ruleset_id,
            experts=0,
        ),
    )


@pytest.mark.parametrize("rules", [RULES_V1, RULES_V2], ids=["v1", "v2"])
def test_older_rulesets_price_the_schedule_again(rules: ComputeUnitRules) -> None:
    made = priced_by(rules)

    assert f"by ruleset v{rules.version}" in require_all(made.case())[8]
    assert made.signed.body.canonical_compute_units == 36


def test_a_manifest_of_another_ruleset_fails_step_7_alone() -> None:
    older, newer = priced_by(RULES_V2), make_receipt("gemm", sequential=True)
    manifest = newer.inputs.manifest
    documents = replace(
        older.resigned(runtime_manifest_hash=manifest.runtime_manifest_hash),
        public=replace(
            older.resigned(runtime_manifest_hash=manifest.runtime_manifest_hash).public
            or older.public,
            manifest=manifest.canonical_bytes,
        ),
    )
    case = ComputeCase(documents, ComputeContext())
    failed = []
    for number, step in COMPUTE_STEPS.items():
        try:
            step(case)
        except EvidenceError as error:
            failed.append((number, error.message))
    assert failed == [(7, "manifest.cu_ruleset_id does not hold")]


@pytest.mark.parametrize("slot", [0, 1])
def test_a_replica_ordered_by_somebody_else_holds(slot: int) -> None:
    network = sha256(b"a network")
    made = make_receipt("states")
    run = replace(made.inputs.run, network_id=network.hex(), replica_slot=slot)
    terms = JobTerms(
        network_id=network,
        scheduler_job_id=sha256(b"job"),
        job_class=JobClass.REPLICA_EXTERNAL,
        model_profile_id=made.inputs.manifest.model_profile_id,
        max_prefill_tokens=8,
        issued_epoch=epoch_of(TIMESTAMP) - 1,
        expires_epoch=epoch_of(TIMESTAMP) + 1,
    )
    workers = (WORKER.public.raw,) * 2
    job = order_job(run, terms, STRANGER, workers, sha256(b"request nonce"))
    own = replace(job, assignments=job.assignments[slot : slot + 1])
    papers = ticket_papers(own, WORKER.public, STRANGER.public, sha256(b"owner salt"), TIMESTAMP)
    replica = assemble(
        replace(
            made.inputs,
            run=run,
            papers=papers,
            evidence=replace(made.inputs.evidence, job_nullifier=papers_nullifier(papers)),
        ),
        gather(("states",), describe(model_facts(experts=False)), sequential=False),
    )
    words = require_all(replica.case(ComputeContext(network_id=network)))

    assert words[2].startswith(f"replica_external, slot {slot}, evidence level state_committed")
    assert replica.signed.body.job_nullifier != made.signed.body.job_nullifier
    assert replica.inputs.core == made.inputs.core


def test_secrets_are_one_draw_each() -> None:
    drawn = random_bytes("secrets", JOB_SECRETS_BYTES)
    secrets = JobSecrets.of(drawn)

    assert secrets.scheduler_seed + secrets.owner_seed == drawn[:64]
    assert secrets.output_nonce == drawn[-32:]
    assert repr(secrets) == "<JobSecrets>"
    with pytest.raises(InputError, match="not enough"):
        JobSecrets.of(drawn[1:])
    with pytest.raises(InputError, match="equal"):
        JobSecrets.of(drawn[:32] * 7)
    with pytest.raises(InputError, match="not random"):
        JobSecrets.of(bytes(32) + drawn[32:])


def test_the_papers_of_a_self_scheduled_run() -> None:
    secrets = JobSecrets.of(random_bytes("others", JOB_SECRETS_BYTES))
    credential = self_local_credential(secrets, WORKER.public.raw, TIMESTAMP)
    run = replace(ALL.inputs.run, evidence=("gemm",), max_tokens=17)
    made = self_local_papers(
        secrets, credential, run, model_profile_id=OTHER, max_prefill_tokens=99
    )
    request, assignment = made.request.body, made.assignment.body

    assert made.scheduler_key == SigningKey.from_seed(secrets.scheduler_seed).public.raw
    assert (request.job_class, request.replicas) == (JobClass.SELF_LOCAL, 1)
    assert request.required_evidence_level is EvidenceLevel.GEMM_TRACED
    assert (request.max_prefill_tokens, request.max_decode_tokens) == (99, 17)
    assert request.issued_epoch == assignment.issued_epoch == epoch_of(TIMESTAMP)
    assert request.expires_epoch == assignment.expires_epoch == epoch_of(TIMESTAMP) + 24
    assert assignment.worker_key == credential.worker_key == WORKER.public.raw


def test_two_runs_share_no_id_but_the_workers_key() -> None:
    first, second = (
        self_local_credential(
            JobSecrets.of(random_bytes(label, JOB_SECRETS_BYTES)), WORKER.public.raw, TIMESTAMP
        )
        for label in ("one", "two")
    )
    assert first.owner_commitment != second.owner_commitment


def test_the_bundle_names_receipt_prompt_and_scheduler() -> None:
    body = ALL.signed.body

    assert ALL.public.verification_epoch == body.issued_epoch
    assert ALL.public.scheduler_key == ALL.inputs.papers.scheduler_key
    assert format_digest(sha256(ALL.documents.palw)) == (
        ALL.documents.observed.compute_receipt_digest
    )
    assert (ALL.private.expert_routes is None) is (ALL.routes is None)
    assert make_receipt("states").private.gemm_trace is None
