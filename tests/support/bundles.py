"""Small bundles on disk, made without a model file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tallystick.bundles.create import media_type
from tallystick.canonical.hashing import sha256
from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.dataset import (
    MANIFEST_FILE,
    MANIFEST_SCHEMA,
    MODEL_REF_FILE,
    TASK,
    DatasetManifest,
    DeclaredFile,
    DeclaredModel,
    Imagery,
    RunParameters,
    Split,
    Task,
)
from tallystick.contracts.model_ref import ModelRef
from tallystick.contracts.request import PRODUCER
from tests.support.documents import example_model_ref

CONTENTS: Mapping[str, bytes] = {
    "data/.hidden/.keep": b"dot-files are files",
    "data/descriptions/3/1/2.txt": b"a river",
    "data/descriptions/3/1/6.txt": b"a {tile}",
    "data/empty": b"",
    "data/large.bin": bytes(range(256)) * 4096,
    "task/prompt.txt": b"{dataset} {split} {tile}: {description}",
}
IMAGERY = Imagery("made up", "CC0-1.0", "nobody", None, "data/descriptions/{z}/{x}/{y}.txt", None)
PARAMETERS = RunParameters(None, 4, "0", None, "row-class", ("states",), "private", "none", "none")


def declared_file(path: str, data: bytes) -> DeclaredFile:
    return DeclaredFile(path, sha256(data).hex(), len(data), media_type(path))


def manifest_of(contents: Mapping[str, bytes], ref: ModelRef) -> DatasetManifest:
    """Return the manifest that declares ``contents`` and ``ref``."""
    whole = {**contents, MODEL_REF_FILE: encode_bytes(ref)}
    files = [declared_file(path, whole[path]) for path in sorted(whole)]
    return DatasetManifest(
        schema=MANIFEST_SCHEMA,
        producer=PRODUCER,
        name="small",
        imagery=IMAGERY,
        splits=(Split("all", None, ("3/1/2", "3/1/6")),),
        files=tuple(file for file in files if not file.path.startswith(TASK)),
        task=Task("task/prompt.txt", tuple(f for f in files if f.path.startswith(TASK))),
        model=DeclaredModel(MODEL_REF_FILE, ref.digest),
        run=PARAMETERS,
    )


def write_files(directory: Path, contents: Mapping[str, bytes]) -> None:
    for path, data in contents.items():
        place = directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        os.chmod(place, 0o644)


def write_bundle(
    directory: Path,
    contents: Mapping[str, bytes] = CONTENTS,
    manifest: DatasetManifest | None = None,
) -> DatasetManifest:
    """Write a bundle into ``directory`` and return its manifest."""
    ref = example_model_ref()
    if manifest is None:
        manifest = manifest_of(contents, ref)
    documents = {MODEL_REF_FILE: encode_bytes(ref), MANIFEST_FILE: encode_bytes(manifest)}
    write_files(directory, {**contents, **documents})
    return manifest


def with_template(template: bytes) -> dict[str, bytes]:
    return {**CONTENTS, "task/prompt.txt": template}


def without_descriptions(manifest: DatasetManifest) -> DatasetManifest:
    return replace(manifest, imagery=None)
