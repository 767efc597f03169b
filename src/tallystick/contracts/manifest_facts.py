"""The facts document of a runtime manifest, and every digest that follows from it.

A manifest carries digests; this document is what they are digests of, so that whoever reads a
manifest can recompute each of them (docs/spec/manifest.md#digests).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from tallystick.canonical.hashing import domain_hash, parse_digest
from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.model import WeightType
from tallystick.contracts.platform import ENVIRONMENT, NAME_ONLY, PlatformFacts
from tallystick.contracts.request import Producer
from tallystick.contracts.runtime import EngineBuild, RuntimeClass
from tallystick.contracts.types import Digest, LineText, MaxLength, OneOf
from tallystick.errors import EvidenceError

MANIFEST_FACTS_SCHEMA: Final = "tallystick.manifest-facts/v1"
MAX_FACTS: Final = 128 * 1024
#: Which special tokens the tokenizer adds or reads (docs/spec/execution.md#prompt).
SPECIAL_TOKENS: Final = (
    "add_special=true;"
    "parse_special=chat|sequential;"
    "begin_token=once;"
    "end_of_generation=counts,adds_no_bytes"
)
#: How graphs follow each other (docs/spec/execution.md#chunks).
GRAPH_ORDER: Final = "batch=one_graph;order=prefill,decode;output_rows=named"


@dataclass(frozen=True, slots=True)
class MetadataFile:
    """One file of the base model's metadata: its path in the repository and its sha256."""

    path: LineText
    digest: Digest


@dataclass(frozen=True, slots=True)
class ManifestFacts:
    """What the digests of a manifest are made of.

    ``base_metadata`` is empty when nothing is known of the model's origin.
    """

    schema: Annotated[str, OneOf((MANIFEST_FACTS_SCHEMA,))]
    producer: Producer
    engine: EngineBuild
    tokenizer_model: LineText
    tokenizer_digest: Digest
    chat_template_digest: Digest | None
    weight_types: Annotated[tuple[WeightType, ...], MaxLength(64)]
    base_metadata: Annotated[tuple[MetadataFile, ...], MaxLength(32)]
    platform: PlatformFacts


@dataclass(frozen=True, slots=True)
class ManifestDigests:
    """The digests that a manifest carries beside its three parts; raw 32 bytes each."""

    kernel_graph_id: bytes
    kernel_algorithm_digest: bytes
    loaded_libraries_digest: bytes
    build_flags_digest: bytes
    wheel_digest: bytes
    environment_allowlist_digest: bytes
    runtime_device_digest: bytes
    runtime_program_digest: bytes
    build_provenance_digest: bytes


def manifest_digests(
    facts: ManifestFacts,
    runtime_class: RuntimeClass,
    *,
    adapter_mapping_id: bytes,
    cu_ruleset_id: bytes,
    experts: int,
) -> ManifestDigests:
    """Return every digest, recomputed. ``experts`` is the model's number of them, 0 if dense."""
    platform = facts.platform
    wheel = wheel_digest(facts)
    return ManifestDigests(
        kernel_graph_id=domain_hash(
            "palw.kernel-graph",
            1,
            [parse_digest(facts.engine.library), adapter_mapping_id, GRAPH_ORDER.encode()],
        ),
        kernel_algorithm_digest=domain_hash(
            "palw.kernel-algorithm",
            1,
            [kernel_policy(runtime_class, experts).encode(), cu_ruleset_id],
        ),
        loaded_libraries_digest=domain_hash(
            "palw.loaded-libraries",
            1,
            _named((library.name, library.digest) for library in platform.libraries),
        ),
        build_flags_digest=domain_hash("palw.build-flags", 1, [encode_bytes(platform.build)]),
        wheel_digest=wheel,
        environment_allowlist_digest=domain_hash(
            "palw.environment", 1, [text.encode() for text in platform.environment]
        ),
        runtime_device_digest=domain_hash(
            "palw.runtime-device", 1, [encode_bytes(platform.device)]
        ),
        runtime_program_digest=domain_hash(
            "palw.runtime-program", 1, [encode_bytes(platform.program)]
        ),
        build_provenance_digest=domain_hash(
            "palw.build-provenance", 1, [encode_bytes(facts.engine), wheel]
        ),
    )


