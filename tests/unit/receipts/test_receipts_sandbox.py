"""Sets of sandboxed runs: the audit is bound, signed by the worker, and cannot be left out."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from tallystick.attest import dsse
from tallystick.attest.egress import egress_statement
from tallystick.canonical.json import jcs
from tallystick.contracts.digests import request_digest
from tallystick.contracts.egress import EgressReport
from tallystick.contracts.layout import ENVELOPES
from tallystick.contracts.sandbox_profile import SandboxProfile
from tallystick.errors import SandboxError
from tallystick.receipts.build import BuiltSet
from tallystick.receipts.build_parts import enforced_by
from tallystick.receipts.verify import verify_set
from tests.support.egress import example_profile, example_report, with_probe
from tests.support.forgery import Forger
from tests.support.sets import AUDIT_KEY, NOW, SIGNER, STRANGER, TRUST, make_run, make_set

LEVELS = ("process", "namespaces", "full")


def built_with(profile: SandboxProfile, report: EgressReport, enforcement: str) -> BuiltSet:
    run = make_run(sandbox_profile=profile.name, enforcement=enforcement)
    return make_set(run, audit=report)


@cache
def sandboxed(level: str = "full") -> BuiltSet:
    return built_with(example_profile(level), example_report(level), level)


@pytest.mark.parametrize("level", LEVELS)
def test_a_sandboxed_run_verifies_and_says_its_level(level: str) -> None:
    built = sandboxed(level)
    assert built.receipt.observed.enforcement_level == level
    assert built.receipt.observed.egress_audit.result == "passed"
    report = verify_set(built.files(), TRUST, now=NOW, key=AUDIT_KEY)
    assert report.verified
    assert f"32 egress probes at level {level}" in report.egress
    assert any(f"level {level}" in line for line in report.proves)
    assert not any("no isolation" in line for line in report.does_not_prove)


def test_the_core_is_the_same_at_a_lower_level_that_the_profile_allows() -> None:
    profile = example_profile("full", "process")
    tight = built_with(profile, example_report("full", profile), "process")
    loose = built_with(profile, example_report("process", profile), "process")
    assert tight.core_digest == loose.core_digest
    assert loose.receipt.observed.enforcement_level == "process"
    assert verify_set(loose.files(), TRUST, now=NOW, key=AUDIT_KEY).verified


def failing(files: dict[str, bytes]) -> int:
    report = verify_set(files, TRUST, now=NOW, key=AUDIT_KEY)
    assert report.failure is not None
    return report.failure.number


def lines_of(forger: Forger) -> list[bytes]:
    return forger.data(ENVELOPES).splitlines(keepends=True)


def test_the_audit_cannot_be_dropped_doubled_or_swapped() -> None:
    forger = Forger(sandboxed().files())
    execution, audit = lines_of(forger)
    for lines in ([execution], [audit, execution], [execution, audit, audit], [execution] * 2):
        assert failing(forger.with_member(ENVELOPES, b"".join(lines))) == 12


def test_the_audit_of_another_run_or_signer_fails() -> None:
    built = sandboxed()
    forger = Forger(built.files())
    execution, audit = lines_of(forger)
    statement = dsse.unsafe_payload(audit[:-1])
    by_stranger = dsse.sign(statement, dsse.PAYLOAD_TYPE, [STRANGER]) + b"\n"
    assert failing(forger.with_member(ENVELOPES, execution + by_stranger)) == 12
    run = make_run(sandbox_profile="tiles", enforcement="full")
    other = egress_statement(
        example_report(), run_id=run.run_id[:-1] + "8", request_digest=request_digest(run)
    )
    resigned = dsse.sign(other, dsse.PAYLOAD_TYPE, [SIGNER]) + b"\n"
    assert failing(forger.with_member(ENVELOPES, execution + resigned)) == 12


def test_an_edited_probe_fails_though_the_worker_signs_it() -> None:
    forger = Forger(sandboxed().files())
    execution, audit = lines_of(forger)
    edited = dsse.unsafe_payload(audit[:-1]).replace(
        b'"seen_errno":"ENOSYS"', b'"seen_errno":null', 1
    )
    assert edited != dsse.unsafe_payload(audit[:-1])
    resigned = dsse.sign(edited, dsse.PAYLOAD_TYPE, [SIGNER]) + b"\n"
    assert failing(forger.with_member(ENVELOPES, execution + resigned)) == 12


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("observed", "enforcement_level"), "none"),
        (("observed", "egress_audit", "result"), "not_run"),
        (("observed", "egress_audit", "statement_digest"), None),
        (("core", "sandbox", "profile"), "none"),
    ],
)
def test_a_receipt_cannot_claim_half_a_sandbox(path: tuple[str, ...], value: str | None) -> None:
    forger = Forger(sandboxed().files())
    receipt = forger.document(".geoai.json")
    holder = receipt
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    assert failing(forger.with_receipt(receipt, key=SIGNER)) == 1


def test_no_sandbox_where_one_was_declared_leaves_no_receipt() -> None:
    run = make_run(sandbox_profile="tiles", enforcement="full")
    with pytest.raises(SandboxError, match="none was enforced"):
        enforced_by(run, None)
    with pytest.raises(SandboxError, match="not the one"):
        enforced_by(run, example_report("process", example_profile("full", "process")))
    with pytest.raises(SandboxError, match="not the one"):
        enforced_by(replace(run, sandbox_profile="other"), example_report())


def test_a_broken_promise_is_no_receipt() -> None:
    broken = with_probe(example_report(), "tcp4", None)
    failed = replace(broken, result="failed")
    with pytest.raises(SandboxError, match="the audit of the sandbox failed"):
        built_with(example_profile(), failed, "full")


def test_the_statement_is_canonical() -> None:
    from tallystick.canonical.json import parse_strict

    audit = lines_of(Forger(sandboxed().files()))[1]
    payload = dsse.unsafe_payload(audit[:-1])
    assert jcs(parse_strict(payload, max_bytes=1 << 20)) == payload
