"""Pins and calibrations on disk: atomic, bounded, and never trusted further than they go."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tallystick.canonical.json import jcs
from tallystick.contracts.codec import encode, encode_bytes
from tallystick.contracts.model import Calibration, ExactCombination, ModelFacts, ModelPin
from tallystick.contracts.runtime import EngineBuild, RowClass
from tallystick.errors import IncomparableError, InputError, UnavailableError
from tallystick.models import calibrations
from tallystick.models.listing import list_models
from tallystick.models.registry import (
    find_pin,
    path_for_pin,
    pin_path,
    pinned_digest,
    replace_document,
    require_loadable,
    save_pin,
)

A, B, C = (f"sha256:{letter * 64}" for letter in "abc")

FACTS = ModelFacts(
    schema="tallystick.model-facts/v2",
    gguf_version=3,
    architecture="llama",
    name="",
    layers=1,
    embedding=1,
    context_train=1,
    vocabulary=1,
    experts=0,
    experts_used=0,
    shape=None,
    parameters=2**40,
    tensors=1,
    weight_types=(),
    tokenizer_model="",
    tokenizer_digest=A,
    chat_template_digest=None,
    template_uses_clock=False,
    needs_normalising=(),
)
PIN = ModelPin(
    schema="tallystick.model-pin/v2",
    producer="tallystick",
    name="tiny",
    path="tiny.gguf",
    digest=A,
    size=2**40,
    source="file:/x",
    derived_from=None,
    transform=None,
    facts=FACTS,
)
CALIBRATION = Calibration(
    schema="tallystick.calibration/v1",
    producer="tallystick",
    model_digest=A,
    engine=EngineBuild("e", "1", B),
    fingerprint=C,
    suite="1",
    layers=1,
    combinations=(ExactCombination((), RowClass(2, 512), 1, 1),),
)


def test_a_pin_comes_back(tmp_path: Path) -> None:
    assert find_pin("tiny", tmp_path) is None
    assert save_pin(PIN, tmp_path) == PIN
    assert find_pin("tiny", tmp_path) == PIN
    path = tmp_path / "models" / "tiny.json"
    assert path.read_bytes() == encode_bytes(PIN)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["tiny.json"]


def test_an_equal_pin_is_not_rewritten(tmp_path: Path) -> None:
    save_pin(PIN, tmp_path)
    before = (tmp_path / "models" / "tiny.json").stat()
    save_pin(PIN, tmp_path)
    after = (tmp_path / "models" / "tiny.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_name_is_not_given_away(tmp_path: Path) -> None:
    save_pin(PIN, tmp_path)
    with pytest.raises(InputError, match="is taken"):
        save_pin(replace(PIN, digest=B), tmp_path)
    assert find_pin("tiny", tmp_path) == PIN
    moved = replace(PIN, path="/elsewhere/tiny.gguf")
    assert save_pin(moved, tmp_path) == moved == find_pin("tiny", tmp_path)


@pytest.mark.parametrize("text", ["", ".", "..", "Tiny", "a/b", "/x", "tiny.gguf\n", "x" * 101])
def test_what_cannot_be_a_name_is_no_pin(text: str, tmp_path: Path) -> None:
    save_pin(PIN, tmp_path)
    assert find_pin(text, tmp_path) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"null",
        b"\xff\xfe",
        encode_bytes(PIN) + b"\n",
        encode_bytes(PIN)[:-1],
        encode_bytes(replace(PIN, name="other")),
        encode_bytes(PIN).replace(b'"size"', b'"sise"'),
        b"[" * 5_000_000,
    ],
)
def test_a_damaged_pin_is_said_to_be_so(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny.json").write_bytes(data)
    with pytest.raises(InputError, match="is damaged") as caught:
        find_pin("tiny", tmp_path)
    assert "add the model again" in (caught.value.hint or "")
    assert [(m.name, m.state, m.pin) for m in list_models(tmp_path)] == [("tiny", "damaged", None)]


def earlier_pin() -> bytes:
    """Return PIN as the first version of its schema had it: facts without a shape."""
    document: Any = encode(PIN)
    document["schema"] = "tallystick.model-pin/v1"
    document["facts"]["schema"] = "tallystick.model-facts/v1"
    del document["facts"]["shape"]
    return jcs(document)


def test_a_pin_of_the_earlier_version_is_said_to_be_so_and_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "models" / "tiny.json"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(earlier_pin())
    with pytest.raises(InputError, match="earlier version") as caught:
        find_pin("tiny", tmp_path)
    assert caught.value.hint == (
        f"make it anew: tallystick model add {path.parent / 'tiny.gguf'} --name tiny"
    )
    assert pinned_digest("tiny", tmp_path) == A
    with pytest.raises(InputError, match="is taken"):
        save_pin(replace(PIN, digest=B), tmp_path)
    assert path.read_bytes() == earlier_pin()
    assert save_pin(PIN, tmp_path) == PIN == find_pin("tiny", tmp_path)
    assert pinned_digest("tiny", tmp_path) == A
    assert pinned_digest("other", tmp_path) is None


def test_an_earlier_schema_alone_makes_no_earlier_pin(tmp_path: Path) -> None:
    path = tmp_path / "models" / "tiny.json"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(b'{"digest":1,"path":"x","schema":"tallystick.model-pin/v1"}')
    with pytest.raises(InputError, match="is damaged"):
        find_pin("tiny", tmp_path)
    with pytest.raises(InputError, match="is damaged"):
        save_pin(PIN, tmp_path)


def test_a_pin_that_is_a_directory_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "models" / "tiny.json").mkdir(parents=True)
    with pytest.raises(InputError, match="cannot read"):
        find_pin("tiny", tmp_path)


def test_states_of_listed_models(tmp_path: Path) -> None:
    assert list_models(tmp_path) == ()
    for name, size in (("b", 3), ("a", 4), ("c", 5)):
        save_pin(replace(PIN, name=name, path=f"{name}.gguf", size=size), tmp_path)
    (tmp_path / "models" / "a.gguf").write_bytes(b"1234")
    (tmp_path / "models" / "b.gguf").write_bytes(b"1234")
    (tmp_path / "models" / "NOT A NAME.json").write_bytes(b"{}")
    assert [(m.name, m.state) for m in list_models(tmp_path)] == [
        ("a", "present"),
        ("b", "resized"),
        ("c", "missing"),
    ]


def test_paths_inside_the_folder_are_relative_and_move_with_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    inside, outside = home / "models" / "x.gguf", tmp_path / "x.gguf"
    assert path_for_pin(inside, home) == "x.gguf"
    assert path_for_pin(outside, home) == str(outside)
    assert path_for_pin(home / "models" / "below" / "x.gguf", home).startswith("/")
    (tmp_path / "link").symlink_to(home)
    assert path_for_pin(tmp_path / "link" / "models" / "x.gguf", home) == "x.gguf"
    assert path_for_pin(inside, tmp_path / "link") == "x.gguf"
    assert pin_path(replace(PIN, path="x.gguf"), tmp_path / "new") == tmp_path / "new/models/x.gguf"
    assert pin_path(replace(PIN, path=str(outside)), home) == outside


def test_a_full_disk_leaves_the_old_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d" / "x.json"
    replace_document(path, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UnavailableError):
        replace_document(path, b"new")
    assert [p.name for p in path.parent.iterdir()] == ["x.json"]
    assert path.read_bytes() == b"old"


def test_loadable_or_why_not() -> None:
    require_loadable(FACTS, Path("/m.gguf"))
    facts = replace(FACTS, needs_normalising=("one reason", "another"))
    with pytest.raises(IncomparableError) as caught:
        require_loadable(facts, Path("/m.gguf"))
    assert caught.value.found == "one reason; another"
    with pytest.raises(IncomparableError) as caught:
        require_loadable(facts, Path("/my models/m.gguf"))
    assert "add '/my models/m.gguf' --normalise" in (caught.value.hint or "")


def test_a_calibration_comes_back(tmp_path: Path) -> None:
    assert calibrations.load(tmp_path, A, B, C) is None
    assert calibrations.examine(tmp_path, A, B, C).ignored is None
    path = calibrations.save(tmp_path, CALIBRATION)
    assert path.name == f"{'a' * 64}.{'b' * 16}.{'c' * 16}.json"
    assert calibrations.load(tmp_path, A, B, C) == CALIBRATION
    assert calibrations.load(tmp_path, A, B, A) is None
    newer = replace(CALIBRATION, suite="2")
    calibrations.save(tmp_path, newer)
    assert calibrations.load(tmp_path, A, B, C) == newer


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "calibration: "),
        (b"{", "calibration: "),
        (encode_bytes(CALIBRATION)[:-2], "calibration: "),
        (encode_bytes(PIN), "calibration: "),
        (encode_bytes(replace(CALIBRATION, model_digest=B)), "another model"),
        (encode_bytes(replace(CALIBRATION, fingerprint=B)), "another model"),
        (encode_bytes(replace(CALIBRATION, engine=EngineBuild("e", "1", A))), "another model"),
        (encode_bytes(replace(CALIBRATION, combinations=())), "no exact combination"),
        (b" " * 100_000, "calibration: "),
    ],
)
def test_an_unusable_calibration_is_ignored_with_a_reason(
    data: bytes, reason: str, tmp_path: Path
) -> None:
    path = calibrations.save(tmp_path, CALIBRATION)
    path.write_bytes(data)
    found = calibrations.examine(tmp_path, A, B, C)
    assert found.calibration is None
    assert reason in (found.ignored or "")
    calibrations.save(tmp_path, CALIBRATION)
    assert calibrations.load(tmp_path, A, B, C) == CALIBRATION


def test_a_calibration_that_is_a_directory_is_ignored(tmp_path: Path) -> None:
    calibrations.calibration_path(tmp_path, A, B, C).mkdir(parents=True)
    assert "cannot be read" in (calibrations.examine(tmp_path, A, B, C).ignored or "")
