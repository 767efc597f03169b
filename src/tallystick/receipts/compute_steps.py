"""Steps 1 to 4 about the compute receipt, and the list of all of them (docs/spec/verification.md).

Each step returns in words what it saw, raises EvidenceError that names the field, or says that it
could not run and why. They run in the order of their numbers; the first failure is the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tallystick.attest.keys import PublicKey
from tallystick.contracts.bundle import receipt_binding
from tallystick.contracts.compute_receipt import (
    check_structure,
    encode,
    receipt_id,
    signing_digest,
)
from tallystick.errors import EvidenceError
from tallystick.receipts.compute_case import (
    BUNDLE_WITHHELD,
    PRIVATE_LOCKED,
    ComputeCase,
    ComputeStep,
    NotChecked,
    StepOutcome,
    papers_of,
)
from tallystick.receipts.compute_steps_core import check_core, check_palw_openings
from tallystick.receipts.compute_steps_evidence import (
    check_schedule_and_units,
    check_trace_and_roots,
)
from tallystick.receipts.compute_steps_manifest import (
    check_identities,
    check_manifest,
    check_ruleset,
    check_scheme_and_nullifiers,
)
from tallystick.receipts.papers import (
    check_assignment,
    check_worker,
    public_key,
    require_same,
)

_NAME_THE_SIGNER: Final = (
    "give the signer's public key with --key, or a trust policy that has it, if you trust it"
)


def check_binding(case: ComputeCase) -> StepOutcome:
    """1 structure: the receipt's fields among themselves, and the bundle's tie to its bytes."""
    documents, public = case.documents, case.documents.public
    check_structure(case.body)
    require_same("the bytes of the compute receipt", documents.palw, encode(documents.receipt))
    if public is None:
        return NotChecked(BUNDLE_WITHHELD)
    require_same("bundle.receipt_binding", receipt_binding(documents.palw), public.receipt_binding)
    require_same("bundle.receipt_id", receipt_id(case.body), public.receipt_id)
    return f"compute receipt id {receipt_id(case.body).hex()[:16]} and its bundle"


def check_window(case: ComputeCase) -> StepOutcome:
    """2 network and epoch window."""
    body, public, now = case.body, case.documents.public, case.context.now_epoch
    require_same("compute receipt: network_id", case.context.network_id, body.network_id)
    if public is not None:
        # Nothing signs this number, so it may only repeat one that is signed.
        require_same("bundle.verification_epoch", body.issued_epoch, public.verification_epoch)
    if now is not None:
        epoch, at = now, "now"
    elif public is not None:
        epoch, at = public.verification_epoch, "at the bundle's verification epoch"
    else:
        return NotChecked(f"{BUNDLE_WITHHELD}, and with it the epoch of verification")
    if not body.issued_epoch <= epoch < body.expires_epoch:
        raise EvidenceError(
            f"the compute receipt does not hold {at}",
            expected=f"from epoch {body.issued_epoch}, before epoch {body.expires_epoch}",
            found=f"epoch {epoch}",
        )
    return f"epoch {epoch} is within {body.issued_epoch}..{body.expires_epoch - 1}, {at}"


def check_assigned(case: ComputeCase) -> StepOutcome:
    """3 assignment binding and policy."""
    public, private = case.documents.public, case.documents.private
    if public is None:
        return NotChecked(BUNDLE_WITHHELD)
    public_key(public.scheduler_key, "scheduler's key")
    if private is None:
        return NotChecked(PRIVATE_LOCKED)
    run = case.opening(private).request
    check_assignment(case.body, papers_of(public, private), run)
    body = case.body
    return (
        f"{body.job_class.name.lower()}, slot {body.replica_slot}, evidence level "
        f"{body.evidence_level.name.lower()}, signed by the scheduler"
    )


def check_signer(case: ComputeCase) -> StepOutcome:
    """4 signer, owner and worker: strict Ed25519 over the salted body."""
    public, private = case.documents.public, case.documents.private
    trusted = case.context.worker_keys
    signature, message = case.documents.receipt.signature, signing_digest(case.body)
    if public is None or private is None:
        return _check_trusted_signer(case, signature, message)
    worker = check_worker(case.body, papers_of(public, private))
    if trusted and worker not in trusted:
        raise EvidenceError(
            "the worker's key is not one of the trusted keys",
            expected=f"one of {len(trusted)} keys",
            found=worker.key_id,
            hint=_NAME_THE_SIGNER,
        )
    try:
        worker.verify(signature, message)
    except EvidenceError as error:
        raise EvidenceError.of(error, "compute receipt: the signature does not hold") from None
    _check_worker_id(case, worker)
    return f"signed by {worker.key_id}; its credential opens to an owner"


def _check_worker_id(case: ComputeCase, signer: PublicKey) -> None:
    """The receipt names the worker by the key that signed: replicas are told apart by it."""
    require_same("observed.worker_id", signer.key_id, case.documents.observed.worker_id)


def _check_trusted_signer(case: ComputeCase, signature: bytes, message: bytes) -> StepOutcome:
    """Without the private part the credential is unknown: only trusted keys can have signed."""
    withheld = BUNDLE_WITHHELD if case.documents.public is None else PRIVATE_LOCKED
    if not case.context.worker_keys:
        return NotChecked(f"{withheld}, and no trusted key was given")
    for key in case.context.worker_keys:
        try:
            key.verify(signature, message)
        except EvidenceError:
            continue
        _check_worker_id(case, key)
        return f"signed by {key.key_id}; owner and credential not opened: {withheld}"
    raise _not_signed_by_trusted(case)


def _not_signed_by_trusted(case: ComputeCase) -> EvidenceError:
    """Tell a signer that nobody trusts from a signature that a trusted one did not make.

    The receipt names its signer by a key id, which is a digest: without the key itself nobody can
    say whether its signature is good, so the name is shown as the receipt's own word.
    """
    trusted, named = case.context.worker_keys, case.documents.observed.worker_id
    expected = f"a signature by one of {len(trusted)} trusted keys"
    if named in {key.key_id for key in trusted}:
        return EvidenceError("compute receipt: the signature does not hold", expected=expected)
    return EvidenceError(
        "compute receipt: the signer is not one of the trusted keys",
        expected=expected,
        found=f"the receipt names {named}, whose key is not here",
        hint=_NAME_THE_SIGNER,
    )


#: All steps about the compute receipt by number; 11 has a geoai half of its own.
COMPUTE_STEPS: Final[Mapping[int, ComputeStep]] = MappingProxyType(
    {
        1: check_binding,
        2: check_window,
        3: check_assigned,
        4: check_signer,
        5: check_manifest,
        6: check_identities,
        7: check_ruleset,
        8: check_scheme_and_nullifiers,
        9: check_schedule_and_units,
        10: check_trace_and_roots,
        11: check_palw_openings,
        13: check_core,
    }
)


def require_all(case: ComputeCase) -> tuple[str, ...]:
    """Run every step over a set that is about to be sealed, and return their words.

    Raises EvidenceError of the first step that fails, and for a step that could not run: nothing
    is sealed that its own worker cannot verify.
    """
    words = []
    for number, step in COMPUTE_STEPS.items():
        outcome = step(case)
        if isinstance(outcome, NotChecked):
            raise EvidenceError(
                f"step {number} of the worker's own verification did not run", found=outcome.reason
            )
        words.append(outcome)
    return tuple(words)
