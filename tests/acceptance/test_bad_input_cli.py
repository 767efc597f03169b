"""Whatever goes wrong: the right exit code, plain words, no receipt, and nothing left behind."""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tallystick.errors import UnavailableError
from tallystick.worker.request import RunOptions
from tallystick.worker.run import run
from tests.support.gguf_bytes import U32, GgufBytes, array, scalar, tiny
from tests.support.ordinary_user import run_as_ordinary_user
from tests.support.runs import Completed, EngineHome, children_of, is_running
from tests.support.small_disk import small_disk

Endless = Callable[[str], Path]

PROMPT = "A tally stick is split in two."
_GIB = 1 << 30
_WAIT = 120.0  # seconds until a test gives up, not a measure of anything


class Place:
    """A fresh home, output folder and temp folder, in which nothing may stay."""

    def __init__(self, folder: Path, home: EngineHome) -> None:
        self.home = home
        self.out = folder / "out"
        self.temp = folder / "temp"
        self.temp.mkdir()
        self.before = self._receipts()

    def warm(self, model: Path) -> None:
        """Calibrate ``model``, so that what follows is the run alone."""
        self.home.run(model, PROMPT, 1)
        self.before = self._receipts()

    def _receipts(self) -> set[Path]:
        return set((self.home.path / "receipts").glob("*"))

    def words(self, *words: str | Path) -> tuple[str | Path, ...]:
        return ("run", "--json", "--output-dir", self.out, *words)

    @property
    def variables(self) -> dict[str, str]:
        return {"TMPDIR": str(self.temp)}

    def run(self, *words: str | Path, **changes: Any) -> Completed:
        return self.home.cli(*self.words(*words), variables=self.variables, **changes)

    def is_clean(self) -> bool:
        partial = [path for path in self.home.path.rglob("*") if ".partial" in path.name]
        return (
            not self.out.exists()
            and list(self.temp.iterdir()) == []
            and self._receipts() == self.before
            and partial == []
        )

    def refuses(self, done: Completed, code: int, *words: str) -> dict[str, Any]:
        """Check one refusal and return the error."""
        assert done.returncode == code, done.stderr
        assert done.stdout == ""
        # The progress of long work may come first.
        error = json.loads(done.stderr.splitlines()[-1])["error"]
        assert error["exit_code"] == code
        text = " ".join(str(error[name]) for name in ("message", "expected", "found", "hint"))
        for word in words:
            assert word in text
        assert PROMPT not in done.stderr
        assert "Traceback" not in done.stderr
        assert self.is_clean()
        assert isinstance(error, dict)
        return error


@pytest.fixture
def place(tmp_path: Path, engine_home: EngineHome) -> Place:
    return Place(tmp_path, engine_home)


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (2 * _GIB, 2 * _GIB))


