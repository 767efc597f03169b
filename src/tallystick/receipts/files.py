"""Verification of sets on disk: the IO around :mod:`tallystick.receipts.verify`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.attest.auditkeys import read_audit_key, read_bundle_key, write_bundle_key
from tallystick.attest.bundlekeys import AuditKey, BundleKey
from tallystick.attest.keyfiles import read_public_key
from tallystick.attest.trust import MAX_POLICY_BYTES, TrustPolicy
from tallystick.contracts.bundle import decode_public
from tallystick.contracts.commitments import local_network_id
from tallystick.contracts.layout import BUNDLE, COMPUTE_RECEIPT, PUBLIC_JSON, STATE, split_name
from tallystick.contracts.request import InferenceRun
from tallystick.errors import (
    EvidenceError,
    InputError,
    NothingToVerifyError,
    NoTrustError,
    UnavailableError,
    UsageError,
)
from tallystick.receipts.compute_case import BUNDLE_WITHHELD
from tallystick.receipts.documents import opened_request
from tallystick.receipts.report import Restoration, Status, VerificationReport
from tallystick.receipts.sealing import bundle_id, bundle_key_of, open_with, parse
from tallystick.receipts.steps_match import Parties
from tallystick.receipts.verify import VerifyContext, failed_report, verify_with
from tallystick.store.files import read_given, real_directory
from tallystick.store.sets import (
    SetLocation,
    find_sets,
    load_set,
    read_set,
    require_kept_private,
)
from tallystick.store.state.entry import entry_of
from tallystick.store.state.restore import restore_accepted

if TYPE_CHECKING:
    from tallystick.bundles.check import CheckedBundle
    from tallystick.bundles.match import Materialised


@dataclass(frozen=True, slots=True)
class PathOutcome:
    """What became of one set, or of one path without a readable set.

    Exactly one of ``report`` and ``problem`` is present: a problem (nothing recognisable, an
    incomplete set, no key to verify with, a state store in use) is no verdict about evidence.
    """

    path: Path
    report: VerificationReport | None
    problem: InputError | UnavailableError | None


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

        A set that does not hold (1) weighs more than a path that could not be judged: 4, or 6 when
        that was only for now.
        """
        if any(item.report and not item.report.verified for item in self.outcomes):
            return EvidenceError.exit_code
        problems = [item.problem.exit_code for item in self.outcomes if item.problem]
        if not self.verified:
            problems.append(NothingToVerifyError.exit_code)
        return problems[0] if problems else 0


@dataclass(frozen=True, slots=True)
class Checks:
    """How to verify: the fields of :class:`tallystick.receipts.verify.VerifyContext` but the time.

    ``now`` (aware) None is the current time, and then the compute receipt's window is held against
    the epoch at which its worker verified it; a time that is given holds for the window too.
    ``bundle`` and ``declared`` are held against what each receipt says was executed.
    """

    trust: TrustPolicy | None
    key: AuditKey | BundleKey | None = None
    now: datetime | None = None
    network_id: bytes = field(default_factory=local_network_id)
    bundle: CheckedBundle | None = None
    declared: InferenceRun | None = field(default=None, repr=False)

    def context(self) -> VerifyContext:
        """Return what the verifier takes."""
        return VerifyContext(
            trust=self.trust,
            now=self.now or datetime.now(UTC),
            key=self.key,
            window="bundle" if self.now is None else "now",
            network_id=self.network_id,
            parties=Parties(self.declared, self._materialised()),
        )

    def _materialised(self) -> Materialised | None:
        if self.bundle is None:
            return None
        # Who compares no bundle needs nothing of what reads one.
        from tallystick.bundles.materialise import of_bundle

        return of_bundle(self.bundle)

    def context_for(self, files: Mapping[str, bytes], context: VerifyContext) -> VerifyContext:
        """Return ``context`` with the prompt that the bundle gives for the set in ``files``.

        Which one that is, the private half says; while it is locked there is no prompt to compare.
        """
        parties = context.parties
        if self.bundle is None or parties.materialised is None:
            return context
        run = opened_request(files, self.key)
        if run is None:
            return context
        from tallystick.bundles.materialise import prompt_for

        try:
            prompt = prompt_for(self.bundle, run)
        except InputError:  # it gives none for such a run: step 12 will say that they differ
            return context
        found = replace(parties.materialised, prompt=prompt)
        return replace(context, parties=replace(parties, materialised=found))


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """The four files of one set by name, as a caller spells them out."""

    receipt: Path
    bundle: Path
    public_json: Path
    state_db: Path


