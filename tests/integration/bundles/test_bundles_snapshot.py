"""What a run reads is what was declared, and nobody can change it afterwards."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tallystick.bundles import snapshot as snapshots
from tallystick.bundles.check import check_bundle
from tallystick.bundles.runs import declare_runs, write_runs
from tallystick.bundles.snapshot import snapshot
from tallystick.contracts.digests import derive_blind, request_body, request_digest
from tallystick.errors import EvidenceError, InputError, UnavailableError
from tallystick.queues.runfile import read_run
from tests.support.bundles import CONTENTS, manifest_of, with_template, write_bundle
from tests.support.documents import example_model_ref

KEY = bytes(range(32))
SEALS = hasattr(os, "memfd_create")


def test_the_task_is_copied_whole_and_sealed(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    bundle = check_bundle(tmp_path)
    with snapshot(bundle) as files:
        assert [file.path for file in files.files] == ["task/prompt.txt"]
        sealed = files["task/prompt.txt"]
        (tmp_path / "task/prompt.txt").write_bytes(b"another prompt")
        assert files.read("task/prompt.txt") == CONTENTS["task/prompt.txt"]
        assert os.read(sealed.descriptor, 999) == CONTENTS["task/prompt.txt"]
        if SEALS:
            with pytest.raises(PermissionError):
                os.pwrite(sealed.descriptor, b"x", 0)
            with pytest.raises(PermissionError):
                os.truncate(sealed.descriptor, 1)
            with pytest.raises(PermissionError):
                os.truncate(sealed.descriptor, 999)
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(sealed.descriptor)


def test_a_file_that_is_named_twice_is_held_once(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    bundle = check_bundle(tmp_path)
    path = "data/descriptions/3/1/2.txt"
    with snapshot(bundle, [path, path, "data/large.bin", "data/empty"]) as files:
        assert files.read(path) == b"a river"
        assert files.read("data/empty") == b""
        assert files.read("data/large.bin") == CONTENTS["data/large.bin"]
        assert len(files.files) == 3


@pytest.mark.parametrize("data", [b"x", b"x" * len(CONTENTS["task/prompt.txt"])])
def test_a_file_that_was_changed_since_the_check_is_refused(data: bytes, tmp_path: Path) -> None:
    write_bundle(tmp_path)
    bundle = check_bundle(tmp_path)
    before = len(os.listdir("/proc/self/fd")) if SEALS else 0
    (tmp_path / "task/prompt.txt").write_bytes(data)
    with pytest.raises(EvidenceError, match=r"task/prompt\.txt"):
        snapshot(bundle)
    (tmp_path / "task/prompt.txt").unlink()
    (tmp_path / "task/prompt.txt").symlink_to("/etc/passwd")
    with pytest.raises(EvidenceError, match="symbolic link"):
        snapshot(bundle)
    if SEALS:
        assert len(os.listdir("/proc/self/fd")) == before


def test_only_declared_files_and_not_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bundle(tmp_path)
    bundle = check_bundle(tmp_path)
    for path in ("../secret", "manifest.json", "data/no"):
        with pytest.raises(InputError, match="declares no such file"):
            snapshot(bundle, [path])
    monkeypatch.setattr(snapshots, "MAX_SNAPSHOT_BYTES", 1000)
    with pytest.raises(InputError, match="too much to hold"):
        snapshot(bundle, ["data/large.bin"])


def test_a_run_for_each_tile(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle")
    bundle = check_bundle(tmp_path / "bundle")
    runs = declare_runs(bundle, "all", commit_key=KEY)
    assert [run.tile for run in runs] == ["3/1/2", "3/1/6"]
    assert runs[0].run.prompt == "small all 3/1/2: a river"
    assert runs[1].run.prompt == "small all 3/1/6: a {tile}"
    for tile_run in runs:
        run = tile_run.run
        assert run.dataset.expectedDigest == bundle.bundle_digest
        assert run.task.expectedDigest == bundle.task_digest
        assert run.model.expectedDigest == run.model_digest == bundle.model_ref.digest
        assert run.model_path == bundle.model_ref.name
        assert bytes.fromhex(run.blind) == derive_blind(KEY, request_body(run))
        assert "river" not in repr(tile_run)
        assert run.blind not in repr(tile_run)
    paths = write_runs(runs, tmp_path / "runs")
    assert [path.name for path in paths] == ["all-3-1-2.json", "all-3-1-6.json"]
    assert [read_run(path) for path in paths] == [run.run for run in runs]
    assert {path.stat().st_mode & 0o777 for path in paths} == {0o600}
    assert (tmp_path / "runs").stat().st_mode & 0o777 == 0o700


def test_the_same_run_again_is_the_same_request(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    bundle = check_bundle(tmp_path)
    (first,) = declare_runs(bundle, "all", commit_key=KEY, tiles=["3/1/6"])
    (again,) = declare_runs(bundle, "all", commit_key=KEY, tiles=["3/1/6"], model_path="m.gguf")
    (other,) = declare_runs(bundle, "all", commit_key=bytes(32), tiles=["3/1/6"])
    assert first.run.run_id != again.run.run_id
    assert again.run.model_path == "m.gguf"
    assert request_digest(first.run) == request_digest(again.run)
    assert request_digest(first.run) != request_digest(other.run)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle")
    bundle = check_bundle(tmp_path / "bundle")
    with pytest.raises(InputError, match="no such split"):
        declare_runs(bundle, "none", commit_key=KEY)
    with pytest.raises(InputError, match="no such tile"):
        declare_runs(bundle, "all", commit_key=KEY, tiles=["3/1/7"])
    runs = declare_runs(bundle, "all", commit_key=KEY)
    (tmp_path / "full").mkdir(mode=0o700)
    (tmp_path / "full/file").touch()
    with pytest.raises(UnavailableError, match="not empty"):
        write_runs(runs, tmp_path / "full")
    with pytest.raises(UnavailableError, match="cannot write"):
        write_runs(runs, tmp_path / "full/file/runs")
    assert os.listdir(tmp_path / "full") == ["file"]


@pytest.mark.parametrize("template", [b"{", b"\xff", b"", b"x\x00", b"{description"])
def test_templates_that_cannot_be_rendered_are_refused(template: bytes, tmp_path: Path) -> None:
    write_bundle(tmp_path, with_template(template))
    with pytest.raises(InputError):
        declare_runs(check_bundle(tmp_path), "all", commit_key=KEY)


def test_a_bundle_without_descriptions_or_template_says_so(tmp_path: Path) -> None:
    bare = replace(manifest_of(CONTENTS, example_model_ref()), imagery=None)
    write_bundle(tmp_path / "a", CONTENTS, bare)
    with pytest.raises(InputError, match="asks for a description"):
        declare_runs(check_bundle(tmp_path / "a"), "all", commit_key=KEY)
    none = replace(bare, task=replace(bare.task, prompt_template=None))
    write_bundle(tmp_path / "b", CONTENTS, none)
    with pytest.raises(InputError, match="no prompt template"):
        declare_runs(check_bundle(tmp_path / "b"), "all", commit_key=KEY)


def test_a_description_that_was_swapped_is_refused(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    bundle = check_bundle(tmp_path)
    (tmp_path / "data/descriptions/3/1/2.txt").write_bytes(b"a house")
    with pytest.raises(EvidenceError, match=r"descriptions/3/1/2\.txt"):
        declare_runs(bundle, "all", commit_key=KEY)
