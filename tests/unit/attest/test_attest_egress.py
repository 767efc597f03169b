"""The statement about the audit of a sandbox: nothing in it can be changed and still verify."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tallystick.attest.egress import (
    PREDICATE_TYPE,
    check_egress_statement,
    check_report,
    egress_statement,
    egress_summary,
)
from tallystick.canonical.hashing import format_digest, sha256
from tallystick.canonical.json import jcs
from tallystick.contracts.egress import CHANNEL_NAMES, EgressReport, is_promised
from tallystick.contracts.receipt import EgressAudit, Receipt, Sandbox
from tallystick.errors import EvidenceError
from tests.support.documents import digest_of, example_receipt
from tests.support.egress import example_profile, example_report, with_probe

LEVELS = ["process", "namespaces", "full"]


def receipt_of(report: EgressReport) -> tuple[Receipt, bytes]:
    """A receipt that names the audit, and its statement."""
    base = example_receipt()
    statement = egress_statement(
        report, run_id=base.observed.run_id, request_digest=base.core.request_digest
    )
    sandbox = Sandbox(report.profile.name, report.profile_digest)
    observed = replace(
        base.observed,
        enforcement_level=report.level,
        egress_audit=egress_summary(statement),
    )
    return Receipt(replace(base.core, sandbox=sandbox), observed), statement


@pytest.mark.parametrize("level", LEVELS)
def test_an_honest_statement_verifies(level: str) -> None:
    receipt, statement = receipt_of(example_report(level))
    assert check_egress_statement(statement, receipt) == example_report(level)
    document = json.loads(statement)
    predicate = document["predicate"]
    assert document["predicateType"] == PREDICATE_TYPE
    assert predicate["result"] == "PASSED"
    promised = [name for name in CHANNEL_NAMES if is_promised(name, level)]
    assert predicate["passedTests"] == promised
    assert predicate["failedTests"] == []
    assert set(predicate["warnedTests"]).isdisjoint(promised)
    assert (level == "full") == (predicate["warnedTests"] == [])


def test_a_lower_level_verifies_where_the_profile_allows_it() -> None:
    lower = example_report("process", example_profile("full", "process"))
    receipt, statement = receipt_of(lower)
    assert check_egress_statement(statement, receipt).lowered is not None
    with pytest.raises(EvidenceError, match="profile allows"):
        check_report(example_report("process", example_profile("full", "namespaces")))
    with pytest.raises(EvidenceError, match="needs its reason"):
        check_report(replace(lower, lowered=None))
    with pytest.raises(EvidenceError, match="needs its reason"):
        check_report(replace(example_report(), lowered="for no reason"))


def test_it_is_bound_to_one_receipt() -> None:
    receipt, statement = receipt_of(example_report())
    digest = digest_of("other")
    run = "018f9a3b-7c2d-7e4f-8a1b-2c3d4e5f6a7b"
    others = [
        replace(receipt, observed=replace(receipt.observed, run_id=run)),
        replace(receipt, core=replace(receipt.core, request_digest=digest)),
        replace(receipt, core=replace(receipt.core, sandbox=Sandbox("tiles", digest))),
        replace(receipt, core=replace(receipt.core, sandbox=Sandbox("tile", digest))),
        replace(receipt, observed=replace(receipt.observed, enforcement_level="namespaces")),
        replace(
            receipt, observed=replace(receipt.observed, egress_audit=EgressAudit("passed", digest))
        ),
        replace(
            receipt, observed=replace(receipt.observed, egress_audit=EgressAudit("passed", None))
        ),
        replace(
            receipt,
            observed=replace(
                receipt.observed,
                egress_audit=EgressAudit("failed", format_digest(sha256(statement))),
            ),
        ),
    ]
    for other in others:
        with pytest.raises(EvidenceError):
            check_egress_statement(statement, other)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list) and value:
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from leaves(value[key], (*path, key))
    else:
        yield path


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(document))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return copy


def test_every_leaf_is_checked_even_when_the_receipt_names_the_forgery() -> None:
    receipt, statement = receipt_of(example_report())
    document = json.loads(statement)
    paths = list(leaves(document))
    assert len(paths) > 200
    for path in paths:
        forged = jcs(changed(document, path, "SIGSEGV" if path[-1] == "seen_errno" else "x"))
        audit = EgressAudit("passed", format_digest(sha256(forged)))
        other = replace(receipt, observed=replace(receipt.observed, egress_audit=audit))
        with pytest.raises(EvidenceError):
            check_egress_statement(forged, other)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CHANNEL_NAMES)
def test_an_open_channel_fails_where_it_is_promised_closed(level: str, name: str) -> None:
    report = with_probe(example_report(level), name, None)
    if not is_promised(name, level):
        check_report(report)
        return
    with pytest.raises(EvidenceError, match="result"):
        check_report(report)
    failed = replace(report, result="failed")
    receipt, statement = receipt_of(failed)
    assert json.loads(statement)["predicate"]["failedTests"] == [name]
    assert egress_summary(statement).result == "failed"
    with pytest.raises(EvidenceError, match="failed"):
        check_egress_statement(statement, receipt)


def test_unsupported_counts_as_closed_only_if_it_is_outside_too() -> None:
    report = example_report("namespaces")
    check_report(with_probe(report, "tcp6", "EAFNOSUPPORT", "EAFNOSUPPORT"))
    for outside in (None, "EPERM"):
        with pytest.raises(EvidenceError):
            check_report(with_probe(report, "tcp6", "EAFNOSUPPORT", outside))
    # A failure of another kind says nothing: the target may just have been busy.
    with pytest.raises(EvidenceError):
        check_report(with_probe(report, "tcp4", "ETIMEDOUT"))


def test_a_control_that_does_not_reach_its_own_target_proves_nothing() -> None:
    report = with_probe(example_report(), "read_outside", "ENOENT", "ENOENT")
    with pytest.raises(EvidenceError):
        check_report(report)
    check_report(replace(report, result="failed"))
    check_report(with_probe(example_report(), "vsock", "EAFNOSUPPORT", "EAFNOSUPPORT"))


def test_reports_that_contradict_themselves_are_refused() -> None:
    good = example_report()
    status = good.status
    for bad in (
        replace(good, profile_digest=digest_of("other")),
        replace(good, probes=good.probes[:-1]),
        replace(good, probes=good.probes[::-1]),
        replace(good, probes=()),
        replace(good, result="failed"),
        replace(good, filter_digest=None),
        replace(good, namespaces=good.namespaces[1:]),
        replace(good, status=replace(status, seccomp=0)),
        replace(good, status=replace(status, no_new_privs=0)),
        replace(good, status=replace(status, effective=1)),
        replace(good, status=replace(status, permitted=1)),
        replace(good, status=replace(status, bounding=1)),
        replace(good, probes=(replace(good.probes[0], result="open"), *good.probes[1:])),
        replace(example_report("namespaces"), filter_digest=digest_of("filter")),
        replace(example_report("process"), namespaces=good.namespaces),
    ):
        with pytest.raises(EvidenceError):
            check_report(bad)


def test_other_bytes_are_no_statement() -> None:
    receipt, statement = receipt_of(example_report())
    for data in (b"", b"{}", b"[]", statement + b" ", statement[:-1], b'{"predicate":{}}'):
        with pytest.raises(EvidenceError):
            check_egress_statement(data, receipt)
        with pytest.raises(EvidenceError):
            egress_summary(data)
