"""The vectors of runtime manifests: the project and a second implementation both give them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tallystick.compute.manifest import verify_manifest
from tallystick.contracts.codec import decode
from tallystick.contracts.manifest import RuntimeManifest
from tallystick.contracts.model import ModelFacts
from tallystick.contracts.platform import PlatformFacts
from tallystick.contracts.runtime import EngineBuild, RuntimeClass
from tallystick.models.manifest import PinnedFacts, Runtime, build_manifest
from tests.golden import write_manifest_vectors
from tests.support.vectors import spec_vectors

VECTORS: Any = json.loads((spec_vectors() / "manifest.json").read_text(encoding="utf-8"))


def test_the_second_implementation_gives_the_vectors() -> None:
    assert write_manifest_vectors.vectors() == VECTORS


@pytest.mark.parametrize(
    "vector", VECTORS["manifests"], ids=lambda vector: str(vector["model_facts"]["architecture"])
)
def test_a_manifest_is_built_and_read(vector: dict[str, Any]) -> None:
    facts = decode(ModelFacts, vector["model_facts"])
    model = PinnedFacts(facts, vector["model_digest"], int(vector["model_bytes"]), None)
    runtime = Runtime(
        decode(EngineBuild, vector["engine"]),
        decode(RuntimeClass, vector["runtime_class"]),
        decode(PlatformFacts, vector["platform"]),
        vector["context_tokens"],
    )

    built = build_manifest(model, runtime)

    gives = vector["gives"]
    for name in ("model_profile", "runtime_class", "shape_profile"):
        assert getattr(built, name).canonical_bytes.hex() == gives[name]
    assert built.canonical_bytes.hex() == gives["manifest"]
    for name in (
        "model_profile_id",
        "runtime_class_id",
        "shape_profile_id",
        "runtime_manifest_hash",
    ):
        assert getattr(built, name).hex() == gives[name]
    read = RuntimeManifest.decode_strict(bytes.fromhex(gives["manifest"]))
    assert read == built
    assert verify_manifest(read).name == facts.architecture