def verify_paths(
    paths: Sequence[Path],
    trust: TrustPolicy | None,
    *,
    now: datetime | None = None,
    key: AuditKey | BundleKey | None = None,
) -> VerificationRun:
    """Verify every set at ``paths`` as :func:`verify_all` does, with the common choices."""
    return verify_all(paths, Checks(trust, key, now))


def verify_all(paths: Sequence[Path], checks: Checks) -> VerificationRun:
    """Verify every set at ``paths``: directories, or a file ``<id>...`` of a set.

    Where a key opens the bundle and the state store is there, the store's row is compared too.
    Raises UsageError without paths, and NoTrustError without trust and key; everything else is an
    outcome.
    """
    if not paths:
        raise UsageError("nothing to verify was named", expected="at least one path")
    return VerificationRun(
        tuple(outcome for path in paths for outcome in _verify_path(path, checks))
    )


def verify_named(files: NamedFiles, checks: Checks) -> VerificationRun:
    """Verify the one set whose files are named one by one; all of them have to be there.

    Besides what :func:`verify_all` does, the directory and every file must be the holder's own,
    with exact modes. Raises UsageError when the names are not those of one set in one directory.
    """
    location = _location(files)
    try:
        require_kept_private(location)
        outcome = _verify_location(files.receipt, location, checks, whole=True)
    except EvidenceError as error:
        outcome = PathOutcome(files.receipt, failed_report(location.set_id, error), None)
    except (NothingToVerifyError, UnavailableError) as problem:
        outcome = PathOutcome(files.receipt, None, problem)
    return VerificationRun((outcome,))


def _location(files: NamedFiles) -> SetLocation:
    parts = split_name(files.receipt.name)
    if parts is None or parts[1] != COMPUTE_RECEIPT.suffix:
        raise UsageError(
            "--receipt names no compute receipt",
            expected=f"<id>{COMPUTE_RECEIPT.suffix}",
            found=ascii(files.receipt.name[:80]),
        )
    set_id, directory = parts[0], files.receipt.parent
    place = real_directory(directory)
    for option, path, kind in (
        ("--bundle", files.bundle, BUNDLE),
        ("--public-json", files.public_json, PUBLIC_JSON),
        ("--state-db", files.state_db, STATE),
    ):
        if path.name != kind.name(set_id) or real_directory(path.parent) != place:
            raise UsageError(
                f"{option} is not the file of this set",
                expected=os.fspath(directory / kind.name(set_id)),
                found=os.fspath(path),
            )
    return SetLocation(directory, set_id)


def _verify_path(path: Path, checks: Checks) -> Iterator[PathOutcome]:
    try:
        locations = find_sets(path)
    except NothingToVerifyError as problem:
        yield PathOutcome(path, None, problem)
        return
    for location in locations:
        yield _verify_location(path, location, checks)


def _verify_location(
    path: Path, location: SetLocation, checks: Checks, *, whole: bool = False
) -> PathOutcome:
    context = checks.context()
    try:
        loaded = load_set(location)
        if whole and loaded.withheld:
            raise NothingToVerifyError(
                f"{loaded.withheld[0]} cannot be read: the set is incomplete"
            )
        untrusted = _without_any_key(loaded.files, location, context)
        if untrusted is not None:
            return PathOutcome(path, None, untrusted)
        report = verify_with(loaded.files, checks.context_for(loaded.files, context))
        return PathOutcome(path, _restored(report, loaded.files, context), None)
    except EvidenceError as error:
        return PathOutcome(path, failed_report(location.set_id, error), None)
    except (NothingToVerifyError, UnavailableError) as problem:
        return PathOutcome(path, None, problem)


