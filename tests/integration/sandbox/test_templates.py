"""Children forked by a template: held, counted and ended like those that are started afresh."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.canonical.json import JSONValue
from tallystick.errors import IncomparableError, RunFailedError
from tallystick.sandbox.confinement import Confinement
from tallystick.sandbox.process import Child
from tallystick.sandbox.profiles import load_profile
from tallystick.sandbox.template import Template
from tests.support.children import SERVED, use_test_children
from tests.support.runs import children_of, is_running
from tests.support.sandboxes import PATIENCE, ROOT, need_level

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="templates are for Linux")

HOSTILE = "tests.support.children.hostile"
PROGRAM = "tests.support.children.template"
LEVELS = ["none", "process", "namespaces", "full"]


@pytest.fixture(autouse=True)
def _children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_test_children(monkeypatch, tmp_path)


@pytest.fixture
def template(_children: None) -> Iterator[Template]:
    running = Template(PROGRAM, {})
    yield running
    running.close()
    assert not is_running(running.pid)


def forked(template: Template, request: dict[str, Any], level: str | None = None) -> Child:
    confinement = None if level is None else Confinement(load_profile(level))
    program = SERVED if "do" in request else HOSTILE
    return Child(program, request, confinement=confinement, template=template)


def result_of(child: Child) -> dict[str, Any]:
    with child:
        return [message.body for message in child.messages(idle_timeout=PATIENCE)][-1]


def gone(pid: int) -> bool:
    end = time.monotonic() + PATIENCE
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not is_running(pid)


def group_gone(group: int) -> bool:
    """Wait until nothing of a process group runs."""

    def members() -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if os.getpgid(int(entry.name)) == group:
                        found.append(int(entry.name))
        return found

    return all(map(gone, members()))


def test_a_forked_child_is_as_one_that_was_started(template: Template) -> None:
    with Child(SERVED, {"do": "look"}) as child:
        (started,) = child.messages(idle_timeout=PATIENCE)
    found = result_of(forked(template, {"do": "look"}))
    assert found["environment"] == started.body["environment"]
    # The standard streams, the result pipe, and the folder of descriptors that was listed.
    assert len(found["descriptors"]) == len(started.body["descriptors"]) == 5
    assert found["group"] == found["pid"]
    assert found["session"] == template.pid
    assert (found["terminal"], found["interrupt_ignored"]) == (0, True)
    secrets = result_of(forked(template, {"do": "secrets"}))
    assert (secrets["dumpable"], secrets["core"]) == (0, 0)


def test_descriptors_keep_their_numbers(template: Template, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"model")
    file = os.open(tmp_path / "model", os.O_RDONLY)
    high = os.dup2(file, 200, inheritable=False)
    try:
        for descriptor in (file, high):
            os.lseek(descriptor, 0, os.SEEK_SET)
            request: JSONValue = {"do": "read", "descriptor": descriptor}
            with Child(SERVED, request, pass_fds=(descriptor,), template=template) as child:
                (message,) = child.messages(idle_timeout=PATIENCE)
            assert message.body == {"data": "model"}
    finally:
        os.close(file)
        os.close(high)


@pytest.mark.parametrize("level", LEVELS)
def test_each_child_locks_itself_and_is_audited(template: Template, level: str) -> None:
    need_level(level)
    children = []
    for _ in range(2):
        child = forked(template, {"do": "result"}, level)
        result_of(child)
        assert child.audit is not None
        assert (child.audit.level, child.audit.result) == (level, "passed")
        children.append(child)
    inodes = [{one.inode for one in child.audit.namespaces} for child in children if child.audit]
    if level in ("namespaces", "full"):
        own = {os.stat(f"/proc/{template.pid}/ns/{kind}").st_ino for kind in ("user", "net", "mnt")}
        assert all(len(found) == 7 and not found & own for found in inodes)
    assert children_of(template.pid) == ()


def test_a_hostile_child_gets_nothing_more_than_a_fresh_one(
    template: Template, tmp_path: Path
) -> None:
    need_level("full")
    (tmp_path / "key").write_bytes(b"secret")
    request = {"folder": str(tmp_path), "model": 99, "parent": template.pid}
    assert result_of(forked(template, request, "full")) == {"went": []}
    assert template.alive


@pytest.mark.parametrize("level", [None, "full"])
def test_the_end_of_a_child_is_told_and_the_next_one_works(
    template: Template, level: str | None
) -> None:
    if level is not None:
        need_level(level)
    before = len(os.listdir("/proc/self/fd"))
    for number, name in ((signal.SIGKILL, "SIGKILL"), (signal.SIGTERM, "SIGTERM")):
        with forked(template, {"do": "sleep"}, level) as child:
            messages = child.messages(idle_timeout=PATIENCE)
            assert next(messages).kind == "progress"
            (outer,) = children_of(template.pid)
            os.kill(outer, number)
            with pytest.raises(RunFailedError, match=f"killed by {name}"):
                next(messages)
        assert children_of(template.pid) == ()
    noisy = forked(template, {"do": "noise", "fail": 1})
    with noisy as child, pytest.raises(RunFailedError) as caught:
        list(child.messages(idle_timeout=PATIENCE))
    assert "exit status 9" in str(caught.value.found)
    assert "the end" in str(caught.value.found)
    assert result_of(forked(template, {"do": "result"}, level))["echo"] == {"do": "result"}
    assert len(os.listdir("/proc/self/fd")) == before
    # Its standard streams and its socket.
    assert len(os.listdir(f"/proc/{template.pid}/fd")) == 4


def test_leaving_ends_a_child_that_works_and_what_it_forked(template: Template) -> None:
    with forked(template, {"do": "fork"}) as child:
        next(child.messages(idle_timeout=PATIENCE))
        pid = child.pid
    assert group_gone(pid)
    assert template.alive


@pytest.mark.parametrize("level", [None, "process", "full"])
def test_a_child_dies_with_its_template(template: Template, level: str | None) -> None:
    if level is not None:
        need_level(level)
    with forked(template, {"do": "sleep"}, level) as child:
        messages = child.messages(idle_timeout=PATIENCE)
        assert next(messages).kind == "progress"
        os.kill(template.pid, signal.SIGKILL)
        with pytest.raises(RunFailedError, match="before its work was done"):
            next(messages)
        assert gone(child.pid)
    assert not template.alive
    # Without it the next one is started afresh.
    assert result_of(forked(template, {"do": "result"}, level))["echo"] == {"do": "result"}


def test_a_stuck_template_is_given_up(template: Template, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.sandbox.template._REAPING", 0.2)
    monkeypatch.setattr("tallystick.sandbox.template._FORKING", 0.2)
    with forked(template, {"do": "sleep"}) as child:
        next(child.messages(idle_timeout=PATIENCE))
        os.kill(template.pid, signal.SIGSTOP)
    assert gone(child.pid)
    assert not template.alive
    other = Template(PROGRAM, {})
    os.kill(other.pid, signal.SIGSTOP)
    assert result_of(forked(other, {"do": "look"}))["session"] != other.pid
    assert not is_running(other.pid)


@pytest.mark.parametrize(
    ("request_", "kind", "words"),
    [
        ({"error": "IncomparableError"}, IncomparableError, "what"),
        ({"die": 1}, RunFailedError, "template died"),
        ({"defect": 1}, RunFailedError, "not foreseen"),
    ],
)
def test_what_cannot_be_prepared_is_said(
    request_: dict[str, Any], kind: type[Exception], words: str
) -> None:
    before = children_of(os.getpid()), len(os.listdir("/proc/self/fd"))
    with pytest.raises(kind, match=words) as caught:
        Template(PROGRAM, request_)
    assert "private words" not in str(caught.value)
    assert (children_of(os.getpid()), len(os.listdir("/proc/self/fd"))) == before


_SUPERVISOR = """
import sys
sys.executable = sys.argv[1]
from tallystick.sandbox.confinement import Confinement
from tallystick.sandbox.process import Child
from tallystick.sandbox.profiles import load_profile
from tallystick.sandbox.template import Template
template = Template("tests.support.children.template", {}) if sys.argv[3] == "forked" else None
confinement = Confinement(load_profile(sys.argv[2]))
program, request = "tests.support.children.served", {"do": "sleep"}
child = Child(program, request, confinement=confinement, template=template)
next(child.messages(idle_timeout=60))
print(child.pid, template.pid if template else child.pid, flush=True)
next(child.messages(idle_timeout=600))
"""


@pytest.mark.parametrize("how", ["started", "forked"])
@pytest.mark.parametrize("level", ["none", "process", "full"])
def test_nothing_outlives_a_killed_supervisor(level: str, how: str) -> None:
    need_level(level)
    launcher = sys.executable
    interpreter = Path(launcher).read_text(encoding="utf-8").split()[0].removeprefix("#!")
    with subprocess.Popen(
        [interpreter, "-c", _SUPERVISOR, launcher, level, how],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as supervisor:
        assert supervisor.stdout is not None
        pids = [int(word) for word in supervisor.stdout.readline().split()]
        assert all(map(is_running, pids))
        supervisor.kill()
    assert all(map(gone, pids))
