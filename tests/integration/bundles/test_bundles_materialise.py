"""A run over a bundle is held against the bundle on disk, before a model is even looked at."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tallystick
from tallystick.attest.keys import SigningKey
from tallystick.attest.source import sign_source
from tallystick.bundles import materialise as materialising
from tallystick.bundles.check import CheckedBundle, check_bundle, named_bundle
from tallystick.bundles.materialise import find_bundle, materialise
from tallystick.bundles.prompts import split_of
from tallystick.bundles.runs import declare_runs, declare_whole
from tallystick.contracts.dataset import tile_set
from tallystick.contracts.request import ExpectedDigest, InferenceRun
from tallystick.contracts.source import SourceFile
from tallystick.errors import EvidenceError, InputError, TallystickError
from tallystick.worker import run as running
from tallystick.worker.run import Place, run_declared
from tallystick.worker.tiles import run_bundle
from tests.support.bundles import (
    CONTENTS,
    IMAGERY,
    manifest_of,
    with_template,
    write_bundle,
)
from tests.support.documents import digest_of, example_model_ref

COMMIT_KEY = bytes(range(32))
TILE = "3/1/2"
OTHER = ExpectedDigest(digest_of("another"))
PROVIDER = SigningKey.from_seed(bytes(range(9, 41)))
ATTESTED = "data/source.intoto.json"


@pytest.fixture
def bundle(tmp_path: Path) -> CheckedBundle:
    write_bundle(tmp_path / "bundle")
    return check_bundle(tmp_path / "bundle")


def run_of(bundle: CheckedBundle, **changes: Any) -> InferenceRun:
    (declared,) = declare_runs(bundle, "all", commit_key=COMMIT_KEY, tiles=[TILE])
    return replace(declared.run, **changes)


def refused(
    run: InferenceRun, directories: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> TallystickError:
    """Return why ``run`` is refused; nothing is looked for, opened or started before."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a model was looked for, or an engine started")

    for name in ("find_engine", "resolve", "open_model", "prepare_class", "execute"):
        monkeypatch.setattr(running, name, never)
    place = Place(bundles=directories, home=directories[0].parent / "no home")
    with pytest.raises(TallystickError) as caught:
        run_declared("no-such-model", run, place=place)
    assert not (directories[0].parent / "no home").exists()
    assert run.prompt not in " ".join(caught.value.lines())
    return caught.value


def test_a_run_finds_its_bundle_and_its_prompt(bundle: CheckedBundle, tmp_path: Path) -> None:
    run = run_of(bundle)
    assert (run.prompt_path, run.split, run.tile) == ("task/prompt.txt", "all", TILE)
    elsewhere = (tmp_path / "missing", tmp_path, bundle.directory)
    assert named_bundle(bundle.directory) == bundle.bundle_digest
    found = materialise(run, find_bundle(run.dataset.expectedDigest, elsewhere))
    assert found.prompt is not None
    assert found.prompt.text == run.prompt == "small all 3/1/2: a river"
    assert found.manifest_digest == bundle.manifest_digest
    assert found.source is None


CASES: dict[str, tuple[dict[str, Any], type[TallystickError], str]] = {
    "another bundle": ({"dataset": OTHER}, InputError, "bundle is not here"),
    "another task": ({"task": OTHER}, EvidenceError, "the task digest materialised"),
    "another model": (
        {"model": OTHER, "model_digest": OTHER.expectedDigest},
        EvidenceError,
        "the model digest materialised",
    ),
    "two models": ({"model": OTHER}, InputError, "two models"),
    "another prompt": ({"prompt": "a secret of mine"}, EvidenceError, "another prompt"),
    "another tile's prompt": ({"tile": "3/1/6"}, EvidenceError, "another prompt"),
    "a tile that is not in the split": ({"tile": "3/1/5"}, InputError, "no such tile"),
    "a split that is not there": ({"split": "none"}, InputError, "no such split"),
    "a template that is not there": ({"prompt_path": "task/no.txt"}, InputError, "no such"),
    "data for a template": (
        {"prompt_path": "data/descriptions/3/1/2.txt"},
        InputError,
        "no such template",
    ),
    "no prompt path": ({"prompt_path": None}, InputError, "prompt_path"),
    "no tile": ({"tile": None}, InputError, "split and tile"),
}


@pytest.mark.parametrize(("changes", "kind", "words"), CASES.values(), ids=CASES)
def test_a_wrong_declaration_never_looks_for_a_model(
    bundle: CheckedBundle,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    kind: type[TallystickError],
    words: str,
) -> None:
    error = refused(run_of(bundle, **changes), (bundle.directory,), monkeypatch)
    assert isinstance(error, kind)
    assert words in error.message


TOUCHES: dict[str, Callable[[Path], object]] = {
    "the template": lambda place: (place / "task/prompt.txt").write_bytes(b"{tile}: other"),
    "one bit of data": lambda place: (place / "data/large.bin").write_bytes(
        b"\1" + CONTENTS["data/large.bin"][1:]
    ),
    "a file more": lambda place: (place / "data/more").write_bytes(b""),
    "a file less": lambda place: (place / "data/empty").unlink(),
    "a link": lambda place: (place / "data/link").symlink_to("/dev/null"),
}


@pytest.mark.parametrize("touch", TOUCHES.values(), ids=TOUCHES)
def test_a_touched_bundle_never_looks_for_a_model(
    bundle: CheckedBundle, monkeypatch: pytest.MonkeyPatch, touch: Callable[[Path], object]
) -> None:
    run = run_of(bundle)
    touch(bundle.directory)
    error = refused(run, (bundle.directory,), monkeypatch)
    assert isinstance(error, EvidenceError)
    assert error.message.startswith("bundle: ")


