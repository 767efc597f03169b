"""``tallystick replay`` as a user meets it."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tallystick import read_transcript
from tallystick.contracts.runtime import RowClass
from tests.support.runs import EngineHome, HonestRun, write_forgery
from tests.support.sets import SIGNER, STRANGER, fake_digest

Endless = Callable[[str], Path]

PROMPT = "A tally stick is split in two."
N = 8


@pytest.fixture(scope="module")
def model(endless_model: Endless) -> Path:
    return endless_model("llama-q8_0")


@pytest.fixture(scope="module")
def place(engine_home: EngineHome, model: Path) -> Path:
    return engine_home.run(model, PROMPT, N).directory


@pytest.fixture(scope="module")
def honest(place: Path) -> HonestRun:
    return HonestRun.load(place)


@pytest.fixture
def trusted(tmp_path: Path) -> Path:
    """The public key of whoever signs the forgeries: the worker itself."""
    path = tmp_path / "signer.pem"
    path.write_text(SIGNER.public.pem())
    return path


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """The public key of somebody else."""
    path = tmp_path / "stranger.pem"
    path.write_text(STRANGER.public.pem())
    return path


def test_every_bit_is_equal(engine_home: EngineHome, place: Path, model: Path) -> None:
    done = engine_home.cli("replay", place, "--model", model)
    assert done.returncode == 0
    digest = HonestRun.load(place).opening.receipt_digest
    first, *rest = done.stdout.splitlines()
    assert first == f"replayed: {N} of {N} positions bit-exact  {digest}"
    assert any("signature: by the key in the bundle" in line for line in rest)
    rows = HonestRun.load(place).receipt.core.prompt_tokens + N - 1
    assert rest[-1].startswith(f"  {rows} rows in ")
    assert PROMPT not in done.stdout + done.stderr


def test_with_the_key_the_signature_is_verified_too(
    engine_home: EngineHome, place: Path, model: Path, stranger: Path
) -> None:
    public = engine_home.path / "keys" / "default.pub.pem"
    done = engine_home.cli("replay", place, "--model", model, "--key", public)
    assert done.returncode == 0
    assert "signature:" not in done.stdout
    refused = engine_home.cli("replay", place, "--model", model, "--key", stranger)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "not one of the trusted keys" in refused.stderr


def test_json(engine_home: EngineHome, place: Path, model: Path) -> None:
    done = engine_home.cli("replay", place, "--model", model, "--threads", "1", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"] == 0
    assert (document["verified"], document["difference"]) == (True, None)
    assert (document["exact"], document["sampled"], document["states"]) == (N, N, "equal")
    assert document["signature"] == "not_checked"
    assert int(document["replay_ns"]) > 0


def test_with_a_ring_of_layers_every_bit_is_equal(
    engine_home: EngineHome, place: Path, model: Path
) -> None:
    done = engine_home.cli("replay", place, "--model", model, "--ring-depth", "1", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["exact"], document["sampled"], document["states"]) == (N, N, "equal")


def test_a_transcript_of_the_pass_is_a_private_new_file(
    engine_home: EngineHome, place: Path, model: Path, tmp_path: Path, endless_model: Endless
) -> None:
    file = tmp_path / "pass.jsonl"
    words = ("replay", place, "--model", model, "--transcript", file)
    done = engine_home.cli(*words)
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    written = file.read_bytes()
    read = read_transcript([written])
    assert read.header.observer == "sketch"
    assert read.result.generated_token_ids == HonestRun.load(place).opening.sampled_ids
    checked = engine_home.cli("observe", "--model", model, "--check", file, "--json")
    assert json.loads(checked.stdout)["products"] == read.gemms > 0
    again = engine_home.cli(*words, "--observer", "graph")
    assert (again.returncode, again.stdout) == (6, "")
    assert "nothing is ever overwritten" in again.stderr
    assert file.read_bytes() == written
    other = tmp_path / "other.jsonl"
    refused = engine_home.cli(
        "replay", place, "--model", endless_model("gemma3"), "--transcript", other
    )
    assert refused.returncode == 1
    alone = engine_home.cli("replay", place, "--model", model, "--observer", "graph")
    assert (alone.returncode, alone.stdout) == (2, "")
    assert not other.exists()


def test_the_receipt_file_names_its_set(engine_home: EngineHome, place: Path, model: Path) -> None:
    receipt = next(place.glob("*.geoai.json"))
    assert engine_home.cli("replay", receipt, "--model", model).returncode == 0


def test_a_replaced_token_exits_1_and_is_named(
    engine_home: EngineHome, honest: HonestRun, model: Path, trusted: Path, tmp_path: Path
) -> None:
    ids = list(honest.opening.sampled_ids)
    ids[3] = 100 if ids[3] != 100 else 101
    forged = write_forgery(
        honest.resign(generation=honest.generation(sampled_ids=tuple(ids))), tmp_path / "set"
    )
    # Who only verifies sees nothing wrong: the signer signed it.
    assert engine_home.cli("verify", forged, "--key", trusted).returncode == 0
    done = engine_home.cli("replay", forged, "--model", model, "--key", trusted)
    assert done.returncode == 1
    assert done.stdout.startswith("FAILED: ")
    assert "first difference: generated token 3 " in done.stdout
    as_json = engine_home.cli("replay", forged, "--model", model, "--json")
    document = json.loads(as_json.stdout)
    assert as_json.returncode == document["exit_code"] == 1
    assert document["difference"]["position"] == honest.receipt.core.prompt_tokens - 1 + 3
    assert document["difference"]["layer"] is None


def test_one_edited_byte_exits_1(
    engine_home: EngineHome, place: Path, model: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "set"
    shutil.copytree(place, copy)
    public = engine_home.path / "keys" / "default.pub.pem"
    path = next(copy.glob("*.telemetry.jsonl"))
    path.write_bytes(path.read_bytes()[:-2] + b"]\n")
    for words in (
        ("replay", copy, "--model", model),
        ("replay", copy, "--model", model, "--key", public),
        ("verify", copy, "--key", public),
    ):
        done = engine_home.cli(*words)
        assert done.returncode == 1
        assert ".telemetry.jsonl" in done.stdout + done.stderr


def test_another_model_exits_1(
    engine_home: EngineHome, place: Path, toy_llama: Path, honest: HonestRun
) -> None:
    done = engine_home.cli("replay", place, "--model", toy_llama, "--json")
    assert (done.returncode, done.stdout) == (1, "")
    error = json.loads(done.stderr)["error"]
    assert error["message"] == "the model is not the one of the receipt"
    assert error["expected"] == honest.receipt.core.model_digest


def test_another_machine_exits_3(
    engine_home: EngineHome, honest: HonestRun, model: Path, tmp_path: Path
) -> None:
    runtime = honest.receipt.core.runtime_class
    wide = RowClass(runtime.decode_class.floor, 2 * runtime.decode_class.max_rows)
    for number, (change, words) in enumerate(
        (
            (replace(runtime, engine_library=fake_digest("x")), "another engine build"),
            (replace(runtime, fingerprint=fake_digest("x")), "numeric fingerprint"),
            (replace(runtime, prompt_class=wide, decode_class=wide), "row class is not exact"),
        )
    ):
        forged = write_forgery(honest.resign(runtime_class=change), tmp_path / str(number))
        done = engine_home.cli("replay", forged, "--model", model)
        assert (done.returncode, done.stdout) == (3, "")
        assert words in done.stderr


@pytest.mark.parametrize("missing", [".palw.bundle", ".complete", ".geoai.json", ".palw", ".json"])
def test_an_incomplete_set_exits_4(
    missing: str, engine_home: EngineHome, place: Path, model: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "set"
    shutil.copytree(place, copy)
    (set_id,) = (path.name[:32] for path in copy.glob("*.complete"))
    (copy / f"{set_id}{missing}").unlink()
    done = engine_home.cli("replay", copy, "--model", model)
    assert (done.returncode, done.stdout) == (4, "")


def test_nothing_there_exits_4(engine_home: EngineHome, model: Path, tmp_path: Path) -> None:
    assert engine_home.cli("replay", tmp_path, "--model", model).returncode == 4
    assert engine_home.cli("replay", tmp_path / "no", "--model", model).returncode == 4
