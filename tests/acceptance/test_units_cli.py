"""``tallystick units`` as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.gguf_bytes import STRING, U32, array, scalar, tiny

Units = Callable[..., subprocess.CompletedProcess[str]]
WIDTHS = (
    ("llama.attention.head_count", scalar(U32, 4)),
    ("llama.attention.head_count_kv", scalar(U32, 2)),
    ("llama.feed_forward_length", scalar(U32, 64)),
)
PARTS = (
    "projections", "convolution", "recurrent_state", "router", "feed_forward", "head", "attention",
)  # fmt: skip


@pytest.fixture
def units(tmp_path: Path) -> Units:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TALLYSTICK_")}

    def run(*words: str | Path, program: str = "units") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tallystick.cli.main", program, *map(str, words)],
            env={**environment, "TALLYSTICK_HOME": str(tmp_path / "home")},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def answer(result: subprocess.CompletedProcess[str]) -> Any:
    assert (result.returncode, result.stderr) == (0, "")
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("prefill", "generated", "expected"),
    [("5", "2", "41692"), ("1", "1", "11912"), ("512", "128", "3844971")],
)
def test_the_published_profile(units: Units, prefill: str, generated: str, expected: str) -> None:
    counts = ("--prefill", prefill, "--generated", generated)
    found = answer(units("--profile", "qwen3.6-35b-a3b", *counts, "--json"))
    assert found["canonical_compute_units"] == expected
    assert found["profile"] == "qwen3.6-35b-a3b"
    assert found["architecture"] == "qwen35moe"
    assert (found["prefill_tokens"], found["generated_tokens"]) == (int(prefill), int(generated))
    assert found["ruleset_version"] == 3
    assert found["ruleset_id"].startswith("sha256:")
    assert set(found["parts"]) == set(PARTS)
    assert sum(map(int, found["parts"].values())) == int(found["multiply_accumulates"])


def test_words_for_people(units: Units) -> None:
    result = units("--profile", "qwen3.6-35b-a3b", "--prefill", "512", "--generated", "128")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("compute units         3,844,971\n")
    assert "recurrent state" in result.stdout


def test_a_model_by_path_and_by_name(units: Units, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(tiny().with_entries(*WIDTHS).build())
    counts = ("--prefill", "3", "--generated", "1", "--json")
    by_path = answer(units("--model", "./tiny.gguf", *counts))
    # 2 layers of width 32: 4 heads of 8, 2 for keys and values; 4 token ids.
    weights = 2 * (32 * (32 + 16 + 16 + 32) + 3 * 32 * 64) + 32 * 4
    mac = 4 * weights + 10 * 2 * 4 * 16
    assert by_path["multiply_accumulates"] == str(mac)
    assert by_path["canonical_compute_units"] == "1"
    assert by_path["profile"] is None
    assert units("add", "tiny.gguf", program="model").returncode == 0
    (tmp_path / "tiny.gguf").unlink()  # a named model is priced by its pin
    assert answer(units("--model", "tiny", *counts)) == by_path


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("--profile", "gpt-5"), 2, "qwen3.6-35b-a3b"),
        ((), 2, "either --profile or --model"),
        (("--profile", "qwen3.6-35b-a3b", "--model", "x"), 2, "either --profile or --model"),
        (("--model", "no-such-model"), 4, "no-such-model"),
        (("--model", "./mamba.gguf"), 3, "qwen35moe"),
        (("--model", "./uneven.gguf"), 3, "layer to layer"),
        (("--model", "./tiny.gguf"), 4, "number of heads"),
    ],
)
def test_refusals(
    units: Units, tmp_path: Path, words: tuple[str, ...], code: int, part: str
) -> None:
    mamba = tiny("mamba").build()
    uneven = tiny().with_entries(("llama.feed_forward_length", array(U32, [64, 32])))
    for name, data in (("mamba", mamba), ("uneven", uneven.build()), ("tiny", tiny().build())):
        (tmp_path / f"{name}.gguf").write_bytes(data)
    result = units(*words, "--prefill", "1", "--generated", "1", "--json")
    assert (result.returncode, result.stdout) == (code, "")
    assert part in result.stderr
    assert json.loads(result.stderr)["error"]["exit_code"] == code


@pytest.mark.parametrize(
    "counts",
    [
        ("--prefill", "0", "--generated", "1"),
        ("--prefill", "1", "--generated", "-1"),
        ("--prefill", str(2**32), "--generated", "1"),
        ("--prefill", "1"),
        ("--generated", "1"),
    ],
)
def test_counts_out_of_range_are_usage_errors(units: Units, counts: tuple[str, ...]) -> None:
    result = units("--profile", "qwen3.6-35b-a3b", *counts)
    assert (result.returncode, result.stdout) == (2, "")


def test_no_engine_is_needed(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "for name in ('cffi', 'jinja2', 'numpy', 'xllamacpp'): sys.modules[name] = None\n"
        "from tallystick.cli.main import main\n"
        "sys.exit(main(['units', '--profile', 'qwen3.6-35b-a3b', '--prefill', '5',"
        " '--generated', '2']))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    assert "41,692" in result.stdout


def test_an_earlier_pin_is_priced_after_it_was_made_anew(units: Units, tmp_path: Path) -> None:
    """A pin from before the facts had widths says what to do, and that works."""
    built = tiny().with_entries(*WIDTHS, ("general.name", scalar(STRING, "T")))
    (tmp_path / "tiny.gguf").write_bytes(built.build())
    assert units("add", "tiny.gguf", program="model").returncode == 0
    pin = tmp_path / "home" / "models" / "tiny.json"
    document = json.loads(pin.read_bytes())
    document["schema"] = "tallystick.model-pin/v1"
    document["facts"]["schema"] = "tallystick.model-facts/v1"
    del document["facts"]["shape"]
    pin.write_text(json.dumps(document, separators=(",", ":"), sort_keys=True), encoding="utf-8")
    counts = ("--prefill", "3", "--generated", "1", "--json")
    refused = units("--model", "tiny", *counts)
    assert refused.returncode == 4
    hint = json.loads(refused.stderr)["error"]["hint"]
    words = hint.partition("tallystick ")[2].split()
    assert words[:2] == ["model", "add"]
    assert units(*words[1:], program="model").returncode == 0
    assert answer(units("--model", "tiny", *counts))["canonical_compute_units"] == "1"
