"""Dataset manifests: the rules between the fields, and what the digests cover."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.dataset import (
    DatasetManifest,
    Imagery,
    RunParameters,
    Split,
    bundle_digest,
    check_manifest,
    manifest_digest,
    read_manifest,
    task_digest,
    tile_path,
)
from tallystick.contracts.model_ref import ModelRef, check_model_ref, read_model_ref
from tallystick.errors import EvidenceError
from tests.support.documents import declared, example_manifest, example_model_ref

MANIFEST = example_manifest()
Edit = Callable[[DatasetManifest], DatasetManifest]


def imagery(**values: str) -> Edit:
    def edit(manifest: DatasetManifest) -> DatasetManifest:
        assert isinstance(manifest.imagery, Imagery)
        return replace(manifest, imagery=replace(manifest.imagery, **values))

    return edit


def tiles(*names: str) -> Edit:
    return lambda manifest: replace(manifest, splits=(Split("all", None, names),))


def files(*paths: str) -> Edit:
    return lambda manifest: replace(
        manifest, imagery=None, files=tuple(declared(path, 1) for path in sorted(paths))
    )


def task_files(*paths: str) -> Edit:
    def edit(manifest: DatasetManifest) -> DatasetManifest:
        task = replace(
            manifest.task,
            prompt_template=None,
            files=tuple(declared(path, 1) for path in sorted(paths)),
        )
        return replace(manifest, task=task, splits=())

    return edit


def run(edit: Callable[[RunParameters], RunParameters]) -> Edit:
    return lambda manifest: replace(manifest, run=edit(manifest.run))


def test_the_example_is_a_manifest() -> None:
    assert read_manifest(encode_bytes(MANIFEST)) == MANIFEST
    assert [file.path for file in MANIFEST.all_files()] == [
        "data/3/1/2.png",
        "data/3/1/6.png",
        "data/source.jsonl",
        "model.ref.json",
        "task/all.txt",
        "task/prompt.txt",
    ]


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (files("model.ref.json"), "files"),
        (files("data/a"), "model.ref"),
        (files("data/a", "model.ref.json", "manifest.json"), "two paths"),
        (files("data/a", "model.ref.json", "other/b"), "files"),
        (files("data/a", "model.ref.json", "task/b"), "files"),
        (files("data/a", "model.ref.json", "data/A"), "two paths"),
        (files("data/a", "model.ref.json", "data/../../b"), "files"),
        (task_files(), "task.files"),
        (task_files("data/a"), "task.files"),
        (lambda m: replace(m, task=replace(m.task, prompt_template="task/no")), "task.prompt"),
        (lambda m: replace(m, task=replace(m.task, prompt_template="data/3/1/2.png")), "task.prom"),
        (imagery(source_attestation="data/no"), "imagery.source_attestation"),
        (imagery(tiles="data/{z}/{x}.png"), "imagery.tiles"),
        (imagery(tiles="data/{z}/{x}/{y}/{y}.png"), "imagery.tiles"),
        (imagery(tiles="data/{z}/{x}/{y!r}.png"), "imagery.tiles"),
        (imagery(tiles="data/{z}/{x}/{y}.jpg"), "imagery.tiles"),
        (imagery(descriptions="data/{z}/{x}/{y}.txt"), "imagery.descriptions"),
        (tiles(), "tiles"),
        (tiles("3/1/6", "3/1/2"), "tiles"),
        (tiles("3/1/2", "3/1/2"), "tiles"),
        (tiles("3/1/8"), "tiles"),
        (tiles("31/0/0"), "tiles"),
        (tiles("3/1/7"), "imagery.tiles"),
        (lambda m: replace(m, splits=(Split("all", "data/no", ("3/1/2",)),)), "origin"),
        (run(lambda r: replace(r, seed=None)), "run.seed"),
        (run(lambda r: replace(r, temperature="0")), "run.seed"),
        (run(lambda r: replace(r, policy="sequential")), "run.temperature"),
        (run(lambda r: replace(r, evidence=("gemm", "states"))), "run.evidence"),
        (run(lambda r: replace(r, evidence=("gemm", "gemm"))), "run.evidence"),
    ],
)
def test_parts_that_do_not_go_together_are_refused_by_name(edit: Edit, field: str) -> None:
    with pytest.raises(EvidenceError) as caught:
        check_manifest(edit(MANIFEST))
    assert field in caught.value.message
    assert caught.value.expected is not None


def test_ten_comes_after_nine_among_tiles() -> None:
    check_manifest(replace(tiles("4/9/2", "4/10/1")(MANIFEST), imagery=None))
    with pytest.raises(EvidenceError, match="tiles"):
        check_manifest(replace(tiles("4/10/1", "4/9/2")(MANIFEST), imagery=None))


def test_bytes_that_are_not_canonical_are_refused() -> None:
    with pytest.raises(EvidenceError, match="canonical"):
        read_manifest(encode_bytes(MANIFEST) + b"\n")


def test_every_part_of_a_bundle_is_in_its_digest_and_only_the_task_in_the_task_s() -> None:
    raw = bytes.fromhex(manifest_digest(MANIFEST)[7:])
    whole = MANIFEST.all_files()
    digest, task = bundle_digest(raw, whole), task_digest(MANIFEST.task)
    first = whole[0]
    others = (
        replace(first, path="data/3/1/3.png"),
        replace(first, size=first.size + 1),
        replace(first, sha256="00" * 32),
    )
    found = {bundle_digest(raw, (other, *whole[1:])) for other in others}
    found |= {bundle_digest(bytes(32), whole), bundle_digest(raw, whole[1:]), digest}
    assert len(found) == 6
    renamed = replace(MANIFEST, name="another")
    assert manifest_digest(renamed) != manifest_digest(MANIFEST)
    assert task_digest(renamed.task) == task
    assert task_digest(replace(MANIFEST.task, files=MANIFEST.task.files[1:])) != task


def test_a_tile_s_path_comes_from_the_template() -> None:
    assert tile_path("data/{x}-{y}/{z}.png", "17/70406/42987") == "data/70406-42987/17.png"


def test_a_model_reference_names_no_file_of_a_machine_and_no_empty_one() -> None:
    ref = example_model_ref()
    assert read_model_ref(encode_bytes(ref)) == ref
    bad: list[ModelRef] = [replace(ref, size=0), replace(ref, sources=("file:/home/me/m.gguf",))]
    for changed in bad:
        with pytest.raises(EvidenceError, match="model reference: bad field"):
            check_model_ref(changed)
