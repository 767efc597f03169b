"""What tests of real sandboxes share: the condition under which they can run, and two users."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from tallystick.contracts.egress import EgressReport
from tallystick.contracts.sandbox_profile import SandboxProfile
from tallystick.errors import SandboxError
from tallystick.sandbox.confinement import Confinement
from tallystick.sandbox.process import Child
from tallystick.sandbox.profiles import load_profile

PROBE_CHILD = "tallystick.sandbox.probe_child"
PATIENCE = 300.0
ROOT = Path(__file__).resolve().parents[2]


def audit_of(profile: str | SandboxProfile) -> EgressReport:
    """Lock a child that does nothing under a profile; return its report, good or bad."""
    chosen = load_profile(profile) if isinstance(profile, str) else profile
    with Child(PROBE_CHILD, {}, confinement=Confinement(chosen, on_open="report")) as child:
        assert [message.kind for message in child.messages(idle_timeout=PATIENCE)] == ["result"]
        assert child.audit is not None
        return child.audit


@cache
def _why_not(level: str) -> str | None:
    try:
        audit_of(level)
    except SandboxError as error:
        return str(error)
    return None


def need_level(level: str) -> None:
    """Skip with the reason where ``level`` cannot be enforced; as root in CI that is a failure."""
    if sys.platform != "linux":
        pytest.skip("the sandbox is for Linux")
    if (reason := _why_not(level)) is not None:
        if os.environ.get("CI") and os.geteuid() == 0:
            pytest.fail(reason)
        pytest.skip(reason)


def as_nobody(words: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with ``words`` as nobody, from a runtime that nobody can read."""
    if os.geteuid() != 0:
        pytest.skip("only root can become nobody")
    return subprocess.run(
        [sys.executable, "-m", "tests.support.readable_runtime", *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
