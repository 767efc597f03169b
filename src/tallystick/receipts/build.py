"""From what a run left behind to a signed set of files (docs/spec/receipt.md). Pure.

The builder decides nothing: it binds what it is given, and then runs the verifier over its own
output. What does not verify is never handed out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

from tallystick.attest import dsse
from tallystick.attest.bundlekeys import AuditKey
from tallystick.attest.keys import SigningKey
from tallystick.attest.statements import execution_statement
from tallystick.attest.trust import TrustPolicy
from tallystick.bundles.match import (
    DECLARED,
    MATERIALISED,
    Materialised,
    declared_by,
    require_match,
    require_prompt,
)
from tallystick.canonical.hashing import format_digest, sha256
from tallystick.compute.manifest import verify_manifest
from tallystick.contracts import digests
from tallystick.contracts.bundle import (
    BundlePrivate,
    BundlePublic,
    encode_private,
    encode_public,
    receipt_binding,
)
from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.compute_receipt import SignedReceipt, encode
from tallystick.contracts.compute_receipt import receipt_id as compute_receipt_id
from tallystick.contracts.egress import EgressReport
from tallystick.contracts.generation import Generation
from tallystick.contracts.layout import (
    BUNDLE,
    COMPUTE_RECEIPT,
    ENVELOPES,
    EXEC,
    MARKER,
    MEMBERS,
    PUBLIC_JSON,
    RECEIPT,
    STATE,
    TELEMETRY,
    MemberKind,
)
from tallystick.contracts.manifest import RuntimeManifest
from tallystick.contracts.opening import SET_SCHEMA, Opening, ReceiptSet, SetMember
from tallystick.contracts.receipt import Core, Observed, Receipt
from tallystick.contracts.request import PRODUCER, InferenceRun
from tallystick.contracts.runtime import EngineBuild, RuntimeClass
from tallystick.errors import EvidenceError, RunFailedError, TallystickError
from tallystick.evidence.portable import PortableEvidence
from tallystick.evidence.portable_parts import GatheredEvidence, RunNumbers, make_portable
from tallystick.receipts.build_parts import (
    Enforced,
    SupervisorFacts,
    core_of,
    enforced_by,
    exec_envelope_of,
    gathered_of,
    observed_of,
    opening_of,
    require_open_windows,
)
from tallystick.receipts.compute import (
    ComputeInputs,
    build_compute_receipt,
    bundle_parts,
    papers_nullifier,
)
from tallystick.receipts.compute_case import ComputeCase, ComputeContext, ComputeDocuments
from tallystick.receipts.compute_steps import require_all
from tallystick.receipts.papers import JobPapers
from tallystick.receipts.public_json import PublicNames, public_receipt
from tallystick.receipts.report import VerificationReport
from tallystick.receipts.sealing import bundle_id, seal
from tallystick.receipts.verify import VerifyContext, verify_with
from tallystick.store.artifacts import Member
from tallystick.store.state.entry import StateEntry, entry_of

#: Takes an accepted receipt into a state store and returns the store's bytes.
RecordState = Callable[[StateEntry], bytes]


@dataclass(frozen=True, slots=True, repr=False)
class Sealing:
    """The audit key of a bundle, and the fresh random bytes that its parts need.

    ``salt`` and both nonces of commitments have 32 bytes, ``nonce`` has 24.
    """

    key: AuditKey
    salt: bytes
    nonce: bytes
    prompt_nonce: bytes
    output_nonce: bytes

    def __repr__(self) -> str:
        return "<Sealing>"


@dataclass(frozen=True, slots=True)
class SetInputs:
    """Everything that one set is made of. ``telemetry`` is the whole telemetry file.

    ``materialised`` is what was on disk: of the bundle, or without one the model alone.
    ``audit`` is the report on the sandbox that held the child, None without one.
    """

    run: InferenceRun = field(repr=False)
    generation: Generation = field(repr=False)
    runtime_class: RuntimeClass
    engine: EngineBuild
    manifest: RuntimeManifest
    papers: JobPapers
    facts: SupervisorFacts
    telemetry: bytes = field(repr=False)
    materialised: Materialised
    audit: EgressReport | None = None


@dataclass(frozen=True, slots=True)
class BuiltSet:
    """A finished set: the receipt, its names, its files, and the report of its own verification."""

    receipt: Receipt
    receipt_id: str
    receipt_digest: str
    core_digest: str
    compute_receipt_id: str
    members: tuple[Member, ...] = field(repr=False)
    marker: Member = field(repr=False)
    report: VerificationReport

    def files(self) -> dict[str, bytes]:
        """Return every file by name, as the verifier takes them."""
        return {member.name: member.data for member in (*self.members, self.marker)}


@dataclass(frozen=True, slots=True)
class SealedSet:
    """A set but for its state store and its marker. Nothing in it is private in clear.

    ``contents`` has the bytes of every other member by kind, ``entry`` what the store records.
    """

    receipt: Receipt
    compute_receipt: SignedReceipt
    contents: Mapping[MemberKind, bytes] = field(repr=False)
    entry: StateEntry = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Signed:
    """The compute receipt of a run, and what went into it. Private."""

    receipt: SignedReceipt
    palw: bytes
    inputs: ComputeInputs
    gathered: GatheredEvidence


def seal_set(inputs: SetInputs, sealing: Sealing, signing_key: SigningKey) -> SealedSet:
    """Sign and seal what one run left behind.

    Afterwards nothing of the set needs the run's text any more: whoever calls can let go of
    ``inputs`` before anything is recorded or written. Raises SandboxError when the run asks for
    isolation that was not there, EvidenceError when what was declared is not what was on disk,
    RunFailedError when the result contradicts itself, so that its set would not verify, or when a
    window passed while the run lasted.
    """
    require_match(DECLARED, declared_by(inputs.run), MATERIALISED, inputs.materialised.digests)
    require_prompt(inputs.run, inputs.materialised.prompt)
    require_open_windows(inputs.run, inputs.papers, inputs.facts)
    try:
        return _sealed(inputs, sealing, signing_key)
    except EvidenceError as error:
        raise _unsound(error) from error


def finish_set(
    sealed: SealedSet, signing_key: SigningKey, key: AuditKey, record: RecordState
) -> BuiltSet:
    """Record a sealed set, mark it complete and verify it whole with ``key``.

    ``signing_key`` and ``key`` are those it was signed and sealed with. The telemetry is judged
    here, with everything else that a verifier sees. Raises RunFailedError when the set does not
    verify, and what ``record`` raises.
    """
    digest = digests.receipt_digest(sealed.receipt)
    name = digests.receipt_id(digest)
    contents = {**sealed.contents, STATE: record(sealed.entry)}
    members = tuple(Member(kind.name(name), contents[kind], kind.visibility) for kind in MEMBERS)
    marker = Member(MARKER.name(name), encode_bytes(marker_of(members, digest)), "public")
    return BuiltSet(
        receipt=sealed.receipt,
        receipt_id=name,
        receipt_digest=digest,
        core_digest=digests.core_digest(sealed.receipt.core),
        compute_receipt_id=compute_receipt_id(sealed.compute_receipt.body).hex(),
        members=members,
        marker=marker,
        report=_verify_own(members, marker, sealed, signing_key, key),
    )


def _sealed(inputs: SetInputs, sealing: Sealing, signing_key: SigningKey) -> SealedSet:
    """Make the files in the order in which one names the other."""
    gathered = gathered_of(inputs.generation)
    evidence = _portable(inputs, gathered)
    enforced = enforced_by(inputs.run, inputs.audit)
    core = core_of(
        inputs.run,
        inputs.generation,
        inputs.runtime_class,
        inputs.engine,
        gathered,
        evidence,
        enforced.sandbox,
        inputs.materialised.digests,
    )
    signed = _sign(inputs, sealing, signing_key, gathered, evidence, core)
    execution = encode_bytes(
        exec_envelope_of(inputs.run, inputs.generation, core, inputs.materialised)
    )
    receipt = Receipt(core, _observed(inputs, signing_key, signed, execution, enforced))
    digest = digests.receipt_digest(receipt)
    public, private = _parts(signed, opening_of(inputs.run, inputs.generation, digest))
    case = _own_case(signed, public, private, receipt)
    require_all(case)  # nothing is sealed or recorded that its own worker cannot verify
    bundle = _seal(signed, public, private, sealing)
    receipt_bytes = encode_bytes(receipt)
    contents = {
        COMPUTE_RECEIPT: signed.palw,
        PUBLIC_JSON: encode_bytes(public_receipt(case, PublicNames(bundle_id(bundle), digest))),
        RECEIPT: receipt_bytes,
        EXEC: execution,
        TELEMETRY: inputs.telemetry,
        ENVELOPES: _envelopes(receipt, receipt_bytes, enforced, signing_key, inputs.materialised),
        BUNDLE: bundle,
    }
    entry = entry_of(
        signed.palw,
        bundle_id=bundle_id(bundle),
        verification_epoch=public.verification_epoch,
    )
    return SealedSet(receipt, signed.receipt, MappingProxyType(contents), entry)


def _envelopes(
    receipt: Receipt,
    receipt_bytes: bytes,
    enforced: Enforced,
    signing_key: SigningKey,
    materialised: Materialised,
) -> bytes:
    """Return our envelopes and, last, the provider's as it was found."""
    statements = [execution_statement(receipt, receipt_bytes)]
    if enforced.statement is not None:
        statements.append(enforced.statement)
    lines = [dsse.sign(each, dsse.PAYLOAD_TYPE, [signing_key]) for each in statements]
    if materialised.source is not None:
        lines.append(materialised.source.envelope)
    return b"".join(line + b"\n" for line in lines)


