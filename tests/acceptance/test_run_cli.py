"""``tallystick run`` as a user meets it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from tallystick.contracts.layout import MARKER, MEMBERS
from tests.support.runs import EngineHome, HonestRun, output_of

PROMPT = "A tally stick"


def run_json(home: EngineHome, *words: str | Path, stdin: str = "") -> dict[str, Any]:
    done = home.cli("run", *words, "--json", stdin=stdin)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document


def test_the_answer_is_on_standard_output_and_nothing_else_is(
    engine_home: EngineHome, toy_llama: Path
) -> None:
    done = engine_home.cli("run", "--model", toy_llama, "-n", "6", PROMPT)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    digest = next(line.split()[1] for line in lines if line.startswith("receipt "))
    directory = Path(next(line.split()[1] for line in lines if line.startswith("files ")))
    assert directory.parent == engine_home.path / "receipts"
    assert digest == f"sha256:{directory.name}" + digest[39:]
    opening = HonestRun.load(directory).opening
    assert opening.receipt_digest == digest
    assert len(done.stdout) > 1
    assert done.stdout.endswith("\n")
    assert PROMPT not in done.stderr


def test_json(engine_home: EngineHome, toy_llama: Path) -> None:
    document = run_json(engine_home, "--model", toy_llama, "-n", "6", PROMPT)
    directory = Path(document["directory"])
    honest = HonestRun.load(directory)
    assert document["receipt_id"] == directory.name
    assert document["receipt_digest"] == honest.opening.receipt_digest
    output = base64.b64decode(document["output_base64"])
    assert output == output_of(honest.opening)
    assert document["text"] == output.decode("utf-8", "replace")
    core = honest.receipt.core
    assert document["prompt_tokens"] == core.prompt_tokens
    assert document["sampled_tokens"] == core.sampled_tokens
    assert document["stop_reason"] == core.stop_reason
    assert document["signer"] == honest.receipt.observed.worker_id
    assert document["seed"] is None


def test_the_set_is_whole_and_its_modes_are_right(
    engine_home: EngineHome, toy_llama: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "out"
    document = run_json(engine_home, "--model", toy_llama, "-n", "2", "--output-dir", out, PROMPT)
    assert Path(document["directory"]) == out
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()}
    kinds = (*MEMBERS, MARKER)
    assert len(kinds) == 9
    assert modes == {kind.name(document["receipt_id"]): kind.mode for kind in kinds}


def test_three_ways_to_give_a_prompt_are_one_request(
    engine_home: EngineHome, toy_llama: Path, tmp_path: Path
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT)
    words = ("--model", toy_llama, "-n", "2")
    documents = [
        run_json(engine_home, *words, PROMPT),
        run_json(engine_home, *words, "--prompt-file", file),
        run_json(engine_home, *words, "--prompt-stdin", stdin=PROMPT),
    ]
    assert len({document["core_digest"] for document in documents}) == 1
    assert len({document["receipt_digest"] for document in documents}) == 3


def test_options_come_from_the_environment_too(engine_home: EngineHome, toy_llama: Path) -> None:
    words = ("--model", str(toy_llama), PROMPT, "--json")
    given = engine_home.cli(
        "run", *words, variables={"TALLYSTICK_RUN_N_PREDICT": "3", "TALLYSTICK_RUN_SEED": "7",
                                  "TALLYSTICK_RUN_TEMPERATURE": "0.50"}
    )  # fmt: skip
    written = engine_home.cli("run", *words, "-n", "3", "--seed", "7", "--temperature", "0.5")
    assert given.returncode == written.returncode == 0
    first, second = json.loads(given.stdout), json.loads(written.stdout)
    assert first["core_digest"] == second["core_digest"]
    assert first["seed"] == "7"


def test_a_drawn_seed_is_told_and_gives_the_run_again(
    engine_home: EngineHome, toy_llama: Path
) -> None:
    words = ("--model", toy_llama, "-n", "8", "--temperature", "1.5", PROMPT)
    first = run_json(engine_home, *words)
    assert 0 <= int(first["seed"]) < 2**64
    again = run_json(engine_home, *words, "--seed", first["seed"])
    assert again["core_digest"] == first["core_digest"]
    assert (
        f"seed      {first['seed']}"
        in engine_home.cli("run", *words, "--seed", first["seed"]).stderr
    )


def test_variables_that_would_change_the_engine_are_dropped_and_noted(
    engine_home: EngineHome, toy_llama: Path
) -> None:
    plain = run_json(engine_home, "--model", toy_llama, "-n", "4", PROMPT)
    done = engine_home.cli(
        "run", "--model", toy_llama, "-n", "4", "--json", PROMPT,
        variables={"GGML_CPU_TILED_MM": "0", "OMP_NUM_THREADS": "3"},
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert document["core_digest"] == plain["core_digest"]
    host = HonestRun.load(Path(document["directory"])).receipt.observed.host
    assert {"GGML_CPU_TILED_MM", "OMP_NUM_THREADS"} <= set(host.dropped_environment)


def test_sequential(engine_home: EngineHome, toy_llama: Path) -> None:
    words = ("--model", toy_llama, "--policy", "sequential")
    document = run_json(engine_home, *words, "--prompt-stdin", stdin=PROMPT)
    assert document["sampled_tokens"] == 2
    replayed = engine_home.cli("replay", document["directory"], "--model", toy_llama)
    assert replayed.returncode == 0
    assert replayed.stdout.startswith("replayed: 2 of 2 tokens follow again")
    assert HonestRun.load(Path(document["directory"])).receipt.core.evidence.level == "gemm_traced"
    more = ("--evidence", "states", "--prompt-stdin")
    document = run_json(engine_home, *words, *more, stdin=PROMPT)
    replayed = engine_home.cli("replay", document["directory"], "--model", toy_llama)
    assert replayed.returncode == 0
    assert replayed.stdout.startswith("replayed: 2 of 2 positions bit-exact")


@pytest.mark.parametrize(
    "words",
    [
        ("--policy", "sequential", PROMPT),
        ("--policy", "sequential", "--prompt-stdin", "--temperature", "0.5"),
        ("--policy", "sequential", "--prompt-stdin", "--temperature", "0.5", "--seed", "1"),
        ("--seed", "1", PROMPT),
        ("--temperature", "1", "--seed", "-1", PROMPT),
        ("--temperature", "2.1", PROMPT),
        ("--temperature", "0.12345", PROMPT),
        ("--temperature", "nan", PROMPT),
        ("--system", "Be brief.", PROMPT),
        ("--evidence", "routes", PROMPT),
        ("--evidence", "states,states", PROMPT),
        ("--n-predict", "0", PROMPT),
        ("--n-predict", "1025", PROMPT),
        ("--policy", "sequential", "--prompt-stdin", "--n-predict", "0"),
        ("--policy", "sequential", "--prompt-stdin", "--n-predict", "1025"),
        ("--policy", "sequential", "--prompt-stdin", "--seed", "1"),
        ("--threads", "0", PROMPT),
        ("--prompt-stdin", PROMPT),
        (),
    ],
    ids=" ".join,
)
def test_wrong_use_exits_2_and_starts_nothing(
    words: tuple[str, ...], toy_llama: Path, tmp_path: Path
) -> None:
    home = EngineHome(tmp_path / "home")
    done = home.cli("run", "--model", toy_llama, "--json", *words, stdin=PROMPT)
    assert (done.returncode, done.stdout) == (2, "")
    assert json.loads(done.stderr)["error"]["type"] == "UsageError"
    assert not home.path.exists()


def test_another_key_signs(engine_home: EngineHome, toy_llama: Path, tmp_path: Path) -> None:
    key, stranger = tmp_path / "other.key", tmp_path / "stranger.key"
    public, other = (_made_key(engine_home, path) for path in (key, stranger))
    document = run_json(engine_home, "--model", toy_llama, "-n", "2", "--key", key, PROMPT)
    assert engine_home.cli("verify", document["directory"], "--key", public).returncode == 0
    assert engine_home.cli("verify", document["directory"], "--key", other).returncode == 1


def _made_key(home: EngineHome, *words: str | Path) -> Path:
    made = home.cli("keys", "new", *words, "--json")
    assert made.returncode == 0, made.stderr
    return Path(json.loads(made.stdout)["public_key_file"])


def test_an_encrypted_key_signs(engine_home: EngineHome, toy_llama: Path, tmp_path: Path) -> None:
    secret, wrong, key = (tmp_path / name for name in ("secret", "wrong", "locked.key"))
    secret.write_text("Split the stick\n")
    wrong.write_text("split the stick\n")
    public = _made_key(engine_home, key, "--passphrase-file", secret)
    words = ("run", "--model", toy_llama, "-n", "2", "--key", key, "--json", PROMPT)

    done = engine_home.cli(*words, "--passphrase-file", secret)
    assert done.returncode == 0, done.stderr
    directory = json.loads(done.stdout)["directory"]
    assert engine_home.cli("verify", directory, "--key", public).returncode == 0

    before = set((engine_home.path / "receipts").iterdir())
    for options, code, message in (
        ((), 4, "no passphrase was given"),
        (("--passphrase-file", wrong), 4, "does not open the key"),
        (("--passphrase-file", tmp_path / "none"), 4, "passphrase file cannot be read"),
        (("--passphrase-file", secret, "--passphrase-prompt"), 2, "not both"),
    ):
        refused = engine_home.cli(*words, *options)
        error = json.loads(refused.stderr)["error"]
        assert (refused.returncode, refused.stdout) == (code, "")
        assert message in error["message"]
        assert "plit the stick" not in refused.stderr
    assert set((engine_home.path / "receipts").iterdir()) == before


def test_an_encrypted_default_key_signs(
    engine_home: EngineHome, toy_llama: Path, tmp_path: Path
) -> None:
    engine_home.run(toy_llama, PROMPT, 1)
    home = engine_home.copied_to(tmp_path / "home")
    secret = tmp_path / "secret"
    secret.write_text("Split the stick")
    words = ("run", "--model", toy_llama, "-n", "2", PROMPT, "--passphrase-file", secret)
    # A key made on first use is not encrypted: whoever gives a passphrase does not expect that.
    refused = home.cli(*words)
    assert refused.returncode == 4
    assert "tallystick keys new" in refused.stderr
    assert not (home.path / "keys").exists()
    public = _made_key(home, "--passphrase-file", secret)
    done = home.cli(*words)
    assert done.returncode == 0, done.stderr
    assert "made a signing key" not in done.stderr
    (directory,) = (home.path / "receipts").iterdir()
    assert home.cli("verify", directory, "--key", public).returncode == 0


def test_a_failed_first_run_leaves_no_key_that_nothing_needs(
    engine_home: EngineHome, toy_llama: Path, tmp_path: Path
) -> None:
    engine_home.run(toy_llama, PROMPT, 1)
    home = engine_home.copied_to(tmp_path / "home")
    keys = home.path / "keys"
    no_model = home.cli("run", "--model", tmp_path / "no.gguf", PROMPT)
    assert no_model.returncode == 4
    assert not keys.exists()
    too_long = home.cli(
        "run", "--model", toy_llama, "-n", "1024", "--prompt-stdin", stdin="z" * 3500
    )
    assert too_long.returncode == 4
    assert "do not fit the context" in too_long.stderr
    # The states of a run are bound to its signer, so that key is made before it; no other is.
    assert not (keys / "audit.key").exists()
    assert not (home.path / "receipts").exists()
    shutil.rmtree(keys)
    done = home.cli("run", "--model", toy_llama, "-n", "2", PROMPT)
    assert "made a signing key, because there was none: ed25519:" in done.stderr
    assert "made an audit key, because there was none" in done.stderr
    assert {path.name for path in keys.iterdir()} == {
        "audit.key",
        "commit.key",
        "default.key",
        "default.pub.pem",
    }
    assert stat.S_IMODE((keys / "audit.key").stat().st_mode) == 0o600
    assert len((keys / "audit.key").read_bytes()) == 32
    again = home.cli("run", "--model", toy_llama, "-n", "2", PROMPT)
    assert "because there was none" not in again.stderr


def test_an_output_folder_whose_name_is_no_text(
    engine_home: EngineHome, toy_llama: Path, tmp_path: Path
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    try:
        folder.mkdir(mode=0o700)
    except OSError:
        pytest.skip("this file system takes Unicode names only")
    document = run_json(
        engine_home, "--model", toy_llama, "-n", "2", "--output-dir", folder, PROMPT
    )
    assert document["directory"].endswith("/caf\\udce9")
    assert len(list(folder.iterdir())) == 9


def test_the_first_key_is_made_and_said_so(
    engine_home: EngineHome, toy_llama: Path, tmp_path: Path
) -> None:
    engine_home.run(toy_llama, PROMPT, 1)
    home = engine_home.copied_to(tmp_path / "home")
    words = ("run", "--model", toy_llama, "-n", "2", PROMPT)
    first, second = home.cli(*words), home.cli(*words)
    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stderr.count("made a signing key, because there was none: ed25519:") == 1
    assert "made a signing key" not in second.stderr
    assert stat.S_IMODE((home.path / "keys" / "default.key").stat().st_mode) == 0o600
