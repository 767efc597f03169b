"""What the steps about the compute receipt look at (docs/spec/verification.md).

Manifest and evidence are decoded when the first step needs them, so that what cannot be decoded
fails in the step that is about it; the opening may come decoded, as it also belongs to the geoai
receipt. What follows from a manifest's bytes alone, which are public, is kept for later cases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeAlias

from tallystick.attest.keys import PublicKey
from tallystick.compute.architecture import Architecture
from tallystick.compute.manifest import verify_manifest
from tallystick.contracts.bundle import MAX_BUNDLE, BundlePrivate, BundlePublic
from tallystick.contracts.codec import decode_bytes
from tallystick.contracts.commitments import local_network_id
from tallystick.contracts.compute_receipt import ComputeReceipt, SignedReceipt
from tallystick.contracts.manifest import RuntimeManifest
from tallystick.contracts.manifest_facts import ManifestFacts
from tallystick.contracts.opening import OPENING_BOUNDS, Opening
from tallystick.contracts.receipt import Core, Observed
from tallystick.evidence.portable import (
    DerivedEvidence,
    PortableEvidence,
    decode_portable,
    derive,
)
from tallystick.receipts.papers import JobPapers

BUNDLE_WITHHELD: Final = "the verification bundle is withheld"
_MANIFESTS: Final = 16
PRIVATE_LOCKED: Final = "the private part of the bundle is locked"


@dataclass(frozen=True, slots=True)
class NotChecked:
    """A step could not run, and why. It is never a pass."""

    reason: str


@dataclass(frozen=True, slots=True)
class ComputeDocuments:
    """The compute receipt of a set, what there is of its bundle, and the receipt it belongs to.

    ``palw`` is the file's bytes, ``receipt`` what they encode. ``public`` is None when the bundle
    is withheld, ``private`` when no key opened it. ``core_digest`` is that of ``core``. Raises
    ValueError for a private part without the public one that it was sealed with.
    """

    palw: bytes
    receipt: SignedReceipt
    public: BundlePublic | None
    private: BundlePrivate | None
    core: Core
    core_digest: str
    observed: Observed

    def __post_init__(self) -> None:
        """Refuse half of an opened bundle."""
        if self.private is not None and self.public is None:
            raise ValueError("a private part comes with its public one")


@dataclass(frozen=True, slots=True)
class ComputeContext:
    """What a verifier brings itself.

    ``network_id`` is the network whose receipts it accepts. ``now_epoch`` is None to verify at the
    bundle's own epoch. ``worker_keys`` are keys that its trust gives for the execution link;
    without any, the worker's key is the one of the opened bundle.
    """

    network_id: bytes = field(default_factory=local_network_id)
    now_epoch: int | None = None
    worker_keys: tuple[PublicKey, ...] = ()


class ComputeCase:
    """One verification: documents, context, and what its steps have decoded of them so far."""

    __slots__ = (
        "_derived",
        "_evidence",
        "_opening",
        "context",
        "documents",
    )

    def __init__(
        self,
        documents: ComputeDocuments,
        context: ComputeContext,
        opening: Opening | None = None,
    ) -> None:
        """Look at ``documents``; ``opening`` is that of the private part, if it was decoded."""
        self.documents = documents
        self.context = context
        self._evidence: PortableEvidence | None = None
        self._derived: DerivedEvidence | None = None
        self._opening = opening

    @property
    def body(self) -> ComputeReceipt:
        """The 30 fields."""
        return self.documents.receipt.body

    def manifest(self, public: BundlePublic) -> RuntimeManifest:
        """Return the manifest of the public part. Raises EvidenceError when it is not one."""
        return _manifest(public.manifest)

    def facts(self, public: BundlePublic) -> ManifestFacts:
        """Return the manifest's facts. Raises EvidenceError when they are none."""
        return _facts(public.manifest)

    def identities(self, public: BundlePublic) -> ManifestIdentities:
        """Return the four ids that follow from the manifest. Raises EvidenceError."""
        return _identities(public.manifest)

    def architecture(self, public: BundlePublic) -> Architecture:
        """Return the architecture of the manifest, once all of it holds. Raises EvidenceError."""
        return _architecture(public.manifest)

    def evidence(self, public: BundlePublic) -> PortableEvidence:
        """Return the evidence of the public part. Raises EvidenceError when it is not one."""
        if self._evidence is None:
            self._evidence = decode_portable(public.evidence)
        return self._evidence

    def derived(self, public: BundlePublic) -> DerivedEvidence:
        """Return what follows from evidence and architecture. Raises EvidenceError."""
        if self._derived is None:
            self._derived = derive(self.evidence(public), self.architecture(public))
        return self._derived

    def opening(self, private: BundlePrivate) -> Opening:
        """Return the opening of the private part. Raises EvidenceError when it is not one."""
        if self._opening is None:
            self._opening = decode_bytes(
                Opening,
                private.opening,
                max_bytes=MAX_BUNDLE,
                where="opening in the bundle",
                bounds=OPENING_BOUNDS,
            )
        return self._opening


@dataclass(frozen=True, slots=True)
class ManifestIdentities:
    """The ids of a manifest and its parts, 32 bytes each, named as in the compute receipt."""

    model_profile_id: bytes
    runtime_class_id: bytes
    runtime_manifest_hash: bytes
    shape_profile_id: bytes


# A worker's receipts have few manifests between them, and what follows from one is a function of
# its bytes alone: a verifier of many receipts works it out once. A refusal is never kept.
@lru_cache(maxsize=_MANIFESTS)
def _manifest(data: bytes) -> RuntimeManifest:
    return RuntimeManifest.decode_strict(data)


@lru_cache(maxsize=_MANIFESTS)
def _architecture(data: bytes) -> Architecture:
    return verify_manifest(_manifest(data))


@lru_cache(maxsize=_MANIFESTS)
def _facts(data: bytes) -> ManifestFacts:
    return _manifest(data).decoded_facts()


@lru_cache(maxsize=_MANIFESTS)
def _identities(data: bytes) -> ManifestIdentities:
    manifest = _manifest(data)
    return ManifestIdentities(
        manifest.model_profile_id,
        manifest.runtime_class_id,
        manifest.runtime_manifest_hash,
        manifest.shape_profile_id,
    )


#: What a step says that it saw, or why it could not look.
StepOutcome: TypeAlias = str | NotChecked
ComputeStep: TypeAlias = Callable[[ComputeCase], StepOutcome]


def papers_of(public: BundlePublic, private: BundlePrivate) -> JobPapers:
    """Return the papers of the job that a bundle holds."""
    return JobPapers(
        scheduler_key=public.scheduler_key,
        request=private.signed_request,
        assignment=private.signed_assignment,
        credential=private.credential,
        owner_key=private.owner_key,
        owner_salt=private.owner_salt,
        request_nonce=private.request_nonce,
    )
