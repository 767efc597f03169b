"""The supervisor's half: it takes no child's word, and says what to do where a level fails."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tallystick.canonical.json import jcs
from tallystick.contracts.codec import encode
from tallystick.contracts.egress import CHANNELS
from tallystick.errors import RunFailedError, SandboxError
from tallystick.sandbox.audit import require_passed
from tallystick.sandbox.cage_spec import LockedReport, Observations, Refusal
from tallystick.sandbox.confinement import Confinement, Ends, Held, await_lock, refused
from tallystick.sandbox.profiles import load_profile
from tests.support.egress import example_report, with_probe

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def sightings(level: str) -> dict[str, str | None]:
    """What the probes of a perfect sandbox of ``level`` see."""
    return {channel.name: next(iter(channel.expected(level)), None) for channel in CHANNELS}


def control() -> tuple[str, Any]:
    return "control", encode(Observations.of(dict.fromkeys(sightings("none"))))


def locked(pid: int, level: str = "full") -> tuple[str, Any]:
    return "locked", encode(LockedReport(pid, 0, None, Observations.of(sightings(level))))


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process that is not locked at all."""
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    process.kill()
    process.wait()


def heard(*messages: tuple[str, Any], process: int, level: str = "full") -> Held | Refusal | None:
    """Let a child at ``process`` say ``messages`` and end."""
    report, theirs = os.pipe()
    go_end, go = os.pipe()
    with contextlib.ExitStack() as stack:
        for descriptor in (report, go_end, go):
            stack.callback(os.close, descriptor)
        for kind, body in messages:
            os.write(theirs, jcs({"kind": kind, "body": body}) + b"\n")
        os.close(theirs)
        ends = Ends(-1, (), report, go, contextlib.ExitStack())
        return await_lock(ends, process, Confinement(load_profile(level)), level, ())


@pytest.mark.parametrize("level", ["process", "namespaces", "full"])
def test_a_child_that_only_says_it_is_locked_is_refused(level: str, sleeper: int) -> None:
    with pytest.raises(SandboxError, match="the kernel says otherwise"):
        heard(control(), locked(sleeper, level), process=sleeper, level=level)


@pytest.mark.parametrize("other", ["ours", "init", "nobody"])
def test_another_process_cannot_stand_for_it(other: str, sleeper: int) -> None:
    pid = {"ours": os.getpid(), "init": 1, "nobody": 2**22 + 1}[other]
    with pytest.raises(SandboxError):
        heard(control(), locked(pid), process=sleeper)


def test_a_refusal_and_an_early_end_are_told_apart(sleeper: int) -> None:
    refusal = Refusal("namespaces", "EPERM", "unshare: not permitted")
    for before in ((), (control(),)):
        assert heard(*before, ("refused", encode(refusal)), process=sleeper) == refusal
        assert heard(*before, process=sleeper) is None
    assert heard(locked(sleeper), process=sleeper) is None


@pytest.mark.parametrize(
    "messages",
    [
        [("hello", {})],
        [control(), control()],
        [locked(1), locked(1)],
        [locked(1), ("refused", encode(Refusal("a", "b", "c")))],
        [("control", {})],
        [("control", {"probes": [{"name": "tcp4", "seen": "fine"}]})],
        [("refused", {"step": "x"})],
        [("locked", {"pid": "1"})],
    ],
)
def test_reports_out_of_form_are_a_failed_run(
    messages: list[tuple[str, Any]], sleeper: int
) -> None:
    with pytest.raises(RunFailedError):
        heard(*messages, process=sleeper)


def test_missing_probes_are_no_report(sleeper: int) -> None:
    kind, body = control()
    body["probes"].pop()
    with pytest.raises(SandboxError, match="every channel"):
        heard((kind, body), locked(sleeper, "none"), process=sleeper, level="none")


@pytest.mark.parametrize(
    ("step", "error", "words"),
    [
        ("namespaces", "ENOSPC", "user.max_user_namespaces"),
        ("namespaces", "EPERM", "apparmor_restrict_unprivileged_userns"),
        ("user namespace", "EPERM", "AppArmor"),
        ("namespaces", "ENOSYS", "kernel with namespaces"),
        ("root", "ENOSYS", "Linux 5.12"),
        ("runtime", "EACCES", "readable by every user"),
        ("filter", "EINVAL", "x86-64"),
        ("system", "ENOSYS", "docs/spec/sandbox.md"),
    ],
)
def test_a_level_that_cannot_be_reached_says_what_to_do(step: str, error: str, words: str) -> None:
    told = refused(Refusal(step, error, "it failed"), load_profile("full"), "full")
    assert told.exit_code == 5
    assert told.found == f"{step}: it failed"
    assert words in str(told.hint)
    assert "lowest" in str(told.hint)


def test_open_channels_and_dead_controls_are_exit_5() -> None:
    require_passed(example_report())
    with pytest.raises(SandboxError, match="NETLINK socket") as raised:
        require_passed(with_probe(example_report(), "netlink", None))
    assert raised.value.exit_code == 5
    assert raised.value.found == "netlink: open"
    with pytest.raises(SandboxError, match="not closed") as raised:
        require_passed(with_probe(example_report(), "tcp4", "ETIMEDOUT"))
    assert raised.value.found == "tcp4: unsupported with ETIMEDOUT"
    with pytest.raises(SandboxError, match="prove nothing"):
        require_passed(with_probe(example_report(), "unix_path", "EAFNOSUPPORT", "ENOENT"))
