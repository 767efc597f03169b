"""From a directory to a bundle: what is taken, what is refused, and what an error leaves."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tallystick.bundles import create as creating
from tallystick.bundles.check import check_bundle
from tallystick.bundles.create import create_bundle, media_type, model_ref
from tallystick.contracts.request import Chat
from tallystick.errors import InputError, UnavailableError
from tallystick.models.files import FileIdentity
from tallystick.models.registry import ModelFile
from tests.support.bundles import write_files
from tests.support.documents import digest_of, example_facts, example_pin

SETTINGS = b"""
name: village
imagery: {source: made up, license: CC0-1.0, attribution: nobody, tiles: 'data/{z}/{x}/{y}.png'}
splits:
  listed: {tiles: task/list.txt}
  area: {geometry: task/area.json}
model_sources: ['https://example.org/m.gguf']
run: {max_tokens: 9, temperature: '0.5', seed: 7, evidence: [states, gemm]}
"""
AREA = b'{"type":"Polygon","coordinates":[[[0,0],[90,0],[90,60],[0,60],[0,0]]]}'
SOURCE = {
    "data/2/2/1.png": b"in the area",
    "data/2/3/1.png": b"beside it",
    "task/prompt.txt": b"{tile}",
    "task/list.txt": b"2/3/1\n2/2/1\n",
    "task/area.json": AREA,
    "bundle.yaml": SETTINGS,
}
MODEL = ModelFile(
    Path("models/A Model.gguf"),
    digest_of("model"),
    99,
    None,
    example_facts(),
    FileIdentity(1, 2, 99, 3, 4),
)


@pytest.fixture(autouse=True)
def some_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creating, "resolve", lambda name, home, progress: MODEL)


def source(tmp_path: Path, **changes: bytes) -> Path:
    directory = tmp_path / "Some Source!"
    write_files(directory, {**SOURCE, **changes})
    return directory


def create(tmp_path: Path, directory: Path, name: str = "bundle") -> creating.CreatedBundle:
    return create_bundle(directory, tmp_path / name, "m", tmp_path / "home")


def test_a_bundle_declares_what_its_source_holds(tmp_path: Path) -> None:
    directory = source(tmp_path)
    write_files(directory, {"README.md": b"", ".git/config": b""})
    os.chmod(directory / "data/2/2/1.png", 0o755)
    made = create(tmp_path, directory)
    assert made.left_out == (".git", "README.md")
    assert check_bundle(tmp_path / "bundle") == made.bundle
    manifest = made.bundle.manifest
    assert [file.path for file in manifest.all_files()] == [
        "data/2/2/1.png",
        "data/2/3/1.png",
        "model.ref.json",
        "task/area.json",
        "task/list.txt",
        "task/prompt.txt",
    ]
    assert {split.name: split.tiles for split in manifest.splits} == {
        "area": ("2/2/1",),
        "listed": ("2/2/1", "2/3/1"),
    }
    assert (manifest.run.temperature, manifest.run.seed) == ("0.5", 7)
    assert manifest.files[0].media_type == "image/png"
    assert made.bundle.model_ref.name == "a-model"
    assert made.bundle.model_ref.sources == ("https://example.org/m.gguf",)
    assert (tmp_path / "bundle/data/2/2/1.png").stat().st_mode & 0o7777 == 0o644


def test_the_same_source_makes_the_same_bundle(tmp_path: Path) -> None:
    directory = source(tmp_path)
    first = create(tmp_path, directory, "a").bundle
    (tmp_path / "b").mkdir()
    second = create(tmp_path, directory, "b").bundle
    assert replace(second, directory=first.directory) == first


def test_without_settings_everything_has_a_default(tmp_path: Path) -> None:
    directory = source(tmp_path)
    (directory / "bundle.yaml").unlink()
    manifest = create(tmp_path, directory).bundle.manifest
    assert manifest.name == "some-source"
    assert manifest.task.prompt_template == "task/prompt.txt"
    assert manifest.imagery is None
    assert manifest.splits == ()
    assert (manifest.run.max_tokens, manifest.run.evidence) == (256, ("states",))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (b"nmae: x", "nmae"),
        (b"name: Bad Name", "name"),
        (b"- a", "not such a document"),
        (b"run: {max_tokens: 0}", "run.max_tokens"),
        (b"run: {temperature: 1}", "run.seed"),
        (b"run: {temperature: 0.5}", "line 1"),
        (b"run: {policy: fast}", "run.policy"),
        (b"run: {policy: sequential, temperature: '1', seed: 1}", "run.temperature"),
        (b"run: 7", "run"),
        (b"imagery: {source: s}", "imagery"),
        (b"imagery: {source: s, license: l, attribution: a, tiles: 'data/{z}.png'}", "imagery."),
        (b"splits: {a: {}}", "splits['a']"),
        (b"splits: {a: {tiles: task/list.txt, geometry: task/area.json}}", "splits['a']"),
        (b"splits: {a: {tiles: task/no.txt}}", "splits['a']"),
        (b"splits: {a: {tiles: ../list.txt}}", "splits['a']"),
        (b"splits: {A: {tiles: task/list.txt}}", "splits['A']"),
        (b"splits: {a: {tiles: task/prompt.txt}}", "task/prompt.txt"),
        (b"splits: {a: {geometry: task/list.txt, zoom: 2}}", "task/list.txt"),
        (b"splits: {a: {geometry: task/area.json}}", "no zoom"),
        (b"prompt_template: data/2/2/1.png", "task.prompt_template"),
        (b"prompt_template: task/no", "task.prompt_template"),
        (b"model_sources: [not a uri]", "model_sources"),
        (b"model_sources: ['file:/home/me/m.gguf']", "sources"),
        (b"name: &x a", "line 1"),
    ],
)
def test_settings_are_strict_and_name_the_key(settings: bytes, field: str, tmp_path: Path) -> None:
    directory = source(tmp_path, **{"bundle.yaml": settings})
    with pytest.raises(InputError) as caught:
        create(tmp_path, directory)
    assert field in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["Some Source!"]


def file_for_data(directory: Path) -> None:
    os.rename(directory / "data", directory / "old")
    (directory / "data").touch()


def linked_data(directory: Path) -> None:
    os.rename(directory / "data", directory / "old")
    (directory / "data").symlink_to("old")


def two_cases(directory: Path) -> None:
    (directory / "data/a").touch()
    (directory / "data/A").touch()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no data": (lambda d: os.rename(d / "data", d / "date"), "no data/"),
    "no task": (lambda d: os.rename(d / "task", d / "tusk"), "no task/"),
    "file for data": (file_for_data, "it is a file"),
    "empty directory": (lambda d: (d / "data/new").mkdir(), "empty directory"),
    "symbolic link": (lambda d: (d / "data/x").symlink_to("/etc/passwd"), "symbolic link"),
    "linked data": (linked_data, "symbolic link"),
    "hard link": (lambda d: os.link(d / "task/list.txt", d / "other"), "hard links"),
    "FIFO": (lambda d: os.mkfifo(d / "data/pipe"), "FIFO"),
    "newline": (lambda d: (d / "data/a\nb").touch(), "control"),
    "case": (two_cases, "take for one"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_source_that_makes_no_bundle_is_refused_and_nothing_is_left(
    name: str, tmp_path: Path
) -> None:
    directory = source(tmp_path)
    damage, problem = DAMAGES[name]
    damage(directory)
    with pytest.raises(InputError, match=problem):
        create(tmp_path, directory)
    assert sorted(os.listdir(tmp_path)) == ["Some Source!"]


def test_no_source_and_no_room(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no directory"):
        create(tmp_path, tmp_path / "none")
    directory = source(tmp_path)
    write_files(tmp_path / "full", {"file": b"mine"})
    with pytest.raises(UnavailableError, match="not empty"):
        create(tmp_path, directory, "full")
    with pytest.raises(UnavailableError, match="cannot write"):
        create(tmp_path, directory, "full/file/bundle")
    assert (tmp_path / "full/file").read_bytes() == b"mine"
    assert sorted(os.listdir(tmp_path)) == ["Some Source!", "full"]


@pytest.mark.parametrize(("asks", "clock"), [(True, 1_700_000_000), (False, None)])
def test_the_clock_of_a_chat_follows_the_model(
    asks: bool, clock: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = replace(example_facts(), template_uses_clock=asks)
    monkeypatch.setattr(creating, "resolve", lambda *_: replace(MODEL, facts=facts))
    directory = source(tmp_path, **{"bundle.yaml": b"run: {chat: {system: Be brief.}}"})
    made = create_bundle(directory, tmp_path / "b", "m", tmp_path, clock=lambda: 1_700_000_000.9)
    assert made.bundle.manifest.run.chat == Chat("Be brief.", clock)


def test_a_reference_names_public_sources_only() -> None:
    pin = example_pin()
    assert model_ref(replace(MODEL, pin=pin), ()).sources == (pin.source,)
    local = replace(MODEL, pin=replace(pin, source="file:/home/me/m.gguf"))
    assert model_ref(local, ("ipfs:x", "ipfs:x")).sources == ("ipfs:x",)


def test_media_types_come_from_our_own_list() -> None:
    found = [media_type(path) for path in ("a/B.PNG", "a.tar.gz", "a.png/b", ".txt")]
    assert found == ["image/png", *["application/octet-stream"] * 3]
