"""Compute receipt and execution link come from one worker, and a replica's scheduler is another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tallystick.attest import dsse
from tallystick.attest.trust import TrustPolicy
from tallystick.canonical.hashing import sha256
from tallystick.contracts.compute_receipt import JobClass
from tallystick.contracts.layout import ENVELOPES
from tallystick.errors import EvidenceError
from tallystick.receipts.compute import build_compute_receipt
from tallystick.receipts.scheduling import JobTerms, order_job, ticket_papers
from tallystick.receipts.verify import verify_set
from tests.support.compute_sets import TIMESTAMP, WORKER, make_receipt
from tests.support.forgery import Forger
from tests.support.sets import NOW, SIGNER, STRANGER, make_set


def test_another_trusted_key_cannot_sign_the_link_in_the_workers_place() -> None:
    forger = Forger(make_set().files())
    statement = dsse.unsafe_payload(forger.data(ENVELOPES)[:-1])
    envelope = dsse.sign(statement, dsse.PAYLOAD_TYPE, [STRANGER]) + b"\n"
    both = TrustPolicy.for_keys([SIGNER.public, STRANGER.public])
    report = verify_set(forger.with_member(ENVELOPES, envelope), both, now=NOW)
    assert report.failure is not None
    assert report.failure.number == 12
    assert report.failure.expected == SIGNER.public.key_id
    together = dsse.sign(statement, dsse.PAYLOAD_TYPE, [STRANGER, SIGNER]) + b"\n"
    assert verify_set(forger.with_member(ENVELOPES, together), both, now=NOW).verified


@pytest.mark.parametrize(
    ("job_class", "holds"),
    [(JobClass.REPLICA_EXTERNAL, False), (JobClass.REPLICA_SELF_ORDERED, True)],
)
def test_a_worker_that_ordered_its_own_job_is_no_external_replica(
    job_class: JobClass, holds: bool
) -> None:
    made = make_receipt("states")
    request = made.inputs.papers.request.body
    terms = JobTerms(
        request.network_id,
        request.scheduler_job_id,
        job_class,
        request.model_profile_id,
        request.max_prefill_tokens,
        request.issued_epoch,
        request.expires_epoch,
    )
    job = order_job(
        made.inputs.run, terms, WORKER, (WORKER.public.raw,), made.inputs.papers.request_nonce
    )
    papers = ticket_papers(job, WORKER.public, WORKER.public, sha256(b"salt"), TIMESTAMP)
    inputs = replace(made.inputs, papers=papers)
    if holds:
        build_compute_receipt(inputs, WORKER)
        return
    with pytest.raises(EvidenceError, match="job_class says that another ordered the job"):
        build_compute_receipt(inputs, WORKER)