def kernel_policy(runtime_class: RuntimeClass, experts: int) -> str:
    """Return, as text, what decides which kernels run on which rows."""
    knobs = ",".join(f"{knob.name}={knob.value}" for knob in runtime_class.knobs) or "none"
    prompt, decode = runtime_class.prompt_class, runtime_class.decode_class
    return (
        f"policy={runtime_class.policy};"
        f"prompt_rows={prompt.floor}..{prompt.max_rows};"
        f"decode_rows={decode.floor}..{decode.max_rows};"
        f"knobs={knobs};"
        "flash_attention=off;repacked_weights=off;"
        f"experts={'yes' if experts else 'no'}"
    )


def wheel_digest(facts: ManifestFacts) -> bytes:
    """Return what stands for a list of source patches: the engine is built from none of ours."""
    return domain_hash("palw.engine-wheel", 1, [encode_bytes(facts.platform.wheel)])


def tokenizer_digest(model: str, entries: str) -> bytes:
    """Return the digest of a tokenizer: its model's name, and the digest of its entries."""
    return domain_hash("palw.tokenizer", 1, [model.encode(), parse_digest(entries)])


def special_tokens_digest(tokenizer: bytes) -> bytes:
    """Return the digest of what special tokens mean: the tokenizer, and this program's rule."""
    return domain_hash("palw.special-tokens", 1, [tokenizer, SPECIAL_TOKENS.encode()])


def chat_template_digest(template: str | None) -> bytes:
    """Return the digest of a chat template with this SHA-256, or what stands for none."""
    if template is None:
        return domain_hash("palw.no-chat-template", 1, [])
    return domain_hash("palw.chat-template", 1, [parse_digest(template)])


def base_metadata_digest(files: Sequence[MetadataFile]) -> bytes:
    """Return the digest of a base model's metadata files, or what stands for none."""
    if not files:
        return domain_hash("palw.no-base-metadata", 1, [])
    parts = _named((file.path, file.digest) for file in files)
    return domain_hash("palw.base-metadata", 1, parts)


def quantization(weight_types: Iterable[WeightType]) -> str:
    """Return the weights' types as one text, such as ``F32+Q4_K+Q6_K``."""
    return "+".join(sorted(kind.name for kind in weight_types))


def check_facts(facts: ManifestFacts) -> None:
    """Check what the document's types do not say. Raises EvidenceError."""
    platform = facts.platform
    _require_sorted("libraries", [(item.name, item.digest) for item in platform.libraries])
    _require_sorted("environment", [(text,) for text in platform.environment])
    _require_sorted("weight types", [(kind.name,) for kind in facts.weight_types])
    _require_sorted("base metadata", [(file.path,) for file in facts.base_metadata])
    if facts.engine.library not in {library.digest for library in platform.libraries}:
        raise EvidenceError(
            "manifest facts: the engine is not among the loaded libraries",
            expected=facts.engine.library,
            found=f"{len(platform.libraries)} others",
        )
    for text in platform.environment:
        name, equals, _ = text.partition("=")
        if name not in ENVIRONMENT or bool(equals) is (name in NAME_ONLY):
            raise EvidenceError(
                "manifest facts: a variable that no engine child may have",
                expected="only the listed variables",
                found=ascii(name[:40]),
            )


def _require_sorted(what: str, items: Sequence[tuple[str, ...]]) -> None:
    if list(items) != sorted(set(items)):
        raise EvidenceError(
            f"manifest facts: the {what} are not in order",
            expected="sorted, each once",
            found=f"{len(items)} items",
        )


def _named(pairs: Iterable[tuple[str, str]]) -> list[bytes]:
    return [part for name, digest in pairs for part in (name.encode(), parse_digest(digest))]
