"""Dataset bundles as a user makes, checks and queues them; documents as a user validates them."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import example_exec_envelope

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tiles"


def tallystick(home: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tallystick", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TALLYSTICK_HOME": str(home)},
    )


@pytest.fixture
def village(tmp_path: Path, toy_llama: Path) -> Path:
    made = tallystick(
        tmp_path, "bundle", "create", EXAMPLE, "--output", tmp_path / "b", "--model", toy_llama
    )
    assert made.returncode == 0, made.stderr
    assert "left out of the bundle: LICENSE, README.md, make_tiles.py" in made.stderr
    return tmp_path / "b"


def shown(result: subprocess.CompletedProcess[str]) -> Any:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_from_the_example_to_twenty_queued_runs(village: Path, tmp_path: Path) -> None:
    checked = shown(tallystick(tmp_path, "bundle", "check", village, "--json"))
    assert checked["status"] == "checked"
    assert checked["splits"] == {"east": 10, "smoke": 2, "west": 20}
    runs = tmp_path / "runs"
    words = ("bundle", "runs", village, "--split", "west", "--output", runs, "--json")
    declared = shown(tallystick(tmp_path, *words))
    assert declared["bundle_digest"] == checked["bundle_digest"]
    files = sorted(runs.iterdir())
    assert [row["file"] for row in declared["runs"]] == list(map(str, files))
    assert len(files) == 20
    run = json.loads(files[0].read_bytes())
    assert run["dataset"] == {"expectedDigest": checked["bundle_digest"]}
    assert run["task"] == {"expectedDigest": checked["task_digest"]}
    assert run["prompt"].startswith("A satellite image tile (17/65536/65530) of made-up-village.")
    assert tallystick(tmp_path, *words).returncode == 6
    queued = tallystick(tmp_path, "submit", *files, "--json")
    assert queued.stderr == ""
    submitted = shown(queued)
    assert len(submitted["submissions"]) == 20
    documents = (village / "manifest.json", village / "model.ref.json", *files)
    valid = shown(tallystick(tmp_path, "contracts", "validate", *documents, "--json"))
    assert {row["valid"] for row in valid["documents"]} == {True}
    assert [row["type"] for row in valid["documents"][:3]] == [
        "DatasetManifest",
        "ModelRef",
        "InferenceRun",
    ]


def test_one_tile_of_a_split(village: Path, tmp_path: Path) -> None:
    words = ("bundle", "runs", village, "--split", "smoke", "--output", tmp_path / "one")
    made = tallystick(tmp_path, *words, "--tile", "17/65538/65532", "--model", "a-name")
    assert made.stdout == f"{tmp_path}/one/smoke-17-65538-65532.json\n"
    assert json.loads(Path(made.stdout.strip()).read_bytes())["model_path"] == "a-name"
    for option in (("--tile", "17/1/1"), ("--split", "none")):
        assert tallystick(tmp_path, *words, *option, "--output", tmp_path / "two").returncode == 4


def test_a_bundle_that_was_touched_says_where(village: Path, tmp_path: Path) -> None:
    (village / "data" / ".DS_Store").touch()
    result = tallystick(tmp_path, "bundle", "check", village)
    assert result.returncode == 1
    assert result.stdout == ""
    assert "'data/.DS_Store': it is not declared" in result.stderr
    result = tallystick(
        tmp_path, "bundle", "runs", village, "--split", "west", "--output", tmp_path / "r"
    )
    assert result.returncode == 1
    assert not (tmp_path / "r").exists()
    assert tallystick(tmp_path, "bundle", "check", tmp_path / "nothing").returncode == 4
    error = json.loads(tallystick(tmp_path, "bundle", "check", village, "--json").stderr)["error"]
    assert error["exit_code"] == 1


def test_documents_are_named_by_field(tmp_path: Path) -> None:
    from tallystick.contracts.codec import encode

    document: Any = encode(example_exec_envelope())
    good, bad, other = (tmp_path / name for name in ("good.json", "bad.json", "other.json"))
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    good.write_text(text)
    bad.write_text(text.replace('"version":"0.1.0"', '"version":""'))
    other.write_text("{}")
    assert tallystick(tmp_path, "contracts", "validate", good).returncode == 0
    result = tallystick(tmp_path, "contracts", "validate", good, other, bad)
    assert result.returncode == 1
    assert f"{good}: valid dac.zero-claw-exec/v1, sha256:" in result.stdout
    assert f"{bad}: not valid\n" in result.stdout
    said = result.stdout + result.stderr
    assert said.count("bad field receipt_validator.version") == 1
    assert tallystick(tmp_path, "contracts", "validate", other).returncode == 4
    assert tallystick(tmp_path, "contracts", "validate", tmp_path / "none").returncode == 4
    assert tallystick(tmp_path, "contracts", "validate").returncode == 2


def test_a_file_that_is_no_json_is_no_document(tmp_path: Path) -> None:
    page, cut = tmp_path / "README.md", tmp_path / "cut.json"
    page.write_text("# Title")
    cut.write_text('{"schema":')
    result = tallystick(tmp_path, "contracts", "validate", page)
    assert result.returncode == 4
    assert (result.stdout + result.stderr).count("not a document that is known here") == 1
    for word in ("expected: ", "found: ", "what to do: "):
        assert word in result.stderr
    result = tallystick(tmp_path, "contracts", "validate", page, cut)
    assert result.returncode == 1
    error = result.stderr.rpartition(f"{cut}: ")[2].splitlines()[0]  # of the second file, once
    assert error
    assert (result.stdout + result.stderr).count(error) == 1


def test_the_example_s_tiles_are_what_its_script_draws(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "make_tiles.py", tmp_path)
    subprocess.run([sys.executable, tmp_path / "make_tiles.py"], check=True)
    drawn = sorted(path.relative_to(tmp_path) for path in (tmp_path / "data").rglob("*.*"))
    assert drawn == sorted(path.relative_to(EXAMPLE) for path in (EXAMPLE / "data").rglob("*.*"))
    assert len(drawn) == 61
    for path in drawn:
        new, committed = (tmp_path / path).read_bytes(), (EXAMPLE / path).read_bytes()
        if path.suffix == ".png":
            assert pixels(new) == pixels(committed)
        else:
            assert new == committed


def pixels(png: bytes) -> bytes:
    """Return the image data of a PNG with one IDAT chunk, and all other chunks."""
    done, rest = b"", png[8:]
    while rest:
        (length,) = struct.unpack(">I", rest[:4])
        kind, data = rest[4:8], rest[8 : 8 + length]
        done += kind + (zlib.decompress(data) if kind == b"IDAT" else data)
        rest = rest[12 + length :]
    return done
