"""A platform, a profile pin and runtime manifests for tests that need some."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tallystick.contracts.manifest import RuntimeManifest
from tallystick.contracts.manifest_facts import ManifestFacts, MetadataFile
from tallystick.contracts.model import ModelFacts, WeightType
from tallystick.contracts.platform import (
    DeviceFacts,
    EngineBuildFacts,
    LoadedLibrary,
    PlatformFacts,
    ProgramFacts,
    WheelFacts,
)
from tallystick.contracts.profile_pin import (
    BASE_METADATA_SCHEMA,
    METADATA_ONLY,
    PROFILE_PIN_SCHEMA,
    BaseArtifact,
    BaseMetadata,
    InferenceArtifact,
    MetadataRecord,
    PinnedFile,
    PinnedModel,
    PinnedRuntime,
    ProfilePin,
)
from tallystick.contracts.request import PRODUCER
from tallystick.models.manifest import PinnedFacts, Runtime, build_manifest
from tests.support.documents import ENGINE, RUNTIME, digest_of, example_facts
from tests.unit.compute.descriptions import FAMILY_NUMBERS

CONTEXT: Final = 512
METADATA: Final = {f"file-{number}.json": b'{"number": %d}' % number for number in range(7)}


def example_platform() -> PlatformFacts:
    """Return what a child on a small machine reports."""
    return PlatformFacts(
        libraries=(
            LoadedLibrary("libc.so.6", digest_of("libc")),
            LoadedLibrary("libgomp.so.1.0.0", digest_of("libgomp")),
            LoadedLibrary("libllama.so", ENGINE.library),
        ),
        build=EngineBuildFacts("CPU : AVX2 = 1 | ", "0.26.0", "unknown"),
        wheel=WheelFacts("xllamacpp", "2026.10.11549", digest_of("record")),
        device=DeviceFacts("cpu", "x86_64", "Example CPU"),
        program=ProgramFacts("0.1.0", digest_of("sources"), "CPython 3.11.7"),
        environment=("GOMP_SPINCOUNT=1000", "LANG=C.UTF-8", "PYTHONPATH"),
    )


def family_facts(family: str) -> ModelFacts:
    """Return the facts of the small model of ``family``."""
    numbers = FAMILY_NUMBERS[family]
    return replace(
        example_facts(),
        architecture=numbers.architecture,
        layers=numbers.layers,
        embedding=numbers.embedding,
        vocabulary=numbers.vocabulary,
        experts=numbers.experts,
        experts_used=numbers.experts_used,
        shape=numbers.shape,
        weight_types=(WeightType("F32", 9, 1024), WeightType("Q8_0", 21, 99999)),
    )


def example_model(family: str = "llama") -> PinnedFacts:
    """Return a model without a profile."""
    return PinnedFacts(family_facts(family), digest_of("model"), 2**40, None)


def example_runtime() -> Runtime:
    """Return what ran it."""
    return Runtime(ENGINE, RUNTIME, example_platform(), CONTEXT)


def example_manifest(family: str = "llama") -> RuntimeManifest:
    """Return the manifest of a run of the small model of ``family``."""
    return build_manifest(example_model(family), example_runtime())


def example_manifest_facts() -> ManifestFacts:
    """Return the facts document of a manifest whose model's base is known."""
    facts = example_manifest().decoded_facts()
    files = (MetadataFile("config.json", digest_of("config")),)
    return replace(facts, base_metadata=files)


def example_profile_pin() -> ProfilePin:
    """Return a pin for the small model of the family llama."""
    model = digest_of("model").removeprefix("sha256:")
    return ProfilePin(
        schema=PROFILE_PIN_SCHEMA,
        profile_name="Example-Q8_0",
        model=_pinned_model(),
        base_artifact=BaseArtifact(
            repository="someone/Example",
            revision="0123456789abcdef0123456789abcdef01234567",
            download_scope=METADATA_ONLY,
            files=tuple(PinnedFile(name, None) for name in METADATA),
        ),
        inference_artifact=InferenceArtifact(
            "registry.example.org", "someone/example", "q8", model, 2**40, model
        ),
        runtime=PinnedRuntime(ENGINE.name, ENGINE.version),
    )


def _pinned_model() -> PinnedModel:
    return PinnedModel(
        architecture="LlamaForCausalLM",
        model_type="llama",
        gguf_architecture="llama",
        hidden_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=512,
        expert_count=0,
        experts_per_token=0,
        shared_expert_intermediate_size=0,
        full_attention_interval=0,
        linear_conv_kernel_dim=0,
        linear_key_head_dim=0,
        linear_value_head_dim=0,
        linear_num_key_heads=0,
        linear_num_value_heads=0,
        vocab_size=1000,
        max_position_embeddings=512,
        rope="RoPE",
        rope_theta=10000,
        partial_rotary_factor_millionths=1_000_000,
        dtype="bfloat16",
        quantization="Q8_0",
        parameters=123456,
    )


def example_base_metadata() -> BaseMetadata:
    """Return what a fetch for :func:`example_profile_pin` records."""
    pin = example_profile_pin()
    return BaseMetadata(
        schema=BASE_METADATA_SCHEMA,
        producer=PRODUCER,
        profile_name=pin.profile_name,
        repository=pin.base_artifact.repository,
        revision=pin.base_artifact.revision,
        files=tuple(
            MetadataRecord(name, digest_of(data.decode()).removeprefix("sha256:"), len(data))
            for name, data in METADATA.items()
        ),
    )


def manifest_documents() -> tuple[object, ...]:
    """Return one example of every document that has to do with manifests."""
    return example_manifest_facts(), example_profile_pin(), example_base_metadata()
