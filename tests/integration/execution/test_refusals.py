"""What cannot be compared is never judged (exit 3); what is not the same file is never loaded."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tallystick.audit import replay as replaying
from tallystick.contracts.runtime import Knob, RowClass
from tallystick.errors import EvidenceError, IncomparableError, InputError
from tallystick.models.registry import resolve
from tallystick.receipts.files import load_trust, verify_paths
from tests.support.runs import EngineHome, HonestRun, replay_forgery, write_forgery
from tests.support.sets import SIGNER, TRUST, fake_digest

Endless = Callable[[str], Path]

PROMPT = "A tally stick is split in two."


@pytest.fixture(scope="module")
def model(endless_model: Endless) -> Path:
    return endless_model("llama-q8_0")


@pytest.fixture(scope="module")
def honest(engine_home: EngineHome, model: Path) -> HonestRun:
    return HonestRun.load(engine_home.run(model, PROMPT, 4).directory)


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a child process is a failure of the test."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("a child process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)


@pytest.mark.usefixtures("no_child")
def test_another_model_is_refused_before_anything_is_loaded(
    honest: HonestRun, toy_model: Endless, engine_home: EngineHome, tmp_path: Path
) -> None:
    with pytest.raises(EvidenceError, match="the model is not the one of the receipt") as caught:
        replay_forgery(engine_home, honest.resign(), tmp_path / "set", toy_model("llama-q4_0"))
    assert caught.value.exit_code == 1
    assert caught.value.expected == honest.receipt.core.model_digest


@pytest.mark.usefixtures("no_child")
@pytest.mark.parametrize("place", [0.0, 0.5, 0.999])
@pytest.mark.parametrize(
    "suffix",
    [
        ".geoai.json",
        ".exec.json",
        ".telemetry.jsonl",
        ".intoto.jsonl",
        ".palw",
        ".json",
        ".palw.bundle",
        ".complete",
    ],
)
def test_one_edited_byte(
    suffix: str,
    place: float,
    honest: HonestRun,
    model: Path,
    engine_home: EngineHome,
    tmp_path: Path,
) -> None:
    directory = write_forgery(honest.resign(), tmp_path / "set")
    path = next(path for path in directory.iterdir() if path.name[32:] == suffix)
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 1
    path.write_bytes(data)
    with pytest.raises(EvidenceError) as caught:
        engine_home.replay(directory, model, trust=TRUST)
    assert caught.value.exit_code == 1
    # Without trust too: the digests of the marker do not need a signature.
    with pytest.raises(EvidenceError) as caught:
        engine_home.replay(directory, model)
    named = str(caught.value)
    assert suffix in named or "marker" in named or "set" in named


def test_verify_names_the_edited_file(honest: HonestRun, tmp_path: Path) -> None:
    directory = write_forgery(honest.resign(), tmp_path / "set")
    key = tmp_path / "key.pem"
    key.write_text(SIGNER.public.pem())
    trust = load_trust([key], None)
    assert verify_paths([directory], trust).exit_code == 0
    path = next(directory.glob("*.telemetry.jsonl"))
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    assert verify_paths([directory], trust).exit_code == 1


def test_another_engine_build(
    honest: HonestRun, model: Path, engine_home: EngineHome, tmp_path: Path
) -> None:
    runtime = replace(honest.receipt.core.runtime_class, engine_library=fake_digest("library"))
    with pytest.raises(IncomparableError, match="another engine build") as caught:
        replay_forgery(engine_home, honest.resign(runtime_class=runtime), tmp_path / "set", model)
    assert caught.value.exit_code == 3
    assert fake_digest("library") in str(caught.value.expected)
    assert honest.receipt.core.engine.library in str(caught.value.found)


@pytest.mark.parametrize("changes", [{"name": "another engine"}, {"version": "0"}])
def test_a_false_name_for_the_same_engine(
    changes: dict[str, Any], honest: HonestRun, model: Path, engine_home: EngineHome, tmp_path: Path
) -> None:
    with pytest.raises(EvidenceError, match="a name or version that it does not have") as caught:
        replay_forgery(engine_home, honest.resign(**changes), tmp_path / "set", model)
    assert caught.value.exit_code == 1


def test_another_file_in_the_model_s_place(
    honest: HonestRun,
    model: Path,
    toy_model: Endless,
    engine_home: EngineHome,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = resolve(str(toy_model("llama-q4_0")), engine_home.path)
    monkeypatch.setattr(replaying, "resolve", lambda *_: other)
    with pytest.raises(EvidenceError, match="the model is not the one of the receipt") as caught:
        replay_forgery(engine_home, honest.resign(), tmp_path / "set", model)
    assert caught.value.found == other.digest


def test_another_fingerprint_names_the_part(
    honest: HonestRun, model: Path, engine_home: EngineHome, tmp_path: Path
) -> None:
    parts = honest.receipt.observed.host.fingerprint_parts
    runtime = replace(honest.receipt.core.runtime_class, fingerprint=fake_digest("fingerprint"))
    facts = honest.facts(fingerprint_parts=(*parts[:-1], replace(parts[-1], digest="0" * 16)))
    forged = honest.resign(runtime_class=runtime, facts=facts)
    with pytest.raises(IncomparableError, match="other bits than the receipt's") as caught:
        replay_forgery(engine_home, forged, tmp_path / "set", model)
    assert caught.value.exit_code == 3
    assert str(caught.value.found).endswith(f"differing parts: {parts[-1].name}")


@pytest.mark.parametrize("change", ["floor", "high floor", "rows", "knob", "other knob"])
def test_another_row_class(
    change: str, honest: HonestRun, model: Path, engine_home: EngineHome, tmp_path: Path
) -> None:
    known = honest.receipt.core.runtime_class
    row_class = known.decode_class
    if change == "floor":
        assert row_class.floor > 1, "where single rows are exact, this test means nothing"
        row_class = RowClass(1, row_class.max_rows)
    elif change == "high floor":
        # Tried and exact, but each step of such a run would cost as much as all these rows.
        row_class = RowClass(32, row_class.max_rows)
    elif change == "rows":
        row_class = RowClass(row_class.floor, 2 * row_class.max_rows)
    knobs = {
        "knob": (Knob("GGML_CPU_TILED_MM", "0"),),
        "other knob": (Knob("GGML_CPU_TILED_MM_FORCE", "1"),),
    }.get(change, known.knobs)
    runtime = replace(known, prompt_class=row_class, decode_class=row_class, knobs=knobs)
    with pytest.raises(IncomparableError, match="row class is not exact") as caught:
        replay_forgery(engine_home, honest.resign(runtime_class=runtime), tmp_path / "set", model)
    assert caught.value.exit_code == 3
    assert f"{row_class.floor} to {row_class.max_rows} rows" in str(caught.value.found)
    assert all(knob.name in str(caught.value.found) for knob in knobs)


def test_a_set_without_its_opening(
    honest: HonestRun, model: Path, engine_home: EngineHome, tmp_path: Path
) -> None:
    directory = write_forgery(honest.resign(), tmp_path / "set")
    next(directory.glob("*.palw.bundle")).unlink()
    with pytest.raises(InputError, match="needs the private half"):
        engine_home.replay(directory, model)
