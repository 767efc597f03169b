"""``tallystick verify``, ``inspect`` and ``diff`` as a user meets them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tallystick.contracts.layout import BUNDLE, MARKER, MEMBERS
from tests.support.forgery import Forger
from tests.support.sets import AUDIT_KEY, PROMPT, SIGNER, STRANGER, make_facts, make_set
from tests.support.written import write_set

Program = Callable[..., subprocess.CompletedProcess[str]]
BUILT = make_set()
OTHER = make_set(facts=make_facts(rss_after=3))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", BUILT.members, BUILT.marker)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    (tmp_path / "worker.pub.pem").write_text(SIGNER.public.pem())
    return tmp_path / "worker.pub.pem"


@pytest.fixture
def tallystick(tmp_path: Path) -> Program:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TALLYSTICK_")}

    def run(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tallystick.cli.main", *map(str, words)],
            env={**environment, "TALLYSTICK_HOME": str(tmp_path / "home"), **variables},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def file_of(directory: Path, suffix: str) -> Path:
    return directory / (BUILT.receipt_id + suffix)


def rewrite(directory: Path, files: dict[str, bytes]) -> None:
    """Put a forged set in place of the one in ``directory``, with proper modes."""
    shutil.rmtree(directory)
    directory.mkdir(mode=0o700)
    set_id = Forger(files).set_id
    public = {kind.name(set_id) for kind in (*MEMBERS, MARKER) if kind.visibility == "public"}
    for name, data in files.items():
        (directory / name).write_bytes(data)
        (directory / name).chmod(0o644 if name in public else 0o600)


def test_an_honest_set_holds(tallystick: Program, directory: Path, key: Path) -> None:
    result = tallystick("verify", directory, "--key", key)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"verified  {BUILT.receipt_digest}\n")
    assert "2  passed       network and epoch window" in result.stdout
    assert "3  not checked  assignment binding and policy: the private part" in result.stdout
    assert "11  not checked  openings: the private part of the bundle is locked" in result.stdout
    assert "1 of 3 links" in result.stdout
    assert "0 egress probes" in result.stdout
    assert "What it does not prove:" in result.stdout
    assert PROMPT not in result.stdout
    assert not (directory.parent / "home").exists()


@pytest.mark.parametrize("suffix", [".geoai.json", ".complete"])
def test_one_file_names_the_set(
    tallystick: Program, directory: Path, key: Path, suffix: str
) -> None:
    assert tallystick("verify", file_of(directory, suffix), "--key", key).returncode == 0


def test_json_output_and_the_environment(tallystick: Program, directory: Path, key: Path) -> None:
    result = tallystick("verify", directory, "--json", TALLYSTICK_VERIFY_KEY=str(key))
    assert result.returncode == 0, result.stderr
    value = json.loads(result.stdout)
    assert value["verified"] == 1
    outcome = value["outcomes"][0]
    assert outcome["verdict"] == "verified"
    assert outcome["core_digest"] == BUILT.core_digest
    assert outcome["steps"][11]["name"] == "attestations and trust"
    assert outcome["status"] == "verified"
    assert outcome["trust_scope"] == "given_keys"
    statuses = [step["status"] for step in outcome["steps"]]
    assert [n for n, status in enumerate(statuses, 1) if status != "passed"] == [3, 11, 13]
    assert {*statuses} == {"passed", "not_checked"}


def test_no_trust_is_exit_4(tallystick: Program, directory: Path) -> None:
    result = tallystick("verify", directory)
    assert result.returncode == 4
    assert result.stdout == ""
    assert "--trust-policy" in result.stderr


def test_another_key_is_exit_1(tallystick: Program, directory: Path, tmp_path: Path) -> None:
    (tmp_path / "other.pem").write_text(STRANGER.public.pem())
    result = tallystick("verify", directory, "--key", tmp_path / "other.pem")
    assert result.returncode == 1
    assert "4  FAILED" in result.stdout


def test_one_of_several_keys_is_enough(
    tallystick: Program, directory: Path, key: Path, tmp_path: Path
) -> None:
    (tmp_path / "other.pem").write_text(STRANGER.public.pem())
    words = ("--key", tmp_path / "other.pem", "--key", key)
    assert tallystick("verify", directory, *words).returncode == 0


def test_key_and_policy_together_are_exit_2(
    tallystick: Program, directory: Path, key: Path
) -> None:
    result = tallystick("verify", directory, "--key", key, "--trust-policy", key)
    assert result.returncode == 2


@pytest.mark.parametrize("content", [None, "", "{}", "-----BEGIN PUBLIC KEY-----\n"])
def test_a_bad_key_or_policy_is_exit_4(
    tallystick: Program, directory: Path, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "bad").write_text(content)
    for option in ("--key", "--trust-policy"):
        result = tallystick("verify", directory, option, tmp_path / "bad")
        assert result.returncode == 4, result.stderr


def test_a_trust_policy_with_a_window(tallystick: Program, directory: Path, tmp_path: Path) -> None:
    entry = {
        "name": "worker 1",
        "public_key": SIGNER.public.raw.hex(),
        "links": ["execution"],
        "valid_from": "2026-11-01T00:00:00.000Z",
        "valid_to": "2026-11-30T13:00:00.000Z",
        "minimum_enforcement": "none",
        "engine_libraries": None,
    }
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"schema": "tallystick.trust-policy/v1", "keys": [entry]}))
    words = ("verify", directory, "--trust-policy", policy, "--now")
    assert tallystick(*words, "2026-11-30T12:00:00Z").returncode == 0
    late = tallystick(*words, "2026-11-30T14:00:00+01:00")
    assert late.returncode == 1
    assert "time claimed, not anchored" in late.stdout


@pytest.mark.parametrize("text", ["yesterday", "2026-11-30T12:00:00", ""])
def test_a_bad_time_is_exit_2(tallystick: Program, directory: Path, key: Path, text: str) -> None:
    assert tallystick("verify", directory, "--key", key, "--now", text).returncode == 2


def test_a_key_a_policy_or_a_document_is_no_pipe(
    tallystick: Program, directory: Path, tmp_path: Path
) -> None:
    """Nobody writes to it: whoever waited would wait for ever."""
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe, 0o600)
    for words in (
        ("verify", directory, "--key", pipe),
        ("verify", directory, "--trust-policy", pipe),
        ("contracts", "validate", pipe),
        ("submit", pipe),
    ):
        done = tallystick(*words)
        assert done.returncode == 4, (words, done.stderr)
        assert "no regular file" in done.stdout + done.stderr


@pytest.mark.parametrize("suffix", [kind.suffix for kind in MEMBERS if kind.suffix])
def test_an_edited_byte_is_exit_1(
    tallystick: Program, directory: Path, key: Path, suffix: str
) -> None:
    path = file_of(directory, suffix)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    result = tallystick("verify", directory, "--key", key)
    assert result.returncode == 1
    assert "1  FAILED" in result.stdout
    assert path.name in result.stdout


@pytest.mark.parametrize("kind", ["mode", "symlink", "hard link", "extra", "truncated marker"])
def test_a_tampered_directory_is_exit_1(
    tallystick: Program, directory: Path, key: Path, tmp_path: Path, kind: str
) -> None:
    bundle, marker = file_of(directory, BUNDLE.suffix), file_of(directory, ".complete")
    if kind == "mode":
        bundle.chmod(0o644)
    elif kind == "symlink":
        bundle.rename(tmp_path / "moved")
        bundle.symlink_to(tmp_path / "moved")
    elif kind == "hard link":
        os.link(bundle, tmp_path / "second")
    elif kind == "extra":
        file_of(directory, ".notes").touch()
    else:
        marker.write_bytes(marker.read_bytes()[:-1])
    result = tallystick("verify", directory, "--key", key)
    assert result.returncode == 1, result.stdout
    assert "1  FAILED" in result.stdout


def test_a_failed_step_says_what_to_do(tallystick: Program, directory: Path, key: Path) -> None:
    file_of(directory, BUNDLE.suffix).chmod(0o644)
    words = tallystick("verify", directory, "--key", key).stdout
    assert "what to do: treat its content as published; chmod 600 it" in words
    document = json.loads(tallystick("verify", directory, "--key", key, "--json").stdout)
    assert document["outcomes"][0]["steps"][0]["hint"].startswith("treat its content as published")


def test_a_forged_set_with_a_fitting_marker_is_exit_1(
    tallystick: Program, directory: Path, key: Path
) -> None:
    forger = Forger(BUILT.files())
    receipt = forger.document(".geoai.json")
    receipt["observed"]["host"]["cpu"] = "Another CPU"
    rewrite(directory, forger.with_receipt(receipt, key=STRANGER))
    result = tallystick("verify", directory, "--key", key)
    assert result.returncode == 1
    assert "12  FAILED" in result.stdout


@pytest.mark.parametrize(
    "suffix",
    [
        *(".palw", ".json", ".geoai.json", ".exec.json"),
        *(".telemetry.jsonl", ".intoto.jsonl", ".complete"),
    ],
)
def test_an_incomplete_set_is_exit_4(
    tallystick: Program, directory: Path, key: Path, suffix: str
) -> None:
    file_of(directory, suffix).unlink()
    result = tallystick("verify", directory, "--key", key)
    assert result.returncode == 4
    assert "nothing to verify" in result.stdout


def test_a_withheld_bundle_still_verifies(tallystick: Program, directory: Path, key: Path) -> None:
    file_of(directory, BUNDLE.suffix).unlink()
    result = tallystick("verify", directory, "--key", key)
    assert result.returncode == 0
    assert "not checked  openings: the verification bundle is withheld" in result.stdout


def test_only_the_key_of_a_withheld_bundle_is_no_trust(
    tallystick: Program, directory: Path, key: Path, tmp_path: Path
) -> None:
    """Nothing was judged: that is exit 4, and one set says nothing about another."""
    audit = tmp_path / "audit.key"
    audit.write_bytes(AUDIT_KEY.raw)
    audit.chmod(0o600)
    whole = write_set(tmp_path / "whole", OTHER.members, OTHER.marker)
    file_of(directory, BUNDLE.suffix).unlink()
    result = tallystick("verify", directory, "--audit-key-file", audit)
    assert (result.returncode, result.stderr) == (4, "")
    assert result.stdout.startswith(f"no trust  {directory}\n")
    assert "expected: --key FILE or --trust-policy FILE, or the set's bundle" in result.stdout
    assert "FAILED" not in result.stdout
    both = tallystick("verify", directory, whole, "--audit-key-file", audit, "--json")
    assert both.returncode == 4
    verdicts = [outcome["verdict"] for outcome in json.loads(both.stdout)["outcomes"]]
    assert verdicts == ["no trust", "verified"]
    trusted = tallystick("verify", directory, "--audit-key-file", audit, "--key", key)
    assert trusted.returncode == 0


def test_nothing_recognisable_is_exit_4(tallystick: Program, key: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in ("empty", "missing", key):
        assert tallystick("verify", path, "--key", key).returncode == 4
    assert tallystick("verify", "--key", key).returncode == 2


@pytest.mark.parametrize("name", [b"caf\xe9", b"\xff.geoai.json", b"\x1b[31m", b"x" * 300])
def test_odd_paths_are_answered_in_words(tallystick: Program, key: Path, name: bytes) -> None:
    path = os.fsdecode(name)
    assert tallystick("verify", path, "--key", key).returncode == 4
    result = tallystick("verify", path, "--key", key, "--json")
    assert result.returncode == 4
    assert json.loads(result.stdout)["outcomes"][0]["verdict"] == "nothing to verify"
    assert "\x1b" not in result.stdout


def test_each_of_several_sets_gets_a_verdict(
    tallystick: Program, directory: Path, key: Path, tmp_path: Path
) -> None:
    second = write_set(tmp_path / "second", OTHER.members, OTHER.marker)
    assert tallystick("verify", directory, second, "--key", key).returncode == 0
    unknown = tallystick("verify", directory, tmp_path / "none", "--key", key)
    assert unknown.returncode == 4
    assert "verified  " in unknown.stdout
    (second / f"{OTHER.receipt_id}.telemetry.jsonl").write_bytes(b"")
    mixed = tallystick("verify", tmp_path / "none", second, directory, "--key", key)
    assert mixed.returncode == 1
    assert "failed  " in mixed.stdout
    assert "verified  " in mixed.stdout


def test_inspect_shows_and_does_not_judge(tallystick: Program, directory: Path) -> None:
    result = tallystick("inspect", directory)
    assert result.returncode == 0
    assert BUILT.receipt_digest in result.stdout
    assert "not verified" in result.stderr
    value = json.loads(tallystick("inspect", directory, "--json").stdout)
    assert value["verified"] is False
    assert value["receipt"]["core"]["sampled_tokens"] == 4
    assert tallystick("inspect", directory / "none").returncode == 4


def test_diff_compares_cores(tallystick: Program, directory: Path, tmp_path: Path) -> None:
    second = write_set(tmp_path / "second", OTHER.members, OTHER.marker)
    result = tallystick("diff", directory, second)
    assert result.returncode == 0
    assert "cores equal" in result.stdout
    assert "observed.rss.after" in result.stdout
    receipt = Forger(BUILT.files()).document(".geoai.json")
    receipt["core"]["sampled_tokens"] = 5
    (tmp_path / "edited.json").write_text(
        json.dumps(receipt, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    )
    edited = tallystick("diff", directory, "edited.json", "--json")
    assert edited.returncode == 1
    assert json.loads(edited.stdout)["first"]["field"] == "core.sampled_tokens"
