"""Children that do their worst in a finished sandbox: nothing gets out, nothing is left."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tallystick.contracts.sandbox_profile import SandboxLimits, SandboxProfile
from tallystick.errors import RunFailedError, SandboxError
from tallystick.sandbox import readback
from tallystick.sandbox.confinement import Confinement
from tallystick.sandbox.process import Child
from tallystick.sandbox.profiles import load_profile
from tests.support.children import use_test_children
from tests.support.runs import children_of, is_running
from tests.support.sandboxes import PATIENCE, need_level

HOSTILE = "tests.support.children.hostile"
#: What level namespaces leaves open, as sandbox.md says: it is bounded, or stays inside.
LEFT_OPEN = {"fill shared memory", "fork", "socket pair", "kill everybody", "be dumped"}

NOWHERE: dict[str, Any] = {"folder": "/", "model": 99, "parent": 1}


@pytest.fixture(autouse=True)
def _children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_test_children(monkeypatch, tmp_path)


def hostile(level: str, tmp_path: Path, **request: Any) -> tuple[dict[str, Any], Child]:
    model = tmp_path / "model"
    model.write_bytes(b"model")
    (tmp_path / "key").write_bytes(b"secret")
    descriptor = os.open(model, os.O_RDONLY)
    words = {"folder": str(tmp_path), "model": descriptor, "parent": os.getpid(), **request}
    confinement = Confinement(load_profile(level))
    try:
        with Child(HOSTILE, words, pass_fds=(descriptor,), confinement=confinement) as child:
            (message,) = child.messages(idle_timeout=PATIENCE)
            assert message.kind == "result"
    finally:
        os.close(descriptor)
    assert model.read_bytes() == b"model"
    return message.body, child


def test_nothing_goes_through_at_level_full(tmp_path: Path) -> None:
    need_level("full")
    # The model's descriptor is there to be read.
    body, _ = hostile("full", tmp_path, skip=["use another descriptor"])
    assert body["went"] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "launcher", "model"]


def test_what_namespaces_leave_open_is_what_is_said(tmp_path: Path) -> None:
    need_level("namespaces")
    body, child = hostile("namespaces", tmp_path, skip=["use another descriptor", "execute"])
    assert set(body["went"]) <= LEFT_OPEN
    assert "fork" in body["went"]
    assert children_of(os.getpid()) == ()
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_only_the_given_descriptors_are_open(tmp_path: Path) -> None:
    need_level("full")
    with Child(HOSTILE, dict(NOWHERE), confinement=Confinement(load_profile("full"))) as child:
        (message,) = child.messages(idle_timeout=PATIENCE)
    assert message.body["went"] == []


def test_a_held_child_that_is_killed_says_by_what() -> None:
    need_level("full")
    with Child(HOSTILE, {"wait": 1}, confinement=Confinement(load_profile("full"))) as child:
        messages = child.messages(idle_timeout=PATIENCE)
        assert next(messages).kind == "progress"
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(RunFailedError, match="killed by SIGKILL"):
            next(messages)
    assert children_of(os.getpid()) == ()


@pytest.mark.parametrize("how", ["abort", "crash"])
def test_a_crashing_child_is_a_failed_run(how: str) -> None:
    # The first process of a namespace cannot end itself by SIGABRT: the C library then faults.
    need_level("full")
    with (
        Child(HOSTILE, {how: 1}, confinement=Confinement(load_profile("full"))) as child,
        pytest.raises(RunFailedError, match="killed by SIG"),
    ):
        list(child.messages(idle_timeout=PATIENCE))


@pytest.mark.parametrize("lie", ["locked", "control", "refused", "data", "error"])
def test_lies_on_the_result_pipe_change_nothing_about_the_sandbox(lie: str) -> None:
    need_level("full")
    confinement = Confinement(load_profile("full"))
    with Child(HOSTILE, {"lie": lie}, confinement=confinement) as child:
        report = child.audit
        try:
            messages = [message.kind for message in child.messages(idle_timeout=PATIENCE)]
        except RunFailedError:
            messages = []
        assert messages in ([], [lie])
        assert child.audit is report
    assert report is not None
    assert report.result == "passed"


def test_nothing_survives_the_outer_process() -> None:
    need_level("full")
    with Child(HOSTILE, {"wait": 1}, confinement=Confinement(load_profile("full"))) as child:
        messages = child.messages(idle_timeout=PATIENCE)
        assert next(messages).kind == "progress"
        held, (outer,) = child.pid, children_of(os.getpid())
        assert outer != held
        os.kill(outer, signal.SIGKILL)
        with pytest.raises(RunFailedError):
            next(messages)
    assert gone(held)


def gone(pid: int) -> bool:
    """Wait for a process that the kernel is ending, and that somebody else reaps."""
    end = time.monotonic() + PATIENCE
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not is_running(pid)


def test_memory_and_time_are_bounded_where_the_profile_says_so() -> None:
    need_level("full")
    limits = SandboxLimits(processes=8, open_files=32, cpu_seconds=60, memory_bytes=1 << 30)
    profile = SandboxProfile("tight", "full", None, limits)
    with Child(HOSTILE, dict(NOWHERE), confinement=Confinement(profile)) as child:
        text = Path(f"/proc/{child.pid}/limits").read_text()
        (message,) = child.messages(idle_timeout=PATIENCE)
    assert message.body["went"] == []
    values = {line[:25].strip(): line[25:].split()[:2] for line in text.splitlines()[1:]}
    assert values["Max processes"] == ["8", "8"]
    assert values["Max open files"] == ["32", "32"]
    assert values["Max cpu time"] == ["60", "61"]
    assert values["Max file size"] == values["Max core file size"] == ["0", "0"]
    assert values["Max locked memory"] == ["0", "0"]
    assert (1 << 30) < int(values["Max address space"][1]) < (8 << 30)


def test_the_result_is_refused_when_the_kernel_s_word_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    need_level("process")
    confinement = Confinement(load_profile("process"))
    with Child(HOSTILE, {"lie": "text"}, confinement=confinement) as child:
        real = readback.read_status

        def otherwise(pid: int) -> Any:
            return replace(real(pid), effective=1)

        monkeypatch.setattr(readback, "read_status", otherwise)
        with pytest.raises(SandboxError, match="not held as it was"):
            list(child.messages(idle_timeout=PATIENCE))
