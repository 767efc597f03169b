"""``tallystick model`` as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.gguf_bytes import U32, TensorBytes, scalar, tiny
from tests.support.registry_stub import digest_of, model_layer, registry_stub

Model = Callable[..., subprocess.CompletedProcess[str]]
MODEL = tiny().build()
REFUSED = tiny("qwen35moe").with_tensors(TensorBytes("blk.0.ssm_dt")).build()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def model(home: Path) -> Model:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TALLYSTICK_")}

    def run(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tallystick.cli.main", "model", *map(str, words)],
            env={**environment, "TALLYSTICK_HOME": str(home), **variables},
            cwd=home.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_a_newcomer_is_told_what_to_do(model: Model) -> None:
    result = model("ls")
    assert (result.returncode, result.stderr) == (0, "")
    assert "tallystick model pull smollm2-135m-instruct" in result.stdout
    assert json.loads(model("ls", "--json").stdout) == {"models": []}


def test_add_ls_show_check(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "Tiny.gguf"
    path.write_bytes(MODEL)
    added = model("add", "Tiny.gguf")
    assert (added.returncode, added.stderr) == (0, "")
    assert digest_of(MODEL) in added.stdout
    listed = model("ls")
    assert listed.stdout.split() == [
        "tiny", "llama", f"{len(MODEL):,}", "bytes", digest_of(MODEL)[7:19],
    ]  # fmt: skip
    shown = model("show", "tiny")
    for words in ("llama", "layers", "Q8_0 (1 tensors, 136 bytes)", "tokenizer", "chat template"):
        assert words in shown.stdout
    checked = model("check", "tiny")
    assert checked.stdout == f"tiny: unchanged, {digest_of(MODEL)}\n"
    assert checked.stderr == shown.stderr == listed.stderr == ""


def test_json_of_each_verb(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(MODEL)
    pin = json.loads(model("add", path, "--json").stdout)
    assert (pin["name"], pin["digest"], pin["size"]) == ("tiny", digest_of(MODEL), str(len(MODEL)))
    shown = json.loads(model("show", "tiny", "--json").stdout)
    by_path = json.loads(model("show", path, "--json").stdout)
    assert shown["facts"] == by_path["facts"] == pin["facts"]
    assert (shown["name"], by_path["name"]) == ("tiny", None)
    assert {
        "architecture",
        "layers",
        "weight_types",
        "tokenizer_digest",
        "chat_template_digest",
    } <= (shown["facts"].keys())
    listed = json.loads(model("ls", "--json").stdout)["models"]
    assert [(entry["name"], entry["state"]) for entry in listed] == [("tiny", "present")]
    checked = json.loads(model("check", "tiny", "--json").stdout)
    assert checked == {
        "name": "tiny", "digest": digest_of(MODEL), "size": str(len(MODEL)), "status": "unchanged",
    }  # fmt: skip


def test_check_exits_1_for_one_changed_bit(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(MODEL)
    model("add", path)
    path.write_bytes(MODEL[:-33] + bytes([MODEL[-33] ^ 1]) + MODEL[-32:])
    result = model("check", "tiny")
    assert (result.returncode, result.stdout) == (1, "")
    assert digest_of(MODEL) in result.stderr
    as_json = model("check", "tiny", "--json")
    assert json.loads(as_json.stderr)["error"]["exit_code"] == 1


@pytest.mark.parametrize("verb", ["add", "show"])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty file"),
        (b"PK\x03\x04" * 100, "not a GGUF file"),
        (MODEL[:200], "truncated"),
        (MODEL[:-40], "truncated"),
        (MODEL[:-21], "truncated"),  # the last byte of the last tensor: 20 bytes are padding
        (MODEL + bytes(1), "goes on after its last tensor"),
    ],
)
def test_bad_files_exit_4(
    verb: str, data: bytes, words: str, model: Model, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "m.gguf").write_bytes(data)
    result = model(verb, "m.gguf")
    assert (result.returncode, result.stdout) == (4, "")
    assert words in result.stderr
    assert not (home / "models").exists()


def test_what_is_no_file_exits_4_at_once(model: Model, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.gguf")
    for name, words in (("fifo.gguf", "not a regular file"), (".", "directory"), ("no", "no such")):
        result = model("add", name, "--name", "x")
        assert result.returncode == 4
        assert words in result.stderr


def test_split_models_exit_3(model: Model, tmp_path: Path) -> None:
    split = tiny().with_entries(("split.count", scalar(U32, 2)), ("split.no", scalar(U32, 0)))
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(split.build())
    result = model("add", "m-00001-of-00002.gguf")
    assert result.returncode == 3
    assert "part 1 of 2" in result.stderr
    assert "--merge" in result.stderr


def test_normalising_from_refusal_to_derived_file(model: Model, home: Path, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(REFUSED)
    refused = model("add", "m.gguf")
    assert refused.returncode == 3
    assert "ssm_dt" in refused.stderr
    assert "--normalise" in refused.stderr
    assert "must be normalised" in model("show", "m.gguf").stdout
    done = model("add", "m.gguf", "--normalise", "--json")
    assert done.returncode == 0
    pin = json.loads(done.stdout)
    assert pin["derived_from"] == digest_of(REFUSED)
    assert pin["transform"] == "tallystick.normalise/v1"
    assert pin["digest"] == digest_of((home / "models" / "m.gguf").read_bytes())
    assert digest_of(REFUSED) in model("show", "m").stdout
    assert model("check", "m").returncode == 0


def test_pull_from_a_registry_named_by_flag_or_variable(model: Model, home: Path) -> None:
    with registry_stub() as (url, behaviour):
        behaviour.add(MODEL)
        behaviour.tag("a/b/manifests/c", model_layer(MODEL))
        first = model("pull", "ollama:a/b:c", "--registry", url)
        second = model("pull", "ollama:a/b:c", "--name", "d", TALLYSTICK_MODEL_REGISTRY=url)
        third = model("pull", "ollama:a/b:c", "--name", "e", TALLYSTICK_MODEL_PULL_REGISTRY=url)
    assert [r.returncode for r in (first, second, third)] == [0, 0, 0]
    assert digest_of(MODEL) in first.stdout
    assert {"b-c.gguf", "d.gguf", "e.gguf"} <= {p.name for p in (home / "models").iterdir()}


def test_pull_of_something_unknown_names_what_is_known(model: Model) -> None:
    result = model("pull", "gpt-5")
    assert result.returncode == 4
    assert "smollm2-135m-instruct" in result.stderr


def test_pull_of_a_forged_model_exits_1_and_leaves_nothing(model: Model, home: Path) -> None:
    with registry_stub() as (url, behaviour):
        behaviour.blobs[digest_of(MODEL)] = MODEL[:-33] + b"F" + MODEL[-32:]
        result = model("pull", f"ollama:a/b@{digest_of(MODEL)}", "--registry", url)
    assert result.returncode == 1
    assert list((home / "models").iterdir()) == []


def test_an_unwritable_home_exits_6(model: Model, home: Path, tmp_path: Path) -> None:
    home.write_bytes(b"a file where the folder should be")
    (tmp_path / "m.gguf").write_bytes(MODEL)
    result = model("add", "m.gguf")
    assert result.returncode == 6
    assert home.read_bytes() == b"a file where the folder should be"


def test_hostile_names_do_not_reach_the_terminal(model: Model, tmp_path: Path) -> None:
    hostile = tiny().with_entries(
        ("general.name", scalar(8, "\x1b[2J\x1b]0;owned\x07" + "\N{RIGHT-TO-LEFT OVERRIDE}"))
    )
    (tmp_path / "m.gguf").write_bytes(hostile.build())
    printed = model("show", "m.gguf")
    assert printed.returncode == 0
    assert not {"\x1b", "\x07", "\N{RIGHT-TO-LEFT OVERRIDE}"} & set(printed.stdout)
