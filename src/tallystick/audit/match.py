"""Do two receipts come from two workers that computed one job and agree? (docs/spec/match.md)

Only public files are needed. The rules are held in order, and the first that does not hold is the
verdict. Equal cores alone do not exclude that one worker copied the other's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tallystick.attest.bundlekeys import AuditKey, BundleKey
from tallystick.audit.diff import diff_summaries
from tallystick.contracts.compute_receipt import ComputeReceipt
from tallystick.contracts.layout import RECEIPT
from tallystick.contracts.receipt import Receipt
from tallystick.errors import EvidenceError, NoTrustError
from tallystick.receipts.documents import find_id, read_documents
from tallystick.receipts.inspect import ReceiptSummary, inspect_receipt
from tallystick.receipts.report import Status
from tallystick.receipts.verify import VerifyContext, verify_with

SIDES: Final = ("A", "B")
# What two honest workers of one job must have in common beyond the core.
_EQUAL: Final = (
    "model_profile_id",
    "shape_profile_id",
    "cu_ruleset_id",
    "trace_scheme_id",
    "trace_evidence",
    "operation_schedule_commitment",
    "schedule_event_count",
    "canonical_compute_units",
    "prefill_tokens",
    "decode_tokens",
    "gemm_trace_root",
    "trace_event_count",
    "job_class",
    "evidence_level",
)


@dataclass(frozen=True, slots=True)
class Replica:
    """One side: a verified set's receipt and compute receipt.

    ``unchecked`` are the steps of its verification that its bundle's key was missing for.
    """

    summary: ReceiptSummary
    compute: ComputeReceipt
    unchecked: tuple[int, ...] = ()

    @property
    def receipt(self) -> Receipt:
        """The receipt document."""
        return self.summary.receipt


@dataclass(frozen=True, slots=True)
class MatchRule:
    """One rule, whether it holds, and the two values where it does not."""

    name: str
    holds: bool
    left: str = ""
    right: str = ""


@dataclass(frozen=True, slots=True)
class MatchReport:
    """The rules up to the first that does not hold, and what a match leaves open."""

    left: str
    right: str
    rules: tuple[MatchRule, ...]
    notes: tuple[str, ...]

    @property
    def failure(self) -> MatchRule | None:
        """The first rule that does not hold."""
        return next((rule for rule in self.rules if not rule.holds), None)

    @property
    def matched(self) -> bool:
        """True when every rule holds."""
        return self.failure is None

    @property
    def exit_code(self) -> int:
        """0 for a match, else 1."""
        return 0 if self.matched else EvidenceError.exit_code


def match_sets(
    left: Mapping[str, bytes],
    right: Mapping[str, bytes],
    context: VerifyContext,
    *,
    keys: tuple[AuditKey | BundleKey | None, AuditKey | BundleKey | None] = (None, None),
) -> MatchReport:
    """Hold the replica rule against two sets of files by name, each verified in ``context``.

    ``keys`` open the bundles of the two sides; the steps that need a missing one are in the notes.

    Raises EvidenceError naming the side whose set does not verify (as one of another network than
    the context's), NothingToVerifyError and NoTrustError as `verify_with` does.
    """
    if context.trust is None:
        raise NoTrustError("two workers match only by keys that somebody named")
    contexts = (context if key is None else replace(context, key=key) for key in keys)
    return match_replicas(*map(_replica, SIDES, (left, right), contexts))


def _replica(name: str, files: Mapping[str, bytes], context: VerifyContext) -> Replica:
    report = verify_with(files, context)
    try:
        report.require()
    except EvidenceError as error:
        raise EvidenceError.of(error, f"{name} does not verify: {error.message}") from None
    documents = read_documents(files, find_id(files))
    summary = inspect_receipt(files[RECEIPT.name(documents.set_id)])
    left = (step.number for step in report.steps if step.status is Status.NOT_CHECKED)
    return Replica(summary, documents.compute.body, tuple(left))


def match_replicas(left: Replica, right: Replica) -> MatchReport:
    """Hold the rules against two verified sides."""
    rules: list[MatchRule] = []
    for rule in RULES:
        rules.append(rule(left, right))
        if not rules[-1].holds:
            break
    return MatchReport(
        left=left.summary.receipt_digest,
        right=right.summary.receipt_digest,
        rules=tuple(rules),
        notes=_notes(left, right) if rules[-1].holds else (),
    )


def _notes(left: Replica, right: Replica) -> tuple[str, ...]:
    bound = tuple(side.receipt.observed.worker_state_root for side in (left, right))
    lines = ["Equal cores alone do not exclude that one worker copied the other's."]
    if None in bound:
        lines.append(
            "No worker_state_root on both sides, so a copy cannot be told from a computation."
        )
    else:
        lines.append(
            "Each side bound its states to its own credential (worker_state_root):"
            " `replay` of both recomputes them, and finds a copy."
        )
    for name, side in zip(SIDES, (left, right), strict=True):
        if side.unchecked:
            numbers = ", ".join(map(str, side.unchecked))
            lines.append(f"Not checked of {name}, without the key of its bundle: steps {numbers}.")
    return tuple(lines)


Rule = Callable[[Replica, Replica], MatchRule]


def _same(name: str, get: Callable[[Replica], object]) -> Rule:
    def rule(left: Replica, right: Replica) -> MatchRule:
        mine, theirs = _text(get(left)), _text(get(right))
        return MatchRule(f"same {name}", mine == theirs, mine, theirs)

    return rule


def _different(name: str, get: Callable[[Replica], object]) -> Rule:
    def rule(left: Replica, right: Replica) -> MatchRule:
        mine, theirs = _text(get(left)), _text(get(right))
        return MatchRule(f"different {name}", mine != theirs, mine, theirs)

    return rule


def _window(left: Replica, right: Replica) -> MatchRule:
    mine, theirs = left.compute, right.compute
    overlap = max(mine.issued_epoch, theirs.issued_epoch) < min(
        mine.expires_epoch, theirs.expires_epoch
    )
    return MatchRule(
        "windows that overlap",
        overlap,
        f"epoch {mine.issued_epoch} to {mine.expires_epoch}",
        f"epoch {theirs.issued_epoch} to {theirs.expires_epoch}",
    )


def _own_roots(left: Replica, right: Replica) -> MatchRule:
    """A root that is bound to one credential cannot be another's: who has the same copied it."""
    mine = left.receipt.observed.worker_state_root
    theirs = right.receipt.observed.worker_state_root
    return MatchRule(
        "different worker state root", mine is None or mine != theirs, _text(mine), _text(theirs)
    )


def _cores(left: Replica, right: Replica) -> MatchRule:
    if left.summary.core_digest == right.summary.core_digest:
        return MatchRule("same core", True)
    first = diff_summaries(left.summary, right.summary).first
    assert first is not None
    return MatchRule(f"same core: {first.field} differs", False, first.left, first.right)


def _evidence(left: Replica, right: Replica) -> MatchRule:
    for name in _EQUAL:
        mine, theirs = _text(getattr(left.compute, name)), _text(getattr(right.compute, name))
        if mine != theirs:
            return MatchRule(f"same evidence: {name} differs", False, mine, theirs)
    return MatchRule("same evidence", True)


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


RULES: Final[tuple[Rule, ...]] = (
    _same("network", lambda side: side.compute.network_id),
    _window,
    _same("job nullifier", lambda side: side.compute.job_nullifier),
    _different("replica slot", lambda side: side.compute.replica_slot),
    _different("worker credential", lambda side: side.compute.worker_credential_id),
    _different("execution nullifier", lambda side: side.compute.execution_nullifier),
    # A credential costs nothing to make: one key with two of them is one worker.
    _different("worker key", lambda side: side.receipt.observed.worker_id),
    _own_roots,
    _cores,
    _evidence,
)
