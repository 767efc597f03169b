"""Lock a child that does nothing, and report on its sandbox."""

from __future__ import annotations

from typing import Final

from tallystick.contracts.egress import EgressReport
from tallystick.contracts.sandbox_profile import SandboxProfile
from tallystick.errors import RunFailedError
from tallystick.sandbox.confinement import Confinement
from tallystick.sandbox.process import Child

_PROGRAM: Final = "tallystick.sandbox.probe_child"
_PATIENCE: Final = 60.0


def probe_sandbox(profile: SandboxProfile) -> EgressReport:
    """Return the report on a sandbox under ``profile`` on this machine, good or bad.

    ``audit.require_passed`` judges it. Raises SandboxError where no acceptable level can be
    enforced, or where the kernel shows the child to be held otherwise than it should be.
    """
    with Child(_PROGRAM, {}, confinement=Confinement(profile, on_open="report")) as child:
        for _ in child.messages(idle_timeout=_PATIENCE):
            pass
        report = child.audit
    if report is None:
        raise RunFailedError("the child was not audited")
    return report