HOSTILE = {
    "empty": b"",
    "not a model": b"PK\x03\x04" * 1000,
    "magic alone": b"GGUF",
    "an old version": tiny().build().replace(struct.pack("<I", 3), struct.pack("<I", 1), 1),
    "2^60 entries": GgufBytes(entry_count=2**60).build(),
    "2^60 tensors": GgufBytes(tensor_count=2**60).build(),
    "a string of 2^62 bytes": b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62),
    "an array of 2^40 strings": tiny()
    .with_entries(("x", struct.pack("<IIQ", 9, 8, 2**40)))
    .build(),
    "no architecture": GgufBytes(entries=(("general.name", scalar(8, "x")),)).build(),
    "arrays in arrays": tiny()
    .with_entries(("x", struct.pack("<IIQ", 9, 9, 1) * 200 + array(5, [1])))
    .build(),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_files(data: bytes, place: Place, tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(data)
    done = place.run("--model", path, PROMPT, preexec_fn=_limit_memory)
    place.refuses(done, 4)


@pytest.mark.parametrize("cut", ["after the header", "mid-tensor", "minus one byte"])
def test_truncated_files(cut: str, toy_llama: Path, place: Place, tmp_path: Path) -> None:
    data = toy_llama.read_bytes()
    end = {"after the header": 20_000, "mid-tensor": len(data) // 2, "minus one byte": -1}[cut]
    path = tmp_path / "short.gguf"
    path.write_bytes(data[:end])
    place.refuses(place.run("--model", path, PROMPT), 4, "truncated")


def test_a_directory(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "model.gguf"
    folder.mkdir()
    place.refuses(place.run("--model", folder, PROMPT), 4, "directory")


def test_no_such_model(place: Place, tmp_path: Path) -> None:
    place.refuses(place.run("--model", tmp_path / "no.gguf", PROMPT), 4, "no.gguf")
    place.refuses(place.run("--model", "nosuchmodel", PROMPT), 4, "nosuchmodel")


def test_an_unknown_architecture_exits_3(toy_llama: Path, place: Place, tmp_path: Path) -> None:
    # Five letters for five: every length stays as it is.
    path = tmp_path / "nosuch.gguf"
    path.write_bytes(toy_llama.read_bytes().replace(b"llama", b"nosuc"))
    place.refuses(place.run("--model", path, PROMPT), 3, "architecture", "nosuc")


def _with_number(model: Path, key: str, value: int, into: Path) -> Path:
    start = key.encode() + struct.pack("<I", U32)
    data = bytearray(model.read_bytes())
    place_of_value = data.index(start) + len(start)
    data[place_of_value : place_of_value + 4] = struct.pack("<I", value)
    into.write_bytes(data)
    return into


def test_too_many_layers_exit_4(toy_moe: Path, place: Place, tmp_path: Path) -> None:
    path = _with_number(toy_moe, "qwen3moe.block_count", 2**32 - 1, tmp_path / "layers.gguf")
    place.refuses(place.run("--model", path, PROMPT), 4, "layers", str(2**32 - 1))


def test_too_many_experts_exit_4(toy_moe: Path, place: Place, tmp_path: Path) -> None:
    path = _with_number(toy_moe, "qwen3moe.expert_used_count", 17, tmp_path / "experts.gguf")
    place.refuses(place.run("--model", path, PROMPT), 4, "used experts", "17")


def test_an_engine_abort_exits_7(toy_moe: Path, place: Place, tmp_path: Path) -> None:
    # Another width of the rotation than of the heads: the engine does not refuse this, it aborts.
    path = _with_number(toy_moe, "qwen3moe.rope.dimension_count", 66, tmp_path / "aborts.gguf")
    done = place.run("--model", path, PROMPT, preexec_fn=_limit_memory)
    error = place.refuses(done, 7, "SIGABRT", "GGML_ASSERT")
    # No debugger is called to the scene: it would print what the engine had in its hands.
    assert error["found"].count("\n") <= 2


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (b"", "empty"),
        (b"caf\xe9", "not UTF-8"),
        (b"\xed\xa0\x80", "not UTF-8"),
        (b"a\x00b", "NUL"),
        (b"x" * (2 << 20), "too long"),
    ],
    ids=["empty", "latin-1", "surrogate", "nul", "2 MiB"],
)
def test_bad_prompts(
    prompt: bytes, words: str, toy_llama: Path, place: Place, tmp_path: Path
) -> None:
    file = tmp_path / "prompt"
    file.write_bytes(prompt)
    place.refuses(place.run("--model", toy_llama, "--prompt-file", file), 4, words)
    done = place.run("--model", toy_llama, "--prompt-stdin", stdin=prompt)
    place.refuses(done, 4, words)


def test_bad_prompts_as_arguments(toy_llama: Path, place: Place) -> None:
    place.refuses(place.run("--model", toy_llama, ""), 4, "empty")
    place.refuses(place.run("--model", toy_llama, os.fsdecode(b"caf\xe9")), 4, "Unicode")


def test_bad_prompt_files(toy_llama: Path, place: Place, tmp_path: Path) -> None:
    for path in (tmp_path / "no", tmp_path):
        place.refuses(place.run("--model", toy_llama, "--prompt-file", path), 4, "prompt file")


@pytest.mark.parametrize("n", ["0", "-1", "1025", "99999999999999999999", "two"])
def test_a_bad_number_of_tokens_exits_2(n: str, toy_llama: Path, place: Place) -> None:
    place.refuses(place.run("--model", toy_llama, "-n", n, PROMPT), 2)


def test_beyond_the_context_exits_4(endless_model: Endless, place: Place) -> None:
    model = endless_model("llama-q8_0")
    place.warm(model)
    words = ("--model", model, "-n", "1024", "--prompt-stdin")
    # The toys have a context of 4096 tokens and one token for each letter.
    error = place.refuses(place.run(*words, stdin="z" * 3073), 4, "do not fit the context")
    assert "3073" in error["found"]
    assert "4096" in error["expected"]


def test_an_output_folder_that_is_not_empty(toy_llama: Path, place: Place) -> None:
    place.out.mkdir(mode=0o700)
    mine = place.out / "mine.txt"
    mine.write_text("mine")
    done = place.run("--model", toy_llama, PROMPT)
    assert (done.returncode, done.stdout) == (6, "")
    assert "is not empty" in done.stderr
    assert [path.name for path in place.out.iterdir()] == ["mine.txt"]
    assert mine.read_text() == "mine"


def test_an_output_folder_that_cannot_be_made(toy_llama: Path, place: Place) -> None:
    file = place.temp / "file"
    file.write_text("in the way")
    done = place.home.cli(
        "run", "--model", toy_llama, "--json", "--output-dir", file / "out", PROMPT
    )
    file.unlink()
    place.refuses(done, 6, "cannot write to")


def test_an_output_folder_of_someone_else(toy_llama: Path) -> None:
    # Through the library: another user may be unable to start this interpreter. The folder is
    # checked first, so neither engine nor model are touched.
    def body(folder: Path) -> None:
        closed = folder / "closed"
        closed.mkdir(mode=0o500)
        with pytest.raises(UnavailableError, match="cannot write to") as caught:
            run(
                str(toy_llama),
                RunOptions(prompt=PROMPT),
                output_dir=closed / "out",
                home=folder / "home",
            )
        assert (caught.value.exit_code, caught.value.found) == (6, "Permission denied")
        assert sorted(path.name for path in folder.rglob("*")) == ["closed"]

    run_as_ordinary_user(body)


@pytest.mark.parametrize("kibibytes", [16, 72])
def test_a_full_disk(kibibytes: int, endless_model: Endless, place: Place, tmp_path: Path) -> None:
    # 16: no room for a set at all, seen before the run. 72: room for the probe, not for this set.
    model = endless_model("llama-q8_0")
    with small_disk(tmp_path / "disk", f"size={kibibytes}k,mode=0700") as disk:
        done = place.home.cli(
            *("run", "--model", model, "--json", "--output-dir", disk / "out", "-n", "512"),
            *("--prompt-stdin",),
            stdin="z" * 512,
        )
        assert list(disk.iterdir()) == []
    # The state store is the first file of a set that is made, and SQLite has words of its own.
    place.refuses(done, 6, {16: "No space left on device", 72: "no room is left"}[kibibytes])


def test_a_full_disk_under_the_data_folder(toy_llama: Path, place: Place, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=16k,mode=0700") as disk:
        done = EngineHome(disk / "home").cli("run", "--model", toy_llama, "--json", PROMPT)
        assert [path for path in disk.rglob("*") if path.is_file()] == []
    place.refuses(done, 6, "No space left on device")


def _started(place: Place, model: Path, prompt: str) -> subprocess.Popen[bytes]:
    """Start a long run and return when its answer has begun."""
    process = place.home.start(
        "run", "--model", model, "--output-dir", place.out, "-n", "1024", prompt,
        variables=place.variables,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.read(1) != b""
    return process


def _ended(process: subprocess.Popen[bytes]) -> str:
    """Wait for the end of a run and return what it said."""
    _, errors = process.communicate(timeout=_WAIT)
    return errors.decode()


def _engine_child(process: subprocess.Popen[bytes]) -> int:
    (child,) = children_of(process.pid)
    return child


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@linux_only
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_an_interrupted_run(number: signal.Signals, endless_model: Endless, place: Place) -> None:
    model = endless_model("hybrid-q4k")
    place.warm(model)
    process = _started(place, model, PROMPT)
    child = _engine_child(process)
    process.send_signal(number)
    errors = _ended(process)
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert not is_running(child)
    assert place.is_clean()


@linux_only
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT], ids=lambda n: n.name)
def test_a_killed_engine(number: signal.Signals, endless_model: Endless, place: Place) -> None:
    model = endless_model("hybrid-q4k")
    place.warm(model)
    process = _started(place, model, PROMPT)
    child = _engine_child(process)
    os.kill(child, number)
    errors = _ended(process)
    assert process.returncode == 7, errors
    assert f"killed by {number.name}" in errors
    assert PROMPT not in errors
    assert not is_running(child)
    assert place.is_clean()


@linux_only
def test_a_killed_supervisor_takes_its_engine_along(endless_model: Endless, place: Place) -> None:
    model = endless_model("hybrid-q4k")
    place.warm(model)
    process = _started(place, model, PROMPT)
    child = _engine_child(process)
    process.kill()
    _ended(process)
    deadline = time.monotonic() + _WAIT
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(child)
    assert [path for path in place.out.rglob("*") if path.is_file()] == []
