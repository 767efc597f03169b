"""What a verification found: numbered steps, links, and the verdict (docs/spec/verification.md)."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Final

from tallystick.canonical.json import JSONValue
from tallystick.errors import EvidenceError

STEP_NAMES: Final = (
    "structure and bounds",
    "network and epoch window",
    "assignment binding and policy",
    "signer, owner and worker of the compute receipt",
    "manifest",
    "profile, class, manifest and shape ids",
    "ruleset binding",
    "trace scheme and nullifiers",
    "schedule, counts and compute units",
    "GEMM trace and state roots",
    "openings",
    "attestations and trust",
    "compute receipt against the core",
)
EARLIER_FAILURE: Final = "an earlier step failed"


class Status(StrEnum):
    """The result of one step. ``not checked`` is never a pass."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_CHECKED = "not_checked"


class TrustScope(StrEnum):
    """Whose word the verdict rests on.

    ``embedded_local_snapshot``: the key came out of the bundle itself, so the set is shown to be
    the one that its holder sealed, and nothing is said about who that is.
    """

    GIVEN = "given_keys"
    EMBEDDED = "embedded_local_snapshot"


@dataclass(frozen=True, slots=True)
class Step:
    """One numbered step. ``detail`` says what was seen, why not checked, or what failed.

    A failed one has the rest of its error: ``expected``, ``found``, and what to do (``hint``).
    """

    number: int
    status: Status
    detail: str
    expected: str | None = None
    found: str | None = None
    hint: str | None = None

    @property
    def name(self) -> str:
        """What the step is about."""
        return STEP_NAMES[self.number - 1]


@dataclass(frozen=True, slots=True)
class Link:
    """One of the three attestations of a receipt: source, execution, acceptance."""

    name: str
    status: str
    signers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Restoration:
    """Whether the state store beside the set holds the very receipt that was verified."""

    status: Status
    detail: str
    expected: str | None = None
    found: str | None = None
    hint: str | None = None


NOT_RESTORED: Final = Restoration(Status.NOT_CHECKED, "no state store, or no key for the bundle")


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """The verdict on one set, with the evidence for it.

    ``links`` names all three attestations, missing ones as ``missing``. ``egress`` says what is
    known about the network, in words. ``match`` names which of declared, materialised and executed
    were compared, and agreed. ``trust_scope`` is None for a set that does not hold.
    """

    set_id: str
    steps: tuple[Step, ...]
    receipt_digest: str | None = None
    core_digest: str | None = None
    links: tuple[Link, ...] = ()
    egress: str = ""
    match: tuple[str, ...] = ()
    trust_scope: TrustScope | None = None
    restoration: Restoration = NOT_RESTORED
    proves: tuple[str, ...] = ()
    does_not_prove: tuple[str, ...] = ()

    @property
    def failure(self) -> Step | None:
        """The first failed step: the verdict's reason."""
        return next((step for step in self.steps if step.status is Status.FAILED), None)

    @property
    def verified(self) -> bool:
        """True when nothing failed and the signed claim was checked (step 12)."""
        sound = self.failure is None and self.restoration.status is not Status.FAILED
        return sound and any(
            step.number == 12 and step.status is Status.PASSED for step in self.steps
        )

    @property
    def status(self) -> str:
        """``local_restored``, ``verified``, or ``failed``: the verdict in a word."""
        if not self.verified:
            return "failed"
        return "local_restored" if self.restoration.status is Status.PASSED else "verified"

    @property
    def exit_code(self) -> int:
        """0 when the set holds, 1 when it does not."""
        return 0 if self.verified else EvidenceError.exit_code

    def require(self) -> None:
        """Raise EvidenceError that names the failed step, unless the set is verified."""
        step = self.failure
        if step is not None:
            raise EvidenceError(
                f"step {step.number} ({step.name}) failed: {step.detail}",
                expected=step.expected,
                found=step.found,
                hint=step.hint,
            )
        if self.restoration.status is Status.FAILED:
            raise EvidenceError(
                f"the state store does not agree: {self.restoration.detail}",
                expected=self.restoration.expected,
                found=self.restoration.found,
                hint=self.restoration.hint,
            )
        if not self.verified:
            raise EvidenceError("step 12 (attestations and trust) was not checked")

    def require_complete(self) -> None:
        """Raise EvidenceError unless every step was checked, as all files and keys allow."""
        for step in self.steps:
            if step.status is not Status.PASSED:
                raise EvidenceError(
                    f"step {step.number} ({step.name}) was not checked", found=step.detail
                )


def as_document(value: object) -> JSONValue:
    """Return a result object (dataclasses, tuples, texts, integers) as a JSON value.

    Integers beyond 2^53-1 do not occur in results. Raises TypeError for any other type.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: as_document(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, tuple):
        return [as_document(item) for item in value]
    if isinstance(value, StrEnum):
        return str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"{type(value).__name__} is no part of a result")
