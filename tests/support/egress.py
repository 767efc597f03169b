"""Reports on sandboxes that no machine made: what a good one says at each level, and changes."""

from __future__ import annotations

from dataclasses import replace

from tallystick.contracts.egress import (
    CHANNELS,
    NAMESPACES,
    REPORT_SCHEMA,
    EgressReport,
    NamespaceInode,
    Status,
    make_probe,
)
from tallystick.contracts.sandbox_profile import (
    NONE,
    SandboxLimits,
    SandboxProfile,
    at_least,
    profile_digest,
)
from tests.support.documents import digest_of

LIMITS = SandboxLimits(512, 64, None, 1 << 32)


def example_profile(level: str = "full", lowest: str | None = None) -> SandboxProfile:
    """Return a profile of ``level``."""
    return NONE if level == "none" else SandboxProfile("tiles", level, lowest, LIMITS)


def example_report(level: str = "full", profile: SandboxProfile | None = None) -> EgressReport:
    """Return the report of a sandbox that is as tight as ``level`` promises, and no tighter."""
    chosen = profile or example_profile(level)
    filtered = at_least(level, "full")
    held = at_least(level, "process")
    kinds = NAMESPACES if at_least(level, "namespaces") else ()
    return EgressReport(
        schema=REPORT_SCHEMA,
        profile=chosen,
        profile_digest=profile_digest(chosen),
        level=level,
        lowered=None if level == chosen.level else "full: namespaces: not permitted",
        kernel="6.1.0",
        machine="x86_64",
        landlock_abi=2,
        namespaces=tuple(NamespaceInode(kind, 4026532000 + i) for i, kind in enumerate(kinds)),
        status=Status(
            seccomp=2 if filtered else 0,
            no_new_privs=int(held),
            effective=0 if held else 1,
            permitted=0 if held else 1,
            bounding=0 if kinds else 1,
        ),
        filter_digest=digest_of("filter") if filtered else None,
        probes=tuple(
            make_probe(
                channel.name,
                level,
                next(iter(channel.expected(level)), None),
                "ENOSYS" if channel.name == "x32_socket" else None,
            )
            for channel in CHANNELS
        ),
        result="passed",
    )


def with_probe(
    report: EgressReport, name: str, inside: str | None, outside: str | None = None
) -> EgressReport:
    """Return ``report`` with other sightings of one channel, its results derived again."""
    return replace(
        report,
        probes=tuple(
            make_probe(name, report.level, inside, outside) if probe.name == name else probe
            for probe in report.probes
        ),
    )
