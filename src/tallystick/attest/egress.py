"""The egress audit as an in-toto test result (docs/spec/sandbox.md#the-statement). Pure.

The statement holds nothing that its report and the receipt do not determine, and the report's
results follow from what its probes saw: a verifier derives all of it again and compares.
"""

from __future__ import annotations

from typing import Any, Final

from tallystick.attest.dsse import STATEMENT_TYPE
from tallystick.canonical.hashing import format_digest, parse_digest, sha256
from tallystick.canonical.json import JSONValue, jcs, parse_canonical
from tallystick.contracts.codec import decode, encode, encode_bytes
from tallystick.contracts.egress import (
    CHANNEL_NAMES,
    NAMESPACES,
    EgressReport,
    broken_promises,
    failed_controls,
    is_promised,
    make_probe,
)
from tallystick.contracts.receipt import EgressAudit, Receipt
from tallystick.contracts.sandbox_profile import at_least, check_profile, profile_digest
from tallystick.errors import EvidenceError

PREDICATE_TYPE: Final = "https://in-toto.io/attestation/test-result/v0.1"
PROFILE_DIGEST_NAME: Final = "tallystickSandboxProfile"
REQUEST_DIGEST_NAME: Final = "tallystickRequest"
REPORT_NAME: Final = "egress-report"
MAX_EGRESS_STATEMENT: Final = 64 * 1024


def egress_statement(report: EgressReport, *, run_id: str, request_digest: str) -> bytes:
    """Return the canonical statement that the sandbox of run ``run_id`` was audited as reported.

    ``request_digest`` is that of the receipt's core. Raises EvidenceError for a report that
    contradicts itself.
    """
    check_report(report)
    return jcs(_statement(report, run_id, request_digest))


def egress_summary(statement: bytes) -> EgressAudit:
    """Return what a receipt says of the audit that ``statement`` is about.

    Raises EvidenceError for bytes that are no such statement.
    """
    report = _report_of(parse_canonical(statement, max_bytes=MAX_EGRESS_STATEMENT))
    return EgressAudit(result=report.result, statement_digest=format_digest(sha256(statement)))


def check_egress_statement(payload: bytes, receipt: Receipt) -> EgressReport:
    """Check that ``payload`` is the audit that ``receipt`` names, and return its report.

    ``payload`` must come out of a verified envelope. Raises EvidenceError for another statement,
    another run, request, profile or level, results that do not follow from what the probes saw,
    and for an audit that failed.
    """
    observed, core = receipt.observed, receipt.core
    audit = observed.egress_audit
    _same("statement_digest", audit.statement_digest, format_digest(sha256(payload)))
    found = parse_canonical(payload, max_bytes=MAX_EGRESS_STATEMENT)
    report = _report_of(found)
    check_report(report)
    if found != _statement(report, observed.run_id, core.request_digest):
        raise _refusal("the statement is not the one that its report gives for this run")
    _same("result", audit.result, report.result)
    _same("profile", core.sandbox.profile, report.profile.name)
    _same("profile_digest", core.sandbox.profile_digest, report.profile_digest)
    _same("level", observed.enforcement_level, report.level)
    if report.result != "passed":
        raise _refusal("the audit of the sandbox failed")
    return report


def check_report(report: EgressReport) -> None:
    """Check that ``report`` does not contradict itself. Raises EvidenceError.

    Its profile allows the level, every channel was tried, each result follows from what was seen,
    and what the kernel said of the child is what the level promises.
    """
    check_profile(report.profile)
    _same("profile_digest", profile_digest(report.profile), report.profile_digest)
    if report.level not in report.profile.levels():
        raise _refusal("the level is not one that the profile allows", found=report.level)
    if (report.lowered is None) != (report.level == report.profile.level):
        raise _refusal("a lower level needs its reason, and the profile's own has none")
    if tuple(probe.name for probe in report.probes) != CHANNEL_NAMES:
        raise _refusal("not every channel was tried, once and in order")
    for probe in report.probes:
        if probe != make_probe(probe.name, report.level, probe.seen_errno, probe.control_errno):
            raise _refusal("a result does not follow from what was seen", found=probe.name)
    good = not broken_promises(report.probes, report.level) and not failed_controls(report.probes)
    _same("result", "passed" if good else "failed", report.result)
    _check_kernel(report)


def _check_kernel(report: EgressReport) -> None:
    status, level = report.status, report.level
    held = (
        not at_least(level, "process")
        or (status.no_new_privs, status.effective, status.permitted) == (1, 0, 0)
    ) and (not at_least(level, "namespaces") or status.bounding == 0)
    if not held:
        raise _refusal("the kernel left the child rights that the level takes")
    filtered = at_least(level, "full")
    if filtered != (report.filter_digest is not None) or (filtered and status.seccomp != 2):
        raise _refusal("level full, and no other, has a filter that the kernel shows")
    kinds = NAMESPACES if at_least(level, "namespaces") else ()
    if tuple(namespace.kind for namespace in report.namespaces) != kinds:
        raise _refusal("the child has not the namespaces of its level")


def _statement(report: EgressReport, run_id: str, request_digest: str) -> JSONValue:
    passed, failed = _tests(report)
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": run_id, "digest": {REQUEST_DIGEST_NAME: _hex(request_digest)}},
            {
                "name": report.profile.name,
                "digest": {PROFILE_DIGEST_NAME: _hex(report.profile_digest)},
            },
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "result": "PASSED" if report.result == "passed" else "FAILED",
            "configuration": [
                {
                    "name": REPORT_NAME,
                    "digest": {"sha256": sha256(encode_bytes(report)).hex()},
                    "annotations": encode(report),
                }
            ],
            "passedTests": passed,
            "warnedTests": _warned(report),
            "failedTests": failed,
        },
    }


def _tests(report: EgressReport) -> tuple[list[JSONValue], list[JSONValue]]:
    """Return the names of the channels that are promised closed: those that are, the others."""
    wrong = {
        probe.name
        for probe in (
            *broken_promises(report.probes, report.level),
            *failed_controls(report.probes),
        )
    }
    promised = [name for name in CHANNEL_NAMES if is_promised(name, report.level)]
    failed: list[JSONValue] = [name for name in CHANNEL_NAMES if name in wrong]
    return [name for name in promised if name not in wrong], failed


def _warned(report: EgressReport) -> list[JSONValue]:
    """Return the channels that are open and that the level does not promise to close."""
    return [
        probe.name
        for probe in report.probes
        if probe.result == "open" and not is_promised(probe.name, report.level)
    ]


def _report_of(statement: Any) -> EgressReport:
    try:
        (configuration,) = statement["predicate"]["configuration"]
        document = configuration["annotations"]
    except (KeyError, TypeError, ValueError):
        raise _refusal("not a statement about the audit of a sandbox") from None
    return decode(EgressReport, document, where=REPORT_NAME)


def _hex(digest: str) -> str:
    return parse_digest(digest).hex()


def _same(what: str, expected: str | None, found: str | None) -> None:
    if expected != found:
        raise EvidenceError(
            f"the egress audit is not the receipt's: {what}", expected=expected, found=found
        )


def _refusal(message: str, found: str | None = None) -> EvidenceError:
    return EvidenceError(f"egress audit: {message}", found=found)