def _without_any_key(
    files: Mapping[str, bytes], location: SetLocation, context: VerifyContext
) -> NoTrustError | None:
    """Return the problem where only the bundle could name a signer's key, and it is withheld.

    That says nothing about the set: without a key a signature is neither good nor bad.
    """
    named = context.trust is not None or BUNDLE.name(location.set_id) in files
    if named or context.key is None:
        return None
    return NoTrustError(
        "no trust was given, and the bundle that would name a key is withheld",
        expected="--key FILE or --trust-policy FILE, or the set's bundle",
        hint="the bundle's key opens nothing here: give the signer's public key with --key",
    )


def _restored(
    report: VerificationReport, files: Mapping[str, bytes], context: VerifyContext
) -> VerificationReport:
    """Compare the state store's row with what was verified, where both can be seen."""
    state = files.get(STATE.name(report.set_id))
    bundle = files.get(BUNDLE.name(report.set_id))
    if not report.verified:
        return report
    if context.key is None or state is None or bundle is None:
        return replace(report, restoration=_not_compared(context.key, state, bundle))
    entry = entry_of(
        files[COMPUTE_RECEIPT.name(report.set_id)],
        bundle_id=bundle_id(bundle),
        verification_epoch=decode_public(parse(bundle).public).verification_epoch,
    )
    try:
        restore_accepted(state, entry)
    except EvidenceError as error:
        failed = Restoration(Status.FAILED, error.message, error.expected, error.found, error.hint)
        return replace(report, restoration=failed, proves=(), does_not_prove=())
    words = "the state store holds this receipt, value by value"
    return replace(report, restoration=Restoration(Status.PASSED, words))


def _not_compared(
    key: AuditKey | BundleKey | None, state: bytes | None, bundle: bytes | None
) -> Restoration:
    """Say which of what the comparison needs is missing."""
    needed = (
        (state, "the state store is not here"),
        (bundle, BUNDLE_WITHHELD),
        (key, "no key for the bundle was given"),
    )
    missing = [words for thing, words in needed if thing is None]
    return Restoration(Status.NOT_CHECKED, "; ".join(missing))


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
            expected="--key FILE or --trust-policy FILE, or the key of the bundle",
            hint="`tallystick keys show` names the public key file of your own key; your own audit"
            " key is keys/audit.key in the data folder",
        )
    return TrustPolicy.for_keys([read_public_key(key) for key in keys])


def set_directory(path: Path) -> Path:
    """Return the directory of the sets at ``path``: itself, or where the named file lies."""
    return path if os.path.isdir(path) else path.parent


def load_bundle_key(
    audit: Path | None, bundle: Path | None, outside: Sequence[Path] = ()
) -> AuditKey | BundleKey | None:
    """Return the key that the user named to open bundles, None for none.

    Raises UsageError for both kinds, InputError for a file that is no such key or lies in one of
    the directories ``outside``.
    """
    if audit is not None and bundle is not None:
        raise UsageError("give an audit key or a bundle key, not both")
    if audit is not None:
        return read_audit_key(audit, outside)
    return None if bundle is None else read_bundle_key(bundle, outside)


def hand_out_bundle_key(path: Path, key: AuditKey, output: Path) -> SetLocation:
    """Write the key of the one bundle at ``path`` to the new file ``output`` (0600), elsewhere.

    Who gets it can open this bundle and no other; he could also seal another private half under
    the same header (docs/spec/bundle.md). Returns which set it opens. Raises EvidenceError when
    ``key`` does not open the bundle, NothingToVerifyError without one, InputError when ``output``
    exists or lies in the set's directory, UnavailableError when it cannot be written.
    """
    loaded = read_set(path)
    data = loaded.files.get(BUNDLE.name(loaded.location.set_id))
    if data is None:
        raise NothingToVerifyError(
            "the set's bundle is not here, so there is no key to hand out",
            expected=f"a readable {BUNDLE.name(loaded.location.set_id)}",
        )
    envelope = parse(data)
    open_with(envelope, key)
    write_bundle_key(output, bundle_key_of(envelope, key), loaded.location.directory)
    return loaded.location


def _read_policy(path: Path) -> bytes:
    return read_given(path, max_bytes=MAX_POLICY_BYTES, what="the trust policy")
