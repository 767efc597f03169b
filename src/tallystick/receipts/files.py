"""Verification of sets on disk: the IO around :mod:`tallystick.receipts.verify`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tallystick.attest.keyfiles import read_public_key
from tallystick.attest.trust import MAX_POLICY_BYTES, TrustPolicy
from tallystick.errors import (
    EvidenceError,
    InputError,
    NothingToVerifyError,
    NoTrustError,
    UsageError,
)
from tallystick.receipts.report import VerificationReport
from tallystick.receipts.verify import failed_report, verify_set
from tallystick.store.sets import SetLocation, find_sets, load_set


@dataclass(frozen=True, slots=True)
class PathOutcome:
    """What became of one set, or of one path without a readable set.

    Exactly one of ``report`` and ``problem`` is present: a problem (nothing recognisable, an
    incomplete set) is no verdict about evidence.
    """

    path: Path
    report: VerificationReport | None
    problem: InputError | None


@dataclass(frozen=True, slots=True)
class VerificationRun:
    """The outcomes of all sets found, in the order of the paths."""

    outcomes: tuple[PathOutcome, ...]

    @property
    def verified(self) -> int:
        """Number of sets that hold."""
        return sum(bool(item.report and item.report.verified) for item in self.outcomes)

    @property
    def exit_code(self) -> int:
        """0 only when at least one set was found and every one holds.

        A set that does not hold (1) weighs more than a path that could not be judged (4).
        """
        if any(item.report and not item.report.verified for item in self.outcomes):
            return EvidenceError.exit_code
        if not self.verified or any(item.problem for item in self.outcomes):
            return NothingToVerifyError.exit_code
        return 0


def verify_paths(
    paths: Sequence[Path], trust: TrustPolicy, *, now: datetime | None = None
) -> VerificationRun:
    """Verify every set at ``paths``: directories, ``<id>.geoai.json`` or ``<id>.complete`` files.

    ``now`` (aware) defaults to the current time. Raises UsageError without paths, and NoTrustError
    when ``trust`` cannot accept any execution link; everything else is an outcome.
    """
    if not paths:
        raise UsageError("nothing to verify was named", expected="at least one path")
    moment = datetime.now(UTC) if now is None else now
    return VerificationRun(
        tuple(outcome for path in paths for outcome in _verify_path(path, trust, moment))
    )


def _verify_path(path: Path, trust: TrustPolicy, now: datetime) -> Iterator[PathOutcome]:
    try:
        locations = find_sets(path)
    except NothingToVerifyError as problem:
        yield PathOutcome(path, None, problem)
        return
    for location in locations:
        yield _verify_location(path, location, trust, now)


def _verify_location(
    path: Path, location: SetLocation, trust: TrustPolicy, now: datetime
) -> PathOutcome:
    try:
        return PathOutcome(path, verify_set(load_set(location).files, trust, now=now), None)
    except EvidenceError as error:
        return PathOutcome(path, failed_report(location.set_id, error), None)
    except NothingToVerifyError as problem:
        return PathOutcome(path, None, problem)


def load_trust(keys: Sequence[Path], policy: Path | None) -> TrustPolicy:
    """Return the trust that the user named: public key files, or one policy file.

    Raises NoTrustError for neither (there is no default trust), UsageError for both, InputError for
    a file that cannot be read or is malformed.
    """
    if keys and policy is not None:
        raise UsageError("give public keys or a trust policy, not both")
    if policy is not None:
        return TrustPolicy.parse(_read_policy(policy))
    if not keys:
        raise NoTrustError(
            "no trust was given, and there is no default",
            expected="--key FILE or --trust-policy FILE",
            hint="`tallystick keys show` names the public key file of your own key",
        )
    return TrustPolicy.for_keys([read_public_key(key) for key in keys])


def _read_policy(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_POLICY_BYTES + 1)
    except OSError as error:
        raise InputError(
            "the trust policy cannot be read", found=f"{path}: {error.strerror}"
        ) from error
