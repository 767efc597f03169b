"""The execution link: an in-toto Statement v1 about one receipt (docs/spec/attestations.md).

The statement holds nothing that the receipt does not determine. So a verifier builds the expected
statement from the receipt and compares: there is no field that could be left unchecked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tallystick.attest.dsse import STATEMENT_TYPE
from tallystick.canonical.hashing import parse_digest, sha256
from tallystick.canonical.json import JSONValue, jcs, parse_canonical, shorten
from tallystick.contracts import digests
from tallystick.contracts.codec import encode
from tallystick.contracts.layout import COMPUTE_RECEIPT, RECEIPT, TELEMETRY
from tallystick.contracts.receipt import Core, EgressAudit, Observed, Receipt
from tallystick.errors import EvidenceError

PROVENANCE_TYPE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "tag:tallystick,2026:inference/v1"
BUILDER_ID: Final = "tag:tallystick,2026:worker/v1"
RECEIPT_DIGEST_NAME: Final = "tallystickReceipt"
MAX_STATEMENT_BYTES: Final = 64 * 1024
_SHOWN: Final = 100  # characters of a differing value that an error repeats


@dataclass(frozen=True, slots=True)
class ExecutionClaim:
    """What a checked execution statement says, each digest recomputed from the receipt."""

    receipt_digest: str
    core_digest: str
    chain_digest: str
    runtime_class_id: str
    egress_audit: EgressAudit


def execution_statement(receipt: Receipt, receipt_bytes: bytes) -> bytes:
    """Return the canonical statement about ``receipt``, whose file holds ``receipt_bytes``."""
    return jcs(_statement(_claim(receipt, ReceiptDigests.of(receipt)), receipt, receipt_bytes))


@dataclass(frozen=True, slots=True)
class ReceiptDigests:
    """The two digests of a receipt, as :mod:`tallystick.contracts.digests` computes them."""

    core: str
    receipt: str

    @classmethod
    def of(cls, receipt: Receipt) -> ReceiptDigests:
        """Compute both."""
        core = digests.core_digest(receipt.core)
        observed = digests.observed_digest(receipt.observed)
        return cls(core, digests.receipt_digest_of(core, observed))


def check_execution_statement(
    payload: bytes,
    receipt: Receipt,
    receipt_bytes: bytes,
    known: ReceiptDigests | None = None,
) -> ExecutionClaim:
    """Check that ``payload`` is the statement about ``receipt``, field by field.

    ``payload`` must come out of a verified envelope, ``receipt`` be the decoded ``receipt_bytes``,
    and ``known`` its digests, if the caller has computed them already.
    Raises EvidenceError when the payload is not canonical JSON, or naming the first field, in the
    statement's order, that differs, is missing, or is not expected.
    """
    claim = _claim(receipt, known or ReceiptDigests.of(receipt))
    expected = _statement(claim, receipt, receipt_bytes)
    # The same bytes are the same statement, in canonical form; others are read for what differs.
    if len(payload) > MAX_STATEMENT_BYTES or payload != jcs(expected):
        _compare(expected, parse_canonical(payload, max_bytes=MAX_STATEMENT_BYTES), "")
    return claim


def _claim(receipt: Receipt, known: ReceiptDigests) -> ExecutionClaim:
    return ExecutionClaim(
        receipt_digest=known.receipt,
        core_digest=known.core,
        chain_digest=digests.chain_digest(receipt.core),
        runtime_class_id=receipt.core.runtime_class_id,
        egress_audit=receipt.observed.egress_audit,
    )


def _statement(claim: ExecutionClaim, receipt: Receipt, receipt_bytes: bytes) -> JSONValue:
    name = digests.receipt_id(claim.receipt_digest)
    return {
        "_type": STATEMENT_TYPE,
        "subject": _subjects(claim, receipt, name, receipt_bytes),
        "predicateType": PROVENANCE_TYPE,
        "predicate": {
            "buildDefinition": _build_definition(claim, receipt.core, receipt.observed),
            "runDetails": _run_details(receipt.observed, name),
        },
    }


def _subjects(
    claim: ExecutionClaim, receipt: Receipt, name: str, receipt_bytes: bytes
) -> list[JSONValue]:
    disclosed = receipt.core.disclosed
    subjects: list[JSONValue] = [
        {"name": "receipt", "digest": {RECEIPT_DIGEST_NAME: _hex(claim.receipt_digest)}},
        _resource("core", claim.core_digest),
        {"name": name + RECEIPT.suffix, "digest": {"sha256": sha256(receipt_bytes).hex()}},
        _resource(name + COMPUTE_RECEIPT.suffix, receipt.observed.compute_receipt_digest),
    ]
    if disclosed is not None:
        subjects.append(_resource("output", disclosed.output_digest))
    return subjects


def _build_definition(claim: ExecutionClaim, core: Core, observed: Observed) -> JSONValue:
    return {
        "buildType": BUILD_TYPE,
        "externalParameters": {
            "request_digest": core.request_digest,
            "bundle_digest": core.bundle_digest,
            "task_digest": core.task_digest,
            "model_digest": core.model_digest,
            "disclosure": core.disclosure,
        },
        "internalParameters": {
            "chain_digest": claim.chain_digest,
            "runtime_class_id": core.runtime_class_id,
            "engine": encode(core.engine),
            "sandbox": encode(core.sandbox),
            "enforcement_level": observed.enforcement_level,
            "egress_audit": encode(observed.egress_audit),
        },
        "resolvedDependencies": [
            _resource("model", core.model_digest),
            _resource("engine", core.engine.library),
        ],
    }


def _run_details(observed: Observed, name: str) -> JSONValue:
    return {
        "builder": {"id": BUILDER_ID},
        "metadata": {
            "invocationId": observed.run_id,
            "startedOn": observed.start_time,
            "finishedOn": observed.end_time,
        },
        "byproducts": [_resource(name + TELEMETRY.suffix, observed.telemetry_digest)],
    }


def _resource(name: str, digest: str) -> JSONValue:
    return {"name": name, "digest": {"sha256": _hex(digest)}}


def _hex(digest: str) -> str:
    return parse_digest(digest).hex()


def _compare(expected: JSONValue, found: JSONValue, where: str) -> None:
    if isinstance(expected, dict) and isinstance(found, dict):
        for key, value in expected.items():
            if key not in found:
                raise _differs(f"{where}.{key}", "present", "missing")
            _compare(value, found[key], f"{where}.{key}")
        for key in found:
            if key not in expected:
                raise _differs(where or ".", "no other field", f"the field {shorten(key)}")
    elif isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            raise _differs(where, f"{len(expected)} entries", f"{len(found)} entries")
        for index, (left, right) in enumerate(zip(expected, found, strict=True)):
            _compare(left, right, f"{where}[{index}]")
    elif type(expected) is not type(found) or expected != found:
        raise _differs(where or ".", _show(expected), _show(found))


def _differs(where: str, expected: str, found: str) -> EvidenceError:
    return EvidenceError(
        f"the statement is not about this receipt: {where.removeprefix('.') or 'statement'}",
        expected=expected,
        found=found,
        hint="do not mix files of two sets; an edited receipt or statement does not verify",
    )


def _show(value: JSONValue) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return jcs(value)[:_SHOWN].decode("utf-8", errors="replace")
