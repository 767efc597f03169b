"""The vectors of dataset bundles, read by the program and made by a second implementation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tallystick.bundles.splits import geometry_tiles
from tallystick.bundles.template import render, template_fields
from tallystick.canonical.hashing import sha256
from tallystick.contracts.codec import decode, encode_bytes
from tallystick.contracts.dataset import (
    DatasetManifest,
    bundle_digest,
    check_manifest,
    manifest_digest,
    task_digest,
)
from tallystick.contracts.paths import check_together, path_problem
from tallystick.errors import EvidenceError, InputError
from tests.golden import write_bundle_vectors
from tests.support.vectors import spec_vectors

VECTORS: Any = json.loads((spec_vectors() / "bundles.json").read_text(encoding="ascii"))


def test_the_file_is_what_the_second_implementation_makes() -> None:
    assert json.loads(json.dumps(write_bundle_vectors.vector())) == VECTORS


def test_digests() -> None:
    manifest = decode(DatasetManifest, VECTORS["manifest"])
    check_manifest(manifest)
    expected = VECTORS["expected"]
    raw = sha256(encode_bytes(manifest))
    assert manifest_digest(manifest) == expected["manifest_digest"]
    assert bundle_digest(raw, manifest.all_files()) == expected["bundle_digest"]
    assert task_digest(manifest.task) == expected["task_digest"]
    framing = bytes.fromhex(expected["task_framing"])
    assert f"sha256:{sha256(framing).hex()}" == expected["task_digest"]


def test_paths() -> None:
    paths = VECTORS["paths"]
    assert [path for path in paths["accepted"] if path_problem(path) is not None] == []
    assert [path for path in paths["refused"] if path_problem(path) is None] == []
    for pair in paths["refused_together"]:
        with pytest.raises(EvidenceError):
            check_together(pair, where="vectors")


def test_prompts() -> None:
    for case in VECTORS["prompts"]:
        assert render(case["template"], case["values"]) == case["prompt"]
    for template in VECTORS["bad_templates"]:
        with pytest.raises(InputError):
            template_fields(template)


def test_tiles_of_an_area() -> None:
    area = VECTORS["area"]
    data = json.dumps(area["geometry"]).encode()
    tiles = geometry_tiles(data, zoom=area["zoom"], candidates=None, where="vectors")
    assert list(tiles) == area["tiles"]
