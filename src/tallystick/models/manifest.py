"""From what is known of a model, an engine and a platform to the manifest (docs/spec/manifest.md).

Equal arguments give equal bytes. Only :func:`pinned_facts` reads something: the pins that ship.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tallystick.canonical.hashing import parse_digest
from tallystick.compute.architecture import encode_architecture
from tallystick.compute.families import describe
from tallystick.compute.graph_mapping import adapter_mapping_id
from tallystick.compute.manifest import profile_numbers, verify_manifest
from tallystick.compute.rules import RULES_V3
from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.compute_receipt import TraceEvidence
from tallystick.contracts.manifest import MANIFEST_VERSION, RuntimeManifest
from tallystick.contracts.manifest_facts import (
    MANIFEST_FACTS_SCHEMA,
    ManifestFacts,
    MetadataFile,
    base_metadata_digest,
    chat_template_digest,
    manifest_digests,
    quantization,
    special_tokens_digest,
    tokenizer_digest,
)
from tallystick.contracts.manifest_parts import (
    PART_VERSION,
    ROPE_OF_THE_FILE,
    ModelProfile,
    PalwRuntimeClass,
    shape_of,
)
from tallystick.contracts.model import ModelFacts
from tallystick.contracts.platform import PlatformFacts
from tallystick.contracts.profile_pin import ProfilePin
from tallystick.contracts.request import PRODUCER
from tallystick.contracts.runtime import EngineBuild, RuntimeClass
from tallystick.errors import EvidenceError, IncomparableError
from tallystick.models.profiles import find_profile, require_profile, require_runtime
from tallystick.models.registry import ModelFile

_UNNAMED: Final = "unnamed"


@dataclass(frozen=True, slots=True)
class PinnedFacts:
    """A model file: its facts, ``sha256:...`` digest and size, and its profile if one ships."""

    facts: ModelFacts
    digest: str
    size: int
    profile: ProfilePin | None


@dataclass(frozen=True, slots=True)
class Runtime:
    """What ran it: the engine, the receipt's runtime class, the child's platform.

    ``context_tokens`` is the number of cells that the run opened.
    """

    engine: EngineBuild
    runtime_class: RuntimeClass
    platform: PlatformFacts
    context_tokens: int


def pinned_facts(model: ModelFile) -> PinnedFacts:
    """Return what a model profile is made of; the pins are those that ship with the program."""
    source = None if model.pin is None else model.pin.derived_from
    return PinnedFacts(model.facts, model.digest, model.size, find_profile(model.digest, source))


def require_pinned_engine(model: PinnedFacts, engine: EngineBuild) -> None:
    """Raise IncomparableError for another engine build than the model's profile names, if any."""
    if model.profile is not None:
        require_runtime(model.profile, engine)


def model_profile(model: PinnedFacts) -> ModelProfile:
    """Return the profile of ``model``: the same on every machine.

    Raises IncomparableError for a model whose architecture has no rule or no profile, or that is
    not what its pin says; InputError for numbers that are missing or contradict each other.
    """
    facts = model.facts
    if model.profile is not None:
        require_profile(model.profile, facts, model.digest, model.size)
    architecture = describe(facts)
    numbers = profile_numbers(architecture)
    tokenizer = tokenizer_digest(facts.tokenizer_model, facts.tokenizer_digest)
    name, rope = _names(model)
    profile = ModelProfile(
        version=PART_VERSION,
        name=name,
        rope=rope,
        topology=numbers.topology,
        layers=numbers.layers,
        hidden=numbers.hidden,
        heads=numbers.heads,
        heads_kv=numbers.heads_kv,
        head_width=numbers.head_width,
        feed_forward=numbers.feed_forward,
        experts=numbers.experts,
        experts_used=numbers.experts_used,
        vocabulary=numbers.vocabulary,
        native_context_tokens=facts.context_train,
        parameters=facts.parameters,
        model_digest=parse_digest(model.digest),
        model_bytes=model.size,
        tokenizer_digest=tokenizer,
        special_tokens_digest=special_tokens_digest(tokenizer),
        chat_template_digest=chat_template_digest(facts.chat_template_digest),
        base_metadata_digest=base_metadata_digest(_base_metadata(model.profile)),
        architecture=encode_architecture(architecture),
    )
    _checked(profile.validate)
    return profile


def build_manifest(model: PinnedFacts, runtime: Runtime) -> RuntimeManifest:
    """Return the checked manifest of a run.

    Raises what :func:`model_profile` raises, and IncomparableError when the engine is not the one
    of the model's pin or the numbers break a rule of the manifest.
    """
    profile = model_profile(model)
    require_pinned_engine(model, runtime.engine)
    facts = _manifest_facts(model, runtime)
    mapping = adapter_mapping_id()
    manifest = RuntimeManifest(
        version=MANIFEST_VERSION,
        model_profile=profile,
        runtime_class=PalwRuntimeClass(
            version=PART_VERSION,
            runtime_class=encode_bytes(runtime.runtime_class),
            quantization=quantization(facts.weight_types),
        ),
        shape_profile=shape_of(runtime.runtime_class, runtime.context_tokens),
        trace_capability=TraceEvidence.GRAPH_FALLBACK,
        cu_ruleset_id=RULES_V3.ruleset_id,
        adapter_mapping_id=mapping,
        digests=manifest_digests(
            facts,
            runtime.runtime_class,
            adapter_mapping_id=mapping,
            cu_ruleset_id=RULES_V3.ruleset_id,
            experts=profile.experts,
        ),
        facts=encode_bytes(facts),
    )
    _checked(lambda: verify_manifest(manifest))
    return manifest


def _checked(check: Callable[[], object]) -> None:
    """Run ``check`` over numbers that are those of a file on this machine, and no evidence."""
    try:
        check()
    except EvidenceError as error:
        raise IncomparableError.of(error) from None


def _names(model: PinnedFacts) -> tuple[str, str]:
    if model.profile is not None:
        return model.profile.profile_name, model.profile.model.rope
    return model.facts.name or f"{_UNNAMED} {model.facts.architecture}", ROPE_OF_THE_FILE


def _base_metadata(pin: ProfilePin | None) -> tuple[MetadataFile, ...]:
    """Return the pinned files, none when one of them has no published digest.

    What a fetch found is no part of a profile: it would differ between two machines.
    """
    files = () if pin is None else pin.base_artifact.files
    known = [MetadataFile(file.path, f"sha256:{file.sha256}") for file in files if file.sha256]
    if len(known) < len(files):
        return ()
    return tuple(sorted(known, key=lambda file: file.path))


def _manifest_facts(model: PinnedFacts, runtime: Runtime) -> ManifestFacts:
    facts = model.facts
    return ManifestFacts(
        schema=MANIFEST_FACTS_SCHEMA,
        producer=PRODUCER,
        engine=runtime.engine,
        tokenizer_model=facts.tokenizer_model,
        tokenizer_digest=facts.tokenizer_digest,
        chat_template_digest=facts.chat_template_digest,
        weight_types=tuple(sorted(facts.weight_types, key=lambda kind: kind.name)),
        base_metadata=_base_metadata(model.profile),
        platform=runtime.platform,
    )
