"""Child processes: what they see, and what the supervisor makes of each way in which they end."""

from __future__ import annotations

import os
import re
import signal
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tallystick
from tallystick.errors import (
    EvidenceError,
    IncomparableError,
    InputError,
    RunFailedError,
    TallystickError,
)
from tallystick.sandbox import programs
from tallystick.sandbox.process import Child, run_child
from tests.support.children import RAW, SERVED, use_test_children
from tests.support.ordinary_user import run_as_ordinary_user

PATIENCE = 60.0
DONE = b'{"body":{},"kind":"done"}\n'
RESULT = b'{"body":{"x":1},"kind":"result"}\n'
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture(autouse=True)
def _children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_test_children(monkeypatch, tmp_path)


def served(do: str, **more: Any) -> dict[str, Any]:
    return run_child(SERVED, {"do": do, **more}, idle_timeout=PATIENCE)


def raw(data: bytes = b"", *, idle: float = PATIENCE, **environment: str) -> dict[str, Any]:
    return run_child(RAW, {}, environment={"BYTES": data.hex(), **environment}, idle_timeout=idle)


def test_messages_arrive_in_order_and_the_child_is_gone() -> None:
    with Child(SERVED, {"do": "result", "text": "\u2028 \U0001f30a"}) as child:
        messages = list(child.messages(idle_timeout=PATIENCE))
        pid = child.pid

    assert [message.kind for message in messages] == ["progress", "text", "result"]
    assert messages[0].body == {"what": "counting", "done": 1, "total": 2}
    assert messages[2].body == {"echo": {"do": "result", "text": "\u2028 \U0001f30a"}}
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@linux
def test_peak_memory_is_the_child_s_own() -> None:
    with Child(SERVED, {"do": "result"}) as child:
        list(child.messages(idle_timeout=PATIENCE))

    assert 4 << 20 < child.peak_rss < 200 << 20


def private_child(directory: Path) -> None:
    """Start a child, and look at it as its supervisor and as a curious neighbour would."""
    assert directory.is_dir()
    with Child(SERVED, {"do": "secrets"}) as child:
        messages = iter(child.messages(idle_timeout=PATIENCE))
        body = next(messages).body
        assert body == {"dumpable": 0, "core": 0, "uid": os.getuid()}
        if os.getuid():
            with pytest.raises(PermissionError):
                os.open(f"/proc/{child.pid}/mem", os.O_RDONLY)
            with pytest.raises(PermissionError):
                Path(f"/proc/{child.pid}/environ").read_bytes()
        assert list(messages) == []

    assert 4 << 20 < child.peak_rss < 200 << 20


@linux
def test_the_memory_of_a_child_is_neither_dumped_nor_read(tmp_path: Path) -> None:
    private_child(tmp_path)