def _observed(
    inputs: SetInputs,
    signing_key: SigningKey,
    signed: _Signed,
    execution: bytes,
    enforced: Enforced,
) -> Observed:
    return observed_of(
        inputs.run,
        inputs.generation,
        inputs.facts,
        inputs.telemetry,
        signing_key.public.key_id,
        format_digest(sha256(signed.palw)),
        format_digest(sha256(execution)),
        enforced,
    )


def _own_case(
    signed: _Signed, public: BundlePublic, private: BundlePrivate, receipt: Receipt
) -> ComputeCase:
    return ComputeCase(
        ComputeDocuments(
            palw=signed.palw,
            receipt=signed.receipt,
            public=public,
            private=private,
            core=receipt.core,
            core_digest=digests.core_digest(receipt.core),
            observed=receipt.observed,
        ),
        ComputeContext(network_id=signed.receipt.body.network_id),
    )


def _portable(inputs: SetInputs, gathered: GatheredEvidence) -> PortableEvidence:
    numbers = RunNumbers(
        papers_nullifier(inputs.papers),
        inputs.manifest.shape_profile_id,
        len(inputs.generation.prompt_ids),
        len(inputs.generation.sampled_ids),
    )
    blind = bytes.fromhex(inputs.run.blind)
    return make_portable(gathered, numbers, verify_manifest(inputs.manifest), blind)


