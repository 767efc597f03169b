"""The replica rule: two workers, one job, equal cores; and each of its parts failing alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tallystick.attest.bundlekeys import AuditKey
from tallystick.attest.trust import TrustPolicy
from tallystick.audit.match import RULES, MatchReport, Replica, match_replicas, match_sets
from tallystick.canonical.hashing import sha256
from tallystick.contracts.compute_receipt import EvidenceLevel, JobClass, TraceEvidence
from tallystick.contracts.layout import BUNDLE, RECEIPT, STATE
from tallystick.errors import EvidenceError, NothingToVerifyError, NoTrustError
from tallystick.receipts.build import BuiltSet
from tallystick.receipts.documents import find_id, read_documents
from tallystick.receipts.inspect import inspect_receipt
from tallystick.receipts.verify import VerifyContext
from tests.support.sets import (
    AUDIT_KEY,
    NOW,
    PROMPT,
    SIGNER,
    STRANGER,
    TRUST,
    data_of,
    fake_digest,
    make_replica,
    make_run,
    make_set,
    make_tickets,
)

BOTH = TrustPolicy.for_keys([SIGNER.public, STRANGER.public])
TICKETS = make_tickets()
A, B = make_replica(TICKETS[0], SIGNER), make_replica(TICKETS[1], STRANGER)
OTHER = sha256(b"another value")


def public(built: BuiltSet) -> dict[str, bytes]:
    private = {BUNDLE.name(built.receipt_id), STATE.name("")}
    return {name: data for name, data in built.files().items() if name not in private}


def match(left: BuiltSet, right: BuiltSet) -> MatchReport:
    return match_sets(public(left), public(right), VerifyContext(BOTH, NOW))


def replica(built: BuiltSet) -> Replica:
    files = built.files()
    compute = read_documents(files, find_id(files)).compute
    return Replica(inspect_receipt(data_of(built, RECEIPT)), compute.body)


LEFT, RIGHT = replica(A), replica(B)


def failing_rule(right: Replica, left: Replica = LEFT) -> str:
    report = match_replicas(left, right)
    assert not report.matched
    assert report.exit_code == 1
    assert report.failure is report.rules[-1]
    assert report.notes == ()
    return report.failure.name


def test_a_copied_worker_root_is_no_match() -> None:
    """One root is bound to one credential: the second who shows it has not computed it."""
    root = A.receipt.observed.worker_state_root
    copied = make_replica(TICKETS[1], STRANGER, worker_state_root=root)
    assert failing_rule(replica(copied)) == "different worker state root"


def test_two_replicas_match_by_their_public_files() -> None:
    report = match(A, B)
    assert report.matched
    assert report.exit_code == 0
    assert report.failure is None
    assert (report.left, report.right) == (A.receipt_digest, B.receipt_digest)
    assert [rule.name for rule in report.rules] == [
        "same network",
        "windows that overlap",
        "same job nullifier",
        "different replica slot",
        "different worker credential",
        "different execution nullifier",
        "different worker key",
        "different worker state root",
        "same core",
        "same evidence",
    ]
    assert len(report.rules) == len(RULES)
    assert match(B, A).matched
    assert match_sets(A.files(), B.files(), VerifyContext(BOTH, NOW)).matched


def test_a_match_says_what_it_leaves_open() -> None:
    first, second, *_ = match(A, B).notes
    assert "do not exclude that one worker copied" in first
    assert "worker_state_root" in second
    assert "finds a copy" in second
    bare = replace(RIGHT.receipt.observed, worker_state_root=None)
    without = replace(
        RIGHT,
        summary=replace(RIGHT.summary, receipt=replace(RIGHT.receipt, observed=bare)),
    )
    assert "cannot be told from a computation" in match_replicas(LEFT, without).notes[1]


def test_what_needs_the_keys_of_the_bundles_is_named_without_them() -> None:
    def unchecked(first: AuditKey | None, second: AuditKey | None) -> list[str]:
        keys = (first, second)
        report = match_sets(A.files(), B.files(), VerifyContext(BOTH, NOW), keys=keys)
        assert report.matched
        return [note for note in report.notes if note.startswith("Not checked of ")]

    left, right = unchecked(None, None)
    for name, note in (("A", left), ("B", right)):
        assert note.startswith(f"Not checked of {name}, without the key of its bundle: steps 3, ")
    assert unchecked(AUDIT_KEY, None) == [right]
    assert unchecked(None, AUDIT_KEY) == [left]
    assert unchecked(AUDIT_KEY, AUDIT_KEY) == []


def test_a_bundle_that_its_key_does_not_open_ends_the_match() -> None:
    wrong = AuditKey(bytes(32 * [7]))
    with pytest.raises(EvidenceError, match="B does not verify"):
        match_sets(A.files(), B.files(), VerifyContext(BOTH, NOW), keys=(AUDIT_KEY, wrong))


def test_one_set_is_no_replica_of_itself() -> None:
    failure = match(A, A).failure
    assert failure is not None
    assert failure.name == "different replica slot"


def test_two_runs_that_nobody_ordered_are_no_replicas() -> None:
    one, two = make_set(), make_set(label="again")
    failure = match(one, two).failure
    assert failure is not None
    assert failure.name == "same job nullifier"
    assert one.core_digest == two.core_digest


def test_another_result_is_named_by_its_first_field() -> None:
    other = make_replica(TICKETS[1], STRANGER, sampled_ids=(31, 8, 1500, 3))
    failure = match(A, other).failure
    assert failure is not None
    assert failure.name == "same core: core.output_commitment differs"
    other = make_replica(TICKETS[1], STRANGER, state_root=fake_digest("another root"))
    failure = match(A, other).failure
    assert failure is not None
    assert failure.name == "same core: core.evidence.state_root differs"


def test_a_copied_core_matches_and_is_not_told_from_a_computation() -> None:
    """The copier makes up its own root: only a replay shows that it is no such tree."""
    copied = make_replica(TICKETS[1], STRANGER, worker_state_root=fake_digest("made up"))
    assert match(A, copied).matched


def test_one_worker_with_two_credentials_does_not_match_itself() -> None:
    ticket = make_tickets()[0]
    again = replica(make_replica(ticket, SIGNER))
    body = replace(
        again.compute,
        replica_slot=1,
        worker_credential_id=OTHER,
        execution_nullifier=OTHER,
    )
    assert failing_rule(replace(again, compute=body)) == "different worker key"


COMPUTE: dict[str, tuple[dict[str, Any], str]] = {
    "network": ({"network_id": OTHER}, "same network"),
    "earlier": ({"issued_epoch": 1, "expires_epoch": 25}, "windows that overlap"),
    "later": (
        {
            "issued_epoch": LEFT.compute.expires_epoch,
            "expires_epoch": LEFT.compute.expires_epoch + 24,
        },
        "windows that overlap",
    ),
    "job": ({"job_nullifier": OTHER}, "same job nullifier"),
    "slot": ({"replica_slot": 0}, "different replica slot"),
    "credential": (
        {"worker_credential_id": LEFT.compute.worker_credential_id},
        "different worker credential",
    ),
    "execution": (
        {"execution_nullifier": LEFT.compute.execution_nullifier},
        "different execution nullifier",
    ),
    **{
        name: ({name: OTHER}, f"same evidence: {name} differs")
        for name in (
            "model_profile_id",
            "shape_profile_id",
            "cu_ruleset_id",
            "trace_scheme_id",
            "operation_schedule_commitment",
            "gemm_trace_root",
        )
    },
    **{
        name: ({name: 1}, f"same evidence: {name} differs")
        for name in (
            "schedule_event_count",
            "canonical_compute_units",
            "prefill_tokens",
            "decode_tokens",
            "trace_event_count",
        )
    },
    "job class": (
        {"job_class": JobClass.REPLICA_SELF_ORDERED},
        "same evidence: job_class differs",
    ),
    "level": (
        {"evidence_level": EvidenceLevel.GEMM_TRACED},
        "same evidence: evidence_level differs",
    ),
    "trace": (
        {"trace_evidence": TraceEvidence.GRAPH_FALLBACK},
        "same evidence: trace_evidence differs",
    ),
}


@pytest.mark.parametrize("name", COMPUTE)
def test_every_rule_fails_alone(name: str) -> None:
    changes, rule = COMPUTE[name]
    other = replace(RIGHT, compute=replace(RIGHT.compute, **changes))
    assert failing_rule(other) == rule
    mirrored = match_replicas(other, LEFT).failure
    assert mirrored is not None
    assert mirrored.name == rule
    last = match_replicas(LEFT, other).rules[-1]
    assert last.left
    assert last.right


def test_windows_that_share_one_epoch_overlap() -> None:
    issued = LEFT.compute.expires_epoch - 1
    body = replace(RIGHT.compute, issued_epoch=issued, expires_epoch=issued + 24)
    assert match_replicas(LEFT, replace(RIGHT, compute=body)).matched


def test_a_side_that_does_not_verify_is_named() -> None:
    files = public(B)
    name = next(name for name in files if name.endswith(".telemetry.jsonl"))
    for left, right, side in ((A.files(), files, "B"), (files, A.files(), "A")):
        broken = {**(right if side == "B" else left), name: b""}
        sides = (left, broken) if side == "B" else (broken, right)
        with pytest.raises(EvidenceError, match=f"{side} does not verify: step 1 ") as caught:
            match_sets(*sides, VerifyContext(BOTH, NOW))
        assert caught.value.exit_code == 1
    with pytest.raises(EvidenceError, match="B does not verify: step 4 ") as untold:
        match_sets(A.files(), B.files(), VerifyContext(TRUST, NOW))
    assert "the signer is not one of the trusted keys" in str(untold.value)
    assert "--key" in str(untold.value.hint)
    with pytest.raises(NothingToVerifyError):
        match_sets(A.files(), {}, VerifyContext(BOTH, NOW))
    with pytest.raises(NoTrustError):
        match_sets(
            A.files(), B.files(), VerifyContext(TrustPolicy("tallystick.trust-policy/v1", ()), NOW)
        )


def test_replicas_of_another_network_match_only_for_who_asks_for_it() -> None:
    network = sha256(b"a network")
    tickets = make_tickets(network_id=network)
    sides = [
        public(make_replica(ticket, key))
        for ticket, key in zip(tickets, (SIGNER, STRANGER), strict=True)
    ]
    with pytest.raises(EvidenceError, match=r"A does not verify: step 2 .*network"):
        match_sets(sides[0], sides[1], VerifyContext(BOTH, NOW))
    assert match_sets(sides[0], sides[1], VerifyContext(BOTH, NOW, network_id=network)).matched
    with pytest.raises(EvidenceError, match="B does not verify: step 2 "):
        match_sets(sides[0], public(B), VerifyContext(BOTH, NOW, network_id=network))
    with pytest.raises(NoTrustError):
        match_sets(A.files(), B.files(), VerifyContext(None, NOW, AUDIT_KEY))


def test_a_report_shows_nothing_private() -> None:
    other = make_replica(TICKETS[1], STRANGER, output="c2VjcmV0", sampled_ids=(9, 9, 9, 9))
    text = repr(match(A, other)) + repr(match(A, B))
    for secret in (PROMPT, make_run().blind, "9, 9", "c2VjcmV0", "1500"):
        assert secret not in text


def test_replicas_may_run_at_other_times_and_places() -> None:
    late = make_replica(TICKETS[1], STRANGER, rss_before=7)
    assert match(A, late).matched