@pytest.mark.parametrize("path", ["task/prompt.txt", "data/descriptions/3/1/2.txt"])
def test_a_file_that_changes_between_check_and_read_is_refused(
    bundle: CheckedBundle, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    run = run_of(bundle)

    def check_and_change(directory: Path) -> CheckedBundle:
        checked = check_bundle(directory)
        place = directory / path
        place.write_bytes(place.read_bytes().swapcase())  # of the same size
        return checked

    monkeypatch.setattr(materialising, "check_bundle", check_and_change)
    error = refused(run, (bundle.directory,), monkeypatch)
    assert isinstance(error, EvidenceError)
    assert path in error.message


def test_a_linked_directory_is_no_bundle(
    bundle: CheckedBundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = run_of(bundle)
    (tmp_path / "link").symlink_to(bundle.directory)
    error = refused(run, (tmp_path / "link",), monkeypatch)
    assert isinstance(error, InputError)
    assert "bundle is not here" in error.message
    assert str(error.found).startswith("not among the bundle directories given (1); ")


def test_of_two_copies_the_first_counts(bundle: CheckedBundle, tmp_path: Path) -> None:
    run, copy = run_of(bundle), tmp_path / "copy"
    shutil.copytree(bundle.directory, copy)
    digest = run.dataset.expectedDigest
    assert find_bundle(digest, (copy, bundle.directory)).directory == copy
    (copy / "data/more").write_bytes(b"")
    with pytest.raises(EvidenceError, match="data/more"):
        find_bundle(digest, (copy, bundle.directory))
    assert find_bundle(digest, (bundle.directory, copy)).directory == bundle.directory


def test_a_prompt_about_the_whole_bundle(tmp_path: Path) -> None:
    write_bundle(tmp_path / "whole", with_template(b"What is in {dataset}?"))
    bundle = check_bundle(tmp_path / "whole")
    run = declare_whole(bundle, commit_key=COMMIT_KEY)
    assert (run.prompt, run.split, run.tile) == ("What is in small?", None, None)
    assert materialise(run, bundle).prompt is not None
    write_bundle(tmp_path / "tiles")
    with pytest.raises(InputError, match="asks for a"):
        declare_whole(check_bundle(tmp_path / "tiles"), commit_key=COMMIT_KEY)


def test_the_split_of_a_tile(bundle: CheckedBundle) -> None:
    assert split_of(bundle, TILE) == "all"
    with pytest.raises(InputError, match="in 0 splits"):
        split_of(bundle, "3/1/1")
    with pytest.raises(InputError):
        run_bundle("m", bundle.directory, tile="3/1/1", place=Place(home=bundle.directory.parent))


def attested_bundle(place: Path, attestation: Callable[[CheckedBundle], bytes]) -> None:
    """Write a bundle that carries the attestation which is made for its data."""
    ref = example_model_ref()
    imagery = replace(IMAGERY, source_attestation=ATTESTED)
    write_bundle(place / "bare")
    contents = {**CONTENTS, ATTESTED: attestation(check_bundle(place / "bare"))}
    manifest = replace(manifest_of(contents, ref), imagery=imagery)
    write_bundle(place / "attested", contents, manifest)


def attest(bundle: CheckedBundle, license_text: str = "CC0-1.0", leave_out: int = 0) -> bytes:
    files = [SourceFile(f.path, f.sha256, f.size) for f in tile_set(bundle.manifest)]
    return sign_source(files[leave_out:], license_text, "made up", PROVIDER)


def test_an_attestation_goes_with_its_bundle(tmp_path: Path) -> None:
    attested_bundle(tmp_path, attest)
    bundle = check_bundle(tmp_path / "attested")
    assert bundle.source is not None
    assert bundle.source.envelope == attest(check_bundle(tmp_path / "bare"))
    assert bundle.tile_set_digest == check_bundle(tmp_path / "bare").tile_set_digest
    found = materialise(run_of(bundle), bundle)
    assert found.source is bundle.source
    assert bundle.source.tile_set_digest == bundle.tile_set_digest
    assert bundle.source.license == IMAGERY.license


BAD_SOURCES: dict[str, Callable[[CheckedBundle], bytes]] = {
    "another tile set": lambda bundle: attest(bundle, leave_out=1),
    "another licence": lambda bundle: attest(bundle, "CC-BY-4.0"),
    "no attestation at all": lambda _: b"{}",
    "two lines": lambda bundle: attest(bundle) + b"\n",
    "nothing": lambda _: b"",
}


@pytest.mark.parametrize("attestation", BAD_SOURCES.values(), ids=BAD_SOURCES)
def test_a_bundle_with_another_s_attestation_never_looks_for_a_model(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    attestation: Callable[[CheckedBundle], bytes],
) -> None:
    attested_bundle(tmp_path, attestation)
    run = run_of(check_bundle(tmp_path / "bare"))
    digest = ExpectedDigest(named_bundle(tmp_path / "attested"))
    error = refused(replace(run, dataset=digest), (tmp_path / "attested",), monkeypatch)
    assert isinstance(error, EvidenceError)


@pytest.mark.parametrize("attestation", BAD_SOURCES.values(), ids=BAD_SOURCES)
def test_the_public_check_refuses_it_too(
    tmp_path: Path, attestation: Callable[[CheckedBundle], bytes]
) -> None:
    attested_bundle(tmp_path, attestation)
    assert tallystick.check_bundle(tmp_path / "bare").source is None
    with pytest.raises(EvidenceError):
        tallystick.check_bundle(tmp_path / "attested")