def _sign(
    inputs: SetInputs,
    sealing: Sealing,
    signing_key: SigningKey,
    gathered: GatheredEvidence,
    evidence: PortableEvidence,
    core: Core,
) -> _Signed:
    compute = ComputeInputs(
        run=inputs.run,
        papers=inputs.papers,
        manifest=inputs.manifest,
        evidence=evidence,
        core=core,
        prompt_ids=inputs.generation.prompt_ids,
        sampled_ids=inputs.generation.sampled_ids,
        prompt_nonce=sealing.prompt_nonce,
        output_nonce=sealing.output_nonce,
        timestamp=inputs.facts.end_ns // 1_000_000,
    )
    receipt = build_compute_receipt(compute, signing_key)
    return _Signed(receipt, encode(receipt), compute, gathered)


def _parts(signed: _Signed, opening: Opening) -> tuple[BundlePublic, BundlePrivate]:
    observed = signed.gathered.observed
    return bundle_parts(
        signed.inputs,
        signed.receipt,
        opening,
        routes=signed.gathered.routes,
        trace=None if observed is None else observed.trace,
    )


def _seal(signed: _Signed, public: BundlePublic, private: BundlePrivate, sealing: Sealing) -> bytes:
    return seal(
        encode_public(public),
        encode_private(private),
        receipt_binding=receipt_binding(signed.palw),
        key=sealing.key,
        salt=sealing.salt,
        nonce=sealing.nonce,
    )


def marker_of(members: tuple[Member, ...], digest: str) -> ReceiptSet:
    """Return the completion marker over ``members`` of the receipt with ``digest``."""
    return ReceiptSet(
        schema=SET_SCHEMA,
        producer=PRODUCER,
        receipt_digest=digest,
        members=tuple(
            SetMember(member.name, format_digest(sha256(member.data)), member.visibility)
            for member in members
        ),
    )


def _verify_own(
    members: tuple[Member, ...],
    marker: Member,
    sealed: SealedSet,
    signing_key: SigningKey,
    key: AuditKey,
) -> VerificationReport:
    files = {member.name: member.data for member in (*members, marker)}
    context = VerifyContext(
        trust=TrustPolicy.for_keys([signing_key.public]),
        now=datetime.fromisoformat(sealed.receipt.observed.end_time),
        key=key,
        network_id=sealed.compute_receipt.body.network_id,
    )
    report = verify_with(files, context)
    try:
        report.require()
        report.require_complete()
    except EvidenceError as error:
        raise _unsound(error) from error
    return report


def _unsound(error: TallystickError) -> RunFailedError:
    return RunFailedError(
        f"the run's own receipt does not verify: {error.message}",
        expected=error.expected,
        found=error.found,
        hint="nothing was signed away: this is a defect of the program or of the machine",
    )
