"""``submit`` and ``runs`` as a user meets them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tallystick.queues.sqlite.adapter import open_queue, queue_path
from tests.support.documents import BLIND
from tests.support.queues import SECRET, WORKER, job_id, make_result, make_run, run_file, take

Completed = subprocess.CompletedProcess[str]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def tallystick(home: Path, *words: str | Path, env: Mapping[str, str] | None = None) -> Completed:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TALLYSTICK_")}
    result = subprocess.run(
        [sys.executable, "-m", "tallystick", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**kept, "TALLYSTICK_HOME": str(home), **(env or {})},
    )
    for stream in (result.stdout, result.stderr):  # whatever is asked and answered
        assert SECRET not in stream
        assert BLIND.hex() not in stream
    return result


def answer(result: Completed) -> Any:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def error(result: Completed, code: int) -> Any:
    assert (result.returncode, result.stdout) == (code, "")
    return json.loads(result.stderr)["error"]


def write_run(directory: Path, number: int = 0) -> Path:
    path = directory / f"RUN-{number}.json"
    path.write_bytes(json.dumps(json.loads(run_file(number)), indent=2).encode())
    return path


def test_twenty_runs_are_submitted_once(tmp_path: Path, home: Path) -> None:
    files = [write_run(tmp_path, number) for number in range(20)]
    first = answer(tallystick(home, "submit", *files, "--json"))["submissions"]
    assert [item["job_id"] for item in first] == [job_id(number) for number in range(20)]
    assert {(item["created"], item["state"]) for item in first} == {("new", "pending")}
    assert first[3]["run_id"] == make_run(3).run_id
    assert first[3]["file"] == str(files[3])
    again = answer(tallystick(home, "submit", *files[:2], "--json"))["submissions"]
    assert {item["created"] for item in again} == {"existing"}
    listed = answer(tallystick(home, "runs", "ls", "--json"))
    assert listed["counts"]["pending"] == len(listed["runs"]) == 20
    assert sorted(os.listdir(home)) == ["queue.sqlite3"]


def test_words_for_people(tmp_path: Path, home: Path) -> None:
    result = tallystick(home, "submit", write_run(tmp_path))
    assert result.returncode == 0
    assert result.stdout.split()[:2] == [job_id()[7:19], "pending"]
    assert "known, pending" in tallystick(home, "submit", write_run(tmp_path)).stdout
    line, total = tallystick(home, "runs", "ls").stdout.splitlines()
    assert line.split()[:3] == [job_id()[7:19], "pending", "0/3"]
    assert total == "1 pending"


def test_what_became_of_a_run(tmp_path: Path, home: Path) -> None:
    tallystick(home, "submit", write_run(tmp_path), "--priority", "5", "--max-attempts", "9")
    with open_queue(queue_path(home)) as queue:
        queue.fail(take(queue), "the engine aborted", retry="again")
        queue.complete(take(queue), make_result(place="receipts/one"))
    shown = answer(tallystick(home, "runs", "show", job_id()[7:15], "--json"))
    assert (shown["state"], shown["priority"], shown["attempts"]) == ("done", 5, 2)
    assert (shown["max_attempts"], shown["lease_epoch"], shown["worker_id"]) == (9, 2, None)
    assert shown["result"] == {
        "receipt_digest": make_result().receipt_digest,
        "status": "complete",
        "place": "receipts/one",
    }
    first, second = shown["leases"]
    assert (first["ended"], first["reason"]) == ("failed", "the engine aborted")
    assert (second["ended"], second["worker_id"], second["reason"]) == ("completed", WORKER, None)
    words = tallystick(home, "runs", "show", make_run().run_id).stdout
    assert f"lease 1  {WORKER}" in words
    assert "failed" in words
    assert ": the engine aborted" in words
    assert "receipts/one" in words
    only_dead = answer(tallystick(home, "runs", "ls", "--state", "dead", "--json"))
    assert (only_dead["runs"], only_dead["counts"]["done"]) == ([], 1)


def test_cancel_and_retry(tmp_path: Path, home: Path) -> None:
    tallystick(home, "submit", write_run(tmp_path, 0), write_run(tmp_path, 1))
    for _ in range(2):
        cancelled = answer(tallystick(home, "runs", "cancel", job_id(0), "--json"))
        assert (cancelled["state"], cancelled["leases"]) == ("cancelled", [])
    assert (
        "cannot be tried"
        in error(tallystick(home, "runs", "retry", job_id(0), "--json"), 4)["message"]
    )
    with open_queue(queue_path(home)) as queue:
        queue.fail(take(queue), "wrong digest", retry="never")
    assert (
        "cannot be cancelled"
        in error(tallystick(home, "runs", "cancel", job_id(1), "--json"), 4)["message"]
    )
    retried = answer(tallystick(home, "runs", "retry", job_id(1), "--json"))
    assert (retried["state"], retried["attempts"], retried["reason"]) == (
        "pending",
        0,
        "wrong digest",
    )


def test_one_bad_file_and_nothing_is_queued(tmp_path: Path, home: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_bytes(run_file(1).replace(b'"max_tokens":3', b'"max_tokens":0'))
    found = error(tallystick(home, "submit", write_run(tmp_path), bad, "--json"), 4)
    assert found["message"].startswith(f"{bad} is no dac.InferenceRun: run: bad field max_tokens")
    assert not home.exists()
    absent = tmp_path / "missing.json"
    missing = error(tallystick(home, "submit", absent, "--json"), 4)
    assert missing["message"] == "the declared run cannot be read"
    assert missing["found"] == f"{absent}: No such file or directory"


def test_another_queue(tmp_path: Path, home: Path) -> None:
    place = tmp_path / "elsewhere" / "q.db"
    tallystick(home, "submit", write_run(tmp_path), "--queue", place)
    assert not home.exists()
    by_name = {"TALLYSTICK_RUNS_LS_QUEUE": str(place)}
    assert answer(tallystick(home, "runs", "ls", "--json", env=by_name))["counts"]["pending"] == 1


@pytest.mark.parametrize("verb", [["ls"], ["show", "0" * 64], ["cancel", "0" * 64]])
def test_a_queue_that_is_not_there(home: Path, verb: list[str]) -> None:
    found = error(tallystick(home, "runs", *verb, "--json"), 6)
    assert found["message"].startswith("there is no queue at")
    assert not home.exists()


def test_a_queue_that_cannot_be_used(tmp_path: Path, home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "queue.sqlite3").touch(mode=0o600)
    assert error(tallystick(home, "submit", write_run(tmp_path), "--json"), 6)["hint"]
    assert (home / "queue.sqlite3").read_bytes() == b""


@pytest.mark.parametrize(
    "words",
    [
        ["submit"],
        ["submit", "RUN", "--priority", "101"],
        ["submit", "RUN", "--max-attempts", "0"],
        ["submit", "RUN", "--spool", "S"],
        ["submit", "--spool", "S", "--priority", "1"],
        ["runs", "ls", "--state", "lost"],
        ["runs", "ls", "--limit", "0"],
        ["runs", "show"],
    ],
)
def test_wrong_use(tmp_path: Path, home: Path, words: list[str]) -> None:
    run = str(write_run(tmp_path))
    given = [run if word == "RUN" else word for word in words]
    error(tallystick(home, *given, "--json"), 2)


@pytest.mark.parametrize("name", ["7", "nothing", "--", "0" * 64])
def test_a_name_of_nothing(tmp_path: Path, home: Path, name: str) -> None:
    tallystick(home, "submit", write_run(tmp_path))
    words = ["runs", "show", "--json", name]
    error(tallystick(home, *words), 2 if name == "--" else 4)


def test_the_spool_folder(tmp_path: Path, home: Path) -> None:
    spool = tmp_path / "spool"
    assert tallystick(home, "submit", "--spool", spool).stdout == "nothing was dropped\n"
    write_run(spool / "incoming")
    bad = spool / "incoming" / "bad\x1b[2J.json"
    bad.write_bytes(b"{}")
    os.utime(bad, (1_000_000_000, 1_000_000_000))
    (spool / "incoming" / "now.json").write_bytes(b"{")
    result = tallystick(home, "submit", "--spool", spool, "--json")
    assert result.returncode == 4
    found = json.loads(result.stdout)
    assert [item["job_id"] for item in found["submissions"]] == [job_id()]
    (refused,) = found["refused"]
    assert refused["file"] == "bad\\x1b[2J.json"
    assert found["unfinished"] == ["now.json"]
    assert "refused: " in result.stderr
    assert "\x1b" not in result.stdout + result.stderr
    assert answer(tallystick(home, "runs", "ls", "--json"))["counts"]["pending"] == 1
