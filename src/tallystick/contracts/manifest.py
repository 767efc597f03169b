"""RuntimeManifest: on what a compute receipt says that it was computed (docs/spec/manifest.md).

The types hold bytes and check themselves against each other. What needs the meaning of an
architecture or of a ruleset is in :mod:`tallystick.compute.manifest`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Self

from tallystick.canonical.codec import BinaryReader, BinaryWriter, decode_strict
from tallystick.canonical.hashing import domain_hash, parse_digest
from tallystick.contracts.codec import decode_bytes
from tallystick.contracts.compute_receipt import TraceEvidence
from tallystick.contracts.manifest_facts import (
    MAX_FACTS,
    ManifestDigests,
    ManifestFacts,
    base_metadata_digest,
    chat_template_digest,
    check_facts,
    manifest_digests,
    quantization,
    special_tokens_digest,
    tokenizer_digest,
)
from tallystick.contracts.manifest_parts import (
    MAX_PROFILE,
    MAX_RUNTIME_CLASS,
    MAX_SHAPE,
    ModelProfile,
    PalwRuntimeClass,
    ShapeProfile,
    read_choice,
    refusal,
    require_version,
)

MANIFEST_VERSION: Final = 1
MAX_MANIFEST: Final = MAX_PROFILE + MAX_RUNTIME_CLASS + MAX_SHAPE + MAX_FACTS + 1024
_DIGESTS: Final = tuple(field.name for field in fields(ManifestDigests))


@dataclass(frozen=True, slots=True)
class RuntimeManifest:
    """Model, runtime and shape, what a trace could show, and the platform, all by digest.

    ``trace_capability`` is the only kind of trace that this runtime can make. ``facts`` is the
    canonical JSON of :class:`tallystick.contracts.manifest_facts.ManifestFacts`, from which every
    one of ``digests`` is recomputed.
    """

    version: int
    model_profile: ModelProfile
    runtime_class: PalwRuntimeClass
    shape_profile: ShapeProfile
    trace_capability: TraceEvidence
    cu_ruleset_id: bytes
    adapter_mapping_id: bytes
    digests: ManifestDigests
    facts: bytes

    @property
    def canonical_bytes(self) -> bytes:
        """The one encoding. Raises InputError for a value that does not fit."""
        writer = BinaryWriter()
        writer.u16(self.version)
        writer.sized(self.model_profile.canonical_bytes, limit=MAX_PROFILE)
        writer.sized(self.runtime_class.canonical_bytes, limit=MAX_RUNTIME_CLASS)
        writer.sized(self.shape_profile.canonical_bytes, limit=MAX_SHAPE)
        writer.u8(self.trace_capability)
        writer.digest(self.cu_ruleset_id)
        writer.digest(self.adapter_mapping_id)
        for name in _DIGESTS:
            writer.digest(getattr(self.digests, name))
        writer.sized(self.facts, limit=MAX_FACTS)
        return writer.finish()

    @classmethod
    def decode_strict(cls, data: bytes) -> Self:
        """Return the manifest whose encoding is ``data``. Raises EvidenceError.

        Its form is right then; :meth:`validate` says whether its parts fit together.
        """
        return decode_strict(data, cls._read, max_bytes=MAX_MANIFEST, where="runtime manifest")

    @classmethod
    def _read(cls, reader: BinaryReader) -> Self:
        return cls(
            version=reader.u16(),
            model_profile=ModelProfile.decode_strict(reader.sized(limit=MAX_PROFILE)),
            runtime_class=PalwRuntimeClass.decode_strict(reader.sized(limit=MAX_RUNTIME_CLASS)),
            shape_profile=ShapeProfile.decode_strict(reader.sized(limit=MAX_SHAPE)),
            trace_capability=TraceEvidence(read_choice(reader, len(TraceEvidence))),
            cu_ruleset_id=reader.digest(),
            adapter_mapping_id=reader.digest(),
            digests=ManifestDigests(*(reader.digest() for _ in _DIGESTS)),
            facts=reader.sized(limit=MAX_FACTS),
        )

    @property
    def runtime_manifest_hash(self) -> bytes:
        """The 32-byte ``H("palw.runtime-manifest", 1, [encoding])``."""
        return domain_hash("palw.runtime-manifest", 1, [self.canonical_bytes])

    @property
    def model_profile_id(self) -> bytes:
        """The id of the model profile."""
        return self.model_profile.model_profile_id

    @property
    def runtime_class_id(self) -> bytes:
        """The id of the runtime class; not that of the receipt's core, which is JSON."""
        return self.runtime_class.runtime_class_id

    @property
    def shape_profile_id(self) -> bytes:
        """The id of the shape profile."""
        return self.shape_profile.shape_profile_id

    def decoded_facts(self) -> ManifestFacts:
        """Return the facts document. Raises EvidenceError when it is not one."""
        return decode_bytes(ManifestFacts, self.facts, max_bytes=MAX_FACTS, where="manifest facts")

    def validate(self) -> None:
        """Check every part, and that the parts fit together. Raises EvidenceError."""
        require_version("runtime manifest", self.version)
        self.model_profile.validate()
        self.runtime_class.validate()
        self.shape_profile.validate()
        if self.trace_capability is not TraceEvidence.GRAPH_FALLBACK:
            raise refusal(
                "runtime manifest",
                "trace_capability",
                TraceEvidence.GRAPH_FALLBACK.name.lower(),
                self.trace_capability.name.lower(),
            )
        facts = self.decoded_facts()
        check_facts(facts)
        self._check_shape()
        self._check_profile(facts)
        self._check_digests(facts)

    def _check_shape(self) -> None:
        runtime, shape = self.runtime_class.decoded(), self.shape_profile
        if shape.policy.text != runtime.policy:
            raise refusal("shape profile", "policy", runtime.policy, shape.policy.text)
        for name in ("prompt_class", "decode_class"):
            expected, found = getattr(runtime, name), getattr(shape, name)
            if expected != found:
                raise refusal(
                    "shape profile",
                    name,
                    f"{expected.floor}..{expected.max_rows}",
                    f"{found.floor}..{found.max_rows}",
                )

    def _check_profile(self, facts: ManifestFacts) -> None:
        profile = self.model_profile
        tokenizer = tokenizer_digest(facts.tokenizer_model, facts.tokenizer_digest)
        for name, expected in (
            ("tokenizer_digest", tokenizer),
            ("special_tokens_digest", special_tokens_digest(tokenizer)),
            ("chat_template_digest", chat_template_digest(facts.chat_template_digest)),
            ("base_metadata_digest", base_metadata_digest(facts.base_metadata)),
        ):
            _require_equal("model profile", name, expected, getattr(profile, name))
        runtime = self.runtime_class.decoded()
        library = parse_digest(runtime.engine_library)
        _require_equal(
            "manifest facts", "engine.library", library, parse_digest(facts.engine.library)
        )
        weights = quantization(facts.weight_types)
        if weights != self.runtime_class.quantization:
            raise refusal(
                "runtime class",
                "quantization",
                weights[:200],
                ascii(self.runtime_class.quantization)[:200],
            )

    def _check_digests(self, facts: ManifestFacts) -> None:
        expected = manifest_digests(
            facts,
            self.runtime_class.decoded(),
            adapter_mapping_id=self.adapter_mapping_id,
            cu_ruleset_id=self.cu_ruleset_id,
            experts=self.model_profile.experts,
        )
        for name in _DIGESTS:
            found = getattr(self.digests, name)
            _require_equal("runtime manifest", name, getattr(expected, name), found)


def _require_equal(what: str, name: str, expected: bytes, found: bytes) -> None:
    if expected != found:
        raise refusal(what, name, expected.hex(), found.hex())