def for_everybody(python: Path) -> bool:
    """Whether any user may start ``python``, and it is of our version."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    places = (python, *python.parents)
    return python.name == version and all(place.stat().st_mode & 0o001 for place in places)


@linux
@pytest.mark.skipif(os.getuid() != 0, reason="the test before this one was an ordinary user's")
def test_that_holds_for_an_ordinary_user_too(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = (Path(found).resolve() for found in (sys.executable, "/usr/bin/python3"))
    python = next(filter(for_everybody, candidates), None)
    if python is None:
        pytest.skip("there is no interpreter of this version that an ordinary user may start")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        use_test_children(monkeypatch, Path(folder), python)
        run_as_ordinary_user(private_child)


def test_an_error_comes_back_as_itself() -> None:
    with pytest.raises(TallystickError) as caught:
        served("error", type="IncomparableError")
    assert type(caught.value) is IncomparableError
    assert (caught.value.message, caught.value.expected) == ("what", "this")
    assert (caught.value.found, caught.value.hint) == ("that", "so")


def test_an_error_that_json_cannot_carry_still_arrives() -> None:
    with pytest.raises(InputError) as caught:
        served("surrogate")
    assert caught.value.message == "a name \\udcff"


def test_an_unforeseen_exception_is_a_failed_run_whose_text_stays_private() -> None:
    with pytest.raises(RunFailedError, match="was not foreseen") as caught:
        served("traceback")
    assert caught.value.exit_code == 7
    assert caught.value.found is not None
    assert re.fullmatch(r"ValueError at \w+\.py:\d+", caught.value.found)
    assert "these are the last words" not in str(caught.value)


@pytest.mark.parametrize(
    ("number", "name"),
    [(signal.SIGKILL, "SIGKILL"), (signal.SIGTERM, "SIGTERM"), (signal.SIGABRT, "SIGABRT")]
    + ([(signal.SIGRTMIN + 3, "signal ")] if sys.platform == "linux" else []),
)
def test_a_killed_child_is_a_failed_run(number: int, name: str) -> None:
    with pytest.raises(RunFailedError) as caught:
        served("kill", number=int(number))
    assert (caught.value.found or "").startswith(f"killed by {name}")


def test_a_silent_child_is_ended() -> None:
    child = Child(RAW, {}, environment={"SLEEP": "600"})
    with child, pytest.raises(RunFailedError, match="no progress"):
        list(child.messages(idle_timeout=0.2))
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_a_child_that_speaks_half_a_line_and_falls_silent_is_ended() -> None:
    with pytest.raises(RunFailedError, match="no progress"):
        raw(RESULT[:-5], idle=1.0, SLEEP="600")


def test_a_child_that_closes_its_pipe_and_goes_on_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tallystick.sandbox.process._GRACE", 0.2)
    with pytest.raises(RunFailedError) as caught:
        raw(RESULT, CLOSE="1", SLEEP="600")
    assert caught.value.found == "it closed its pipe and went on"


def test_a_child_that_is_done_and_does_not_go_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.sandbox.process._GRACE", 0.2)
    assert raw(RESULT + DONE, SLEEP="600") == {"x": 1}


def test_a_child_that_ends_without_saying_so_has_failed() -> None:
    with pytest.raises(RunFailedError) as caught:
        raw(RESULT)
    assert caught.value.found == "exit status 0"


def test_a_child_without_a_result_has_failed() -> None:
    with pytest.raises(RunFailedError, match="without a result"):
        raw(DONE)


def test_a_child_need_not_read_its_request() -> None:
    """However large it is: it lies in a file, not in a pipe that would fill up."""
    found = run_child(
        RAW,
        {"large": "x" * 10_000_000},
        environment={"BYTES": (RESULT + DONE).hex()},
        idle_timeout=PATIENCE,
    )
    assert found == {"x": 1}


def test_a_child_out_of_form_has_failed() -> None:
    with pytest.raises(RunFailedError, match="not JSON"):
        raw(RESULT + b"{]\n")


def test_endless_words_on_standard_error_hold_nothing_up() -> None:
    assert served("noise", fail=False) == {}
    with pytest.raises(RunFailedError) as caught:
        served("noise", fail=True)
    assert (caught.value.found or "").startswith("exit status 9; its last words: xxx")
    assert (caught.value.found or "").endswith(" | the end")
    assert len(caught.value.found or "") < 2100


def test_work_that_cannot_be_interrupted_ends_with_its_child() -> None:
    with pytest.raises(RunFailedError) as caught:
        served("stuck")
    assert (caught.value.found or "").startswith("killed by SIGPROF")


@linux
def test_a_child_sees_nothing_but_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(site, "ENABLE_USER_SITE", False)
    for name in ("GGML_CPU_TILED_MM", "OMP_NUM_THREADS", "LD_PRELOAD_X", "TALLYSTICK_RUN_SEED"):
        monkeypatch.setenv(name, "1")
    with open(os.devnull, "rb") as inheritable:
        os.set_inheritable(inheritable.fileno(), True)
        found = run_child(SERVED, {"do": "look"}, environment={"KNOB": "0"})

    assert found["environment"] == {
        "KNOB": "0",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "PATH": "/usr/bin:/bin",
        "TZ": "UTC",
    }
    # Standard input, output and error, the pipe, and the folder that is being listed.
    channel = int(found["arguments"][1])
    assert {0, 1, 2, channel} <= set(found["descriptors"])
    assert len(found["descriptors"]) == 5


def real_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Path(sys.executable).read_text(encoding="utf-8").split()[0]
    monkeypatch.setattr(sys, "executable", first.removeprefix("#!"))


@linux
def test_a_program_that_lies_in_pythonpath_is_found_and_one_beside_us_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real_interpreter(monkeypatch)
    root = str(Path(__file__).resolve().parents[3])
    source = str(Path(tallystick.__file__).parents[1])
    monkeypatch.chdir(root)
    monkeypatch.setenv("PYTHONPATH", source)
    with pytest.raises(RunFailedError, match="before its work was done") as caught:
        served("look")
    assert "No module named 'tests'" in str(caught.value.found)
    monkeypatch.setenv("PYTHONPATH", f"{root}:{source}")
    assert served("look")["environment"]["PYTHONPATH"] == f"{root}:{source}"


@linux
def test_an_install_for_one_user_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    monkeypatch.setattr(site, "getuserbase", lambda: "/home/someone/.local")
    assert served("look")["environment"]["PYTHONUSERBASE"] == "/home/someone/.local"
    assert "-s" not in programs.python_flags()
    monkeypatch.setattr(site, "ENABLE_USER_SITE", False)
    assert "PYTHONUSERBASE" not in served("look")["environment"]
    assert programs.python_flags()[0] == "-s"


def kinds(do: str, **more: Any) -> list[str]:
    with Child(SERVED, {"do": do, **more}) as child:
        return [message.kind for message in child.messages(idle_timeout=PATIENCE)]


def test_a_child_that_computes_says_that_it_lives() -> None:
    assert "alive" in kinds("compute", seconds=0.5)


def test_a_child_that_waits_for_nothing_is_silent() -> None:
    assert kinds("wait", seconds=0.7) == ["result"]


def test_messages_of_many_threads_do_not_mix() -> None:
    with Child(SERVED, {"do": "chorus"}) as child:
        said = [*child.messages(idle_timeout=PATIENCE)]
    assert sorted(each.kind for each in said) == 40 * ["data"] + ["result"] + 40 * ["text"]
    data = sorted(each.data for each in said if each.kind == "data")
    assert data == sorted(b"%d\n" % number * 100_000 for number in range(8) for _ in range(5))


def test_a_child_that_announces_more_than_it_sends_has_failed() -> None:
    with pytest.raises(RunFailedError, match="ended before its work was done"):
        raw(b'{"body":{"size":9},"kind":"data"}\n' + b"12345678")


@pytest.mark.parametrize("kind", ["EvidenceError", "UsageError", "InterruptedRunError"])
def test_a_child_reports_no_verdict_unless_it_was_asked_for_one(kind: str) -> None:
    with pytest.raises(RunFailedError, match="what"):
        served("error", type=kind)


def test_a_child_that_judges_evidence_may_say_so() -> None:
    with (
        Child(SERVED, {"do": "error", "type": "EvidenceError"}) as child,
        pytest.raises(EvidenceError, match="what"),
    ):
        list(child.messages(idle_timeout=PATIENCE, errors=(EvidenceError,)))


def test_a_descriptor_can_be_passed() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"through the pipe")
    found = run_child(SERVED, {"do": "read", "descriptor": reader}, pass_fds=(reader,))
    os.close(reader)
    os.close(writer)

    assert found == {"data": "through the pipe"}


@linux
def test_no_signal_of_a_terminal_reaches_a_child() -> None:
    found = served("look")

    assert found["session"] == found["group"] == found["pid"] != os.getsid(0)
    assert found["terminal"] == 0
    assert found["interrupt_ignored"] is True


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@linux
def test_no_descriptor_is_left_behind() -> None:
    served("result")
    before = open_descriptors()
    for _ in range(7):
        raw(RESULT + DONE)
        with pytest.raises(RunFailedError):
            raw(b"out of form\n")
        with pytest.raises(RunFailedError):
            raw(idle=0.05, SLEEP="600")

    assert open_descriptors() == before


@linux
def test_a_program_that_cannot_be_started_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    before = open_descriptors()
    with pytest.raises(OSError, match="nonexistent"):
        Child(SERVED, {})
    assert open_descriptors() == before


def test_many_open_descriptors_are_no_obstacle() -> None:
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[1], 4096), limits[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert raw(RESULT + DONE) == {"x": 1}
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_an_interrupted_supervisor_ends_its_child() -> None:
    child = Child(RAW, {}, environment={"SLEEP": "600"})

    def interrupted() -> None:
        with child:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def group_is_gone(group: int) -> Iterator[bool]:
    for _ in range(200):
        yield not any(
            stat.rpartition(")")[2].split()[2] == str(group)
            and stat.rpartition(")")[2].split()[0] != "Z"
            for stat in stats()
        )
        time.sleep(0.05)


def stats() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            yield path.read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue


@linux
def test_what_a_child_started_ends_with_it() -> None:
    with Child(SERVED, {"do": "fork"}) as child:
        next(child.messages(idle_timeout=PATIENCE))

    assert any(group_is_gone(child.pid))


@linux
@pytest.mark.parametrize(
    ("how", "closed"), [("is done", False), ("is done", True), ("dies", True), ("dies", False)]
)
def test_what_a_child_leaves_behind_ends_with_it(how: str, closed: bool) -> None:
    """However the child ends, and whether or not what it started keeps its pipe open."""
    with Child(SERVED, {"do": "leave", "how": how, "closed": closed}) as child:
        messages = child.messages(idle_timeout=3 if how == "dies" and not closed else PATIENCE)
        assert next(messages).body["pid"] > 1
        if how == "dies":
            words = "exit status 3" if closed else "made no progress"
            with pytest.raises(RunFailedError, match=words):
                next(messages)
        else:
            assert [message.kind for message in messages] == ["result"]

    assert any(group_is_gone(child.pid))


_SUPERVISOR = """
import sys
sys.executable = sys.argv[1]
from tallystick.sandbox.process import Child
child = Child("tests.support.children.served", {"do": "sleep"})
next(child.messages(idle_timeout=60))
print(child.pid, flush=True)
next(child.messages(idle_timeout=600))
"""


@linux
def test_a_child_dies_with_its_supervisor(tmp_path: Path) -> None:
    launcher = sys.executable
    interpreter = Path(launcher).read_text(encoding="utf-8").split()[0].removeprefix("#!")
    with subprocess.Popen(
        [interpreter, "-c", _SUPERVISOR, launcher], stdout=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        assert alive(pid)
        supervisor.kill()
    for _ in range(200):
        if not alive(pid):
            break
        time.sleep(0.05)

    assert not alive(pid)


@linux
def test_a_child_whose_supervisor_is_gone_already_does_nothing(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-P", "-X", "utf8", "-m", SERVED, str(writer)],
        input=b'{"do":"result"}',
        capture_output=True,
        pass_fds=(writer,),
        check=False,
    )
    os.close(writer)

    assert (done.returncode, done.stderr) == (7, b"")
