"""``tallystick sandbox``: what a sandbox profile closes on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from tallystick.cli.options import json_option
from tallystick.cli.output import emit

if TYPE_CHECKING:
    from tallystick.canonical.json import JSONValue
    from tallystick.contracts.egress import EgressReport, Probe

_RESULTS: Final = ("open", "closed", "unsupported")


@click.group(name="sandbox")
def command() -> None:
    """Look at the sandbox that a profile gives a model on this machine."""


def _profile_option(function: click.decorators.FC) -> click.decorators.FC:
    return click.option(
        "--profile",
        default="full",
        show_default=True,
        metavar="PROFILE",
        help="none, process, namespaces or full, or the path of a profile (YAML).",
    )(function)


@command.command(name="probe")
@_profile_option
@json_option
def probe(profile: str, as_json: bool) -> None:
    """Lock a process as PROFILE says, and try every way out of it.

    What happened is shown. Every way is tried outside too: a way that is closed there as well
    proves little. Exit code 5 when the level cannot be enforced, or leaves open what it promises to
    close.
    """
    from tallystick.sandbox.audit import require_passed
    from tallystick.sandbox.probe import probe_sandbox
    from tallystick.sandbox.profiles import load_profile

    report = probe_sandbox(load_profile(profile))
    emit(_document(report), as_json=as_json, lines=_words(report))
    require_passed(report)


@command.command(name="seatbelt")
@_profile_option
@click.option(
    "--read",
    multiple=True,
    metavar="PATH",
    help="A file or folder that shall be readable inside (repeatable).",
)
def seatbelt(profile: str, read: tuple[str, ...]) -> None:
    """Print PROFILE as text for macOS's sandbox-exec.

    That is a weaker class, which raises no level.
    """
    from tallystick.cli.output import printable_text
    from tallystick.sandbox.profiles import load_profile
    from tallystick.sandbox.seatbelt import seatbelt_text

    click.echo(printable_text(seatbelt_text(load_profile(profile), read)), nl=False)


def _document(report: EgressReport) -> JSONValue:
    from tallystick.contracts.codec import encode
    from tallystick.contracts.egress import failed_controls, is_promised

    status = encode(report.status)
    control: dict[str, JSONValue] = {
        "result": "failed" if failed_controls(report.probes) else "passed"
    }
    for result in _RESULTS:
        control[result] = [p.name for p in report.probes if p.control_result == result]
    return {
        "profile": report.profile.name,
        "profile_digest": report.profile_digest,
        "level": report.level,
        "lowered": report.lowered,
        "result": report.result,
        "kernel": report.kernel,
        "machine": report.machine,
        "landlock_abi": report.landlock_abi,
        "filter_digest": report.filter_digest,
        "namespaces": {one.kind: str(one.inode) for one in report.namespaces},
        "status": status,
        "probes": [
            {
                "name": probe.name,
                "result": probe.result,
                "promised": is_promised(probe.name, report.level),
                "expected_errno": probe.expected_errno,
                "seen_errno": probe.seen_errno,
                "positive_control": probe.control_result,
                "control_errno": probe.control_errno,
            }
            for probe in report.probes
        ],
        "positive_control": control,
    }


def _words(report: EgressReport) -> list[str]:
    from tallystick.contracts.egress import is_promised, title_of

    rows = [("channel", "inside", "seen", "promised", "outside")]
    for probe in report.probes:
        promise = "closed" if is_promised(probe.name, report.level) else "-"
        rows.append(
            (title_of(probe.name), probe.result, probe.seen_errno or "-", promise, _outside(probe))
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    promised = sum(is_promised(probe.name, report.level) for probe in report.probes)
    lines.append("")
    lines.append(f"profile {report.profile.name}, level {report.level}: {report.result}")
    lines.append(f"{promised} of {len(report.probes)} channels are promised to be closed")
    if report.lowered is not None:
        lines.append(f"lower than the profile's level, because {report.lowered}")
    lines.append(f"kernel {report.kernel}, Landlock ABI {report.landlock_abi}")
    return lines


def _outside(probe: Probe) -> str:
    if probe.control_errno is None:
        return probe.control_result
    return f"{probe.control_result} ({probe.control_errno})"
