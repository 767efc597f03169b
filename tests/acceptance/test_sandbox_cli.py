"""``tallystick sandbox`` as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tallystick.cli.main import main
from tallystick.contracts.egress import CHANNEL_NAMES
from tallystick.contracts.sandbox_profile import profile_digest
from tallystick.sandbox import probe
from tallystick.sandbox.profiles import load_profile
from tests.support.egress import example_report, with_probe
from tests.support.sandboxes import ROOT, need_level

CLOSED_FROM = {"none": 0, "process": 3, "namespaces": 20, "full": 32}
LOWER = """\
name: lenient
level: full
lowest: process
limits: {processes: 64, open_files: 64, cpu_seconds: null, memory_bytes: null}
"""


def tallystick(*words: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *before, "-m", "tallystick", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("level", ["none", "process", "namespaces", "full"])
def test_probe_prints_every_channel_as_json(level: str) -> None:
    need_level(level)
    done = tallystick("sandbox", "probe", "--profile", level, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert [one["name"] for one in found["probes"]] == list(CHANNEL_NAMES)
    for one in found["probes"]:
        assert {"name", "result", "expected_errno", "seen_errno"} <= set(one)
        assert one["result"] in ("open", "closed", "unsupported")
    assert sum(one["promised"] for one in found["probes"]) == CLOSED_FROM[level]
    assert found["positive_control"]["result"] == "passed"
    assert "unix_path" in found["positive_control"]["open"]
    assert (found["level"], found["result"], found["lowered"]) == (level, "passed", None)
    assert found["profile_digest"] == profile_digest(load_profile(level))


def test_probe_prints_a_table_for_people() -> None:
    need_level("full")
    done = tallystick("sandbox", "probe")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["channel", "inside", "seen", "promised", "outside"]
    assert any(line.split()[:3] == ["VSOCK", "socket", "closed"] for line in lines)
    assert "profile full, level full: passed" in lines


def test_an_open_channel_is_exit_5_and_still_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dataclasses import replace

    report = replace(with_probe(example_report(), "vsock", None), result="failed")
    monkeypatch.setattr(probe, "probe_sandbox", lambda profile: report)
    assert main(["sandbox", "probe"]) == 5
    captured = capsys.readouterr()
    assert "VSOCK socket" in captured.out
    assert "the sandbox is not closed: VSOCK socket" in captured.err
    assert main(["sandbox", "probe", "--json"]) == 5
    captured = capsys.readouterr()
    assert json.loads(captured.out)["result"] == "failed"
    assert json.loads(captured.err)["error"]["exit_code"] == 5


WITHOUT = ("-m", "tests.support.no_user_namespaces")


def test_where_user_namespaces_are_forbidden_it_is_exit_5_with_what_to_do() -> None:
    need_level("full")
    done = tallystick("sandbox", "probe", before=WITHOUT)
    assert done.returncode == 5
    assert done.stdout == ""
    assert "level full cannot be enforced here" in done.stderr
    assert "user.max_user_namespaces" in done.stderr


def test_a_lower_level_is_used_only_if_the_profile_names_it_and_is_said(tmp_path: Path) -> None:
    need_level("full")
    path = tmp_path / "lenient.yaml"
    path.write_text(LOWER)
    done = tallystick("sandbox", "probe", "--profile", str(path), "--json", before=WITHOUT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["profile"], found["level"]) == ("lenient", "process")
    assert "No space left" in found["lowered"]
    here = json.loads(tallystick("sandbox", "probe", "--profile", str(path), "--json").stdout)
    assert (here["level"], here["lowered"]) == ("full", None)
    path.write_text(LOWER.replace("lowest: process", "lowest: namespaces"))
    assert tallystick("sandbox", "probe", "--profile", str(path), before=WITHOUT).returncode == 5


def test_bad_profiles_are_exit_4(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(LOWER + "network: allowed\n")
    for words in (["--profile", str(path)], ["--profile", "complete"], ["--profile", "/no/file"]):
        done = tallystick("sandbox", "probe", *words)
        assert (done.returncode, done.stdout) == (4, "")


def test_seatbelt_prints_a_text_of_a_weaker_class() -> None:
    done = tallystick("sandbox", "seatbelt", "--read", "/opt/model")
    assert done.returncode == 0
    assert "WEAKER CLASS" in done.stdout
    assert '(allow file-read* (subpath "/opt/model"))' in done.stdout
    assert tallystick("sandbox", "seatbelt", "--profile", "process").returncode == 5
    assert os.path.isabs(sys.executable)
