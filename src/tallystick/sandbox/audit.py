"""From what was seen to a verdict: the report of a finished sandbox, and what is wrong with it."""

from __future__ import annotations

import platform

from tallystick.contracts.egress import (
    CHANNEL_NAMES,
    REPORT_SCHEMA,
    EgressReport,
    NamespaceInode,
    Status,
    broken_promises,
    failed_controls,
    make_probe,
    title_of,
)
from tallystick.contracts.sandbox_profile import SandboxProfile, profile_digest
from tallystick.errors import SandboxError
from tallystick.sandbox.cage_spec import LockedReport, Observations

_SHORT = 200


def make_report(
    profile: SandboxProfile,
    level: str,
    lowered: str | None,
    control: Observations,
    locked: LockedReport,
    status: Status,
    namespaces: tuple[NamespaceInode, ...],
) -> EgressReport:
    """Return the report of one finished sandbox. Raises SandboxError when a probe is missing."""
    outside, inside = control.by_name(), locked.inside.by_name()
    if tuple(outside) != CHANNEL_NAMES or tuple(inside) != CHANNEL_NAMES:
        raise SandboxError("the child did not try every channel")
    probes = tuple(make_probe(name, level, inside[name], outside[name]) for name in CHANNEL_NAMES)
    good = not broken_promises(probes, level) and not failed_controls(probes)
    return EgressReport(
        schema=REPORT_SCHEMA,
        profile=profile,
        profile_digest=profile_digest(profile),
        level=level,
        lowered=lowered,
        kernel=platform.release()[:_SHORT],
        machine=platform.machine()[:_SHORT],
        landlock_abi=locked.landlock_abi,
        namespaces=namespaces,
        status=status,
        filter_digest=locked.filter_digest,
        probes=probes,
        result="passed" if good else "failed",
    )


def require_passed(report: EgressReport) -> None:
    """Raise SandboxError when a channel that the level promises closed is open.

    Also when a probe did not reach a target outside that the supervisor had made: what it finds
    inside says nothing then.
    """
    if wrong := broken_promises(report.probes, report.level):
        first = wrong[0]
        raise SandboxError(
            f"the sandbox is not closed: {', '.join(title_of(probe.name) for probe in wrong)}",
            expected=f"{first.name}: closed with {first.expected_errno}",
            found=f"{first.name}: {first.result}"
            + (f" with {first.seen_errno}" if first.seen_errno else ""),
            hint="tallystick sandbox probe shows every channel; nothing was run",
        )
    if wrong := failed_controls(report.probes):
        raise SandboxError(
            "the probes do not work here, so they prove nothing",
            expected="reached outside of the sandbox: "
            + ", ".join(title_of(probe.name) for probe in wrong),
            found=", ".join(str(probe.control_errno) for probe in wrong),
        )
