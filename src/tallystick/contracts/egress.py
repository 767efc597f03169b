"""``tallystick.egress-report/v1``: which channels out of a finished sandbox were tried, and how.

The table of channels says what each level promises. Results follow from what was seen by pure
rules, so a reader derives them again (docs/spec/sandbox.md#the-audit).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from tallystick.contracts.request import Enforcement
from tallystick.contracts.sandbox_profile import SandboxProfile
from tallystick.contracts.types import U32, U64, Digest, MaxLength, OneOf, Pattern, ShortText

REPORT_SCHEMA: Final = "tallystick.egress-report/v1"
Result = Literal["open", "closed", "unsupported"]
ResultText = Annotated[str, OneOf(("open", "closed", "unsupported"))]
#: What a probe saw: the name of an errno, signal or resolver error; null when it got through.
Seen = Annotated[str, Pattern(r"E[A-Z0-9_]+|SIG[A-Z0-9]+", 32)]
ChannelName = Annotated[str, Pattern(r"[a-z][a-z0-9_]*", 40)]


@dataclass(frozen=True, slots=True)
class Channel:
    """One way out, and for each level what a probe may see of it when it is closed.

    No errno at a level: that level does not promise to close the channel.
    """

    name: str
    title: str
    process: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    full: tuple[str, ...] = ()

    def expected(self, level: str) -> tuple[str, ...]:
        """Return what a probe may see at ``level``, the usual one first."""
        return {"process": self.process, "namespaces": self.namespaces, "full": self.full}.get(
            level, ()
        )


_FAMILY: Final = ("EAFNOSUPPORT",)
_NO_NET: Final = ("ENETUNREACH",)
_NO_NET6: Final = ("EADDRNOTAVAIL", "ENETUNREACH")
_NO_NAMES: Final = ("EAI_AGAIN", "EAI_NONAME", "EAI_FAIL", "EAI_SYSTEM")
_GONE: Final = ("ENOENT",)
_DENIED: Final = ("EPERM",)
_CLOSED: Final = ("EBADF",)


def _network(name: str, title: str, seen: tuple[str, ...]) -> Channel:
    return Channel(name, title, namespaces=seen, full=_FAMILY)


def _descriptor(name: str, title: str) -> Channel:
    return Channel(name, title, _CLOSED, _CLOSED, _CLOSED)


def _file(name: str, title: str) -> Channel:
    return Channel(name, title, namespaces=_GONE, full=_GONE)


def _parent(name: str, title: str) -> Channel:
    return Channel(name, title, namespaces=("ESRCH",), full=_DENIED)


def _filtered(name: str, title: str, seen: tuple[str, ...] = _DENIED) -> Channel:
    return Channel(name, title, full=seen)


CHANNELS: Final = (
    _network("tcp4", "TCP over IPv4", _NO_NET),
    _network("tcp6", "TCP over IPv6", _NO_NET6),
    _network("tcp4_mapped", "TCP to an IPv4-mapped address", _NO_NET),
    _network("udp4", "UDP over IPv4", _NO_NET),
    _network("udp6", "UDP over IPv6", _NO_NET6),
    _network("udp4_mapped", "UDP to an IPv4-mapped address", _NO_NET),
    Channel("dns", "resolving a name", namespaces=_NO_NAMES, full=_NO_NAMES),
    _network("unix_path", "unix socket with a path", _GONE),
    _network("unix_abstract", "abstract unix socket", ("ECONNREFUSED",)),
    _descriptor("inherited_tcp", "inherited TCP connection"),
    _descriptor("inherited_unix", "inherited unix socket"),
    _descriptor("inherited_file", "inherited file open for writing"),
    _filtered("vsock", "VSOCK socket", _FAMILY),
    _filtered("netlink", "NETLINK socket", _FAMILY),
    _filtered("packet", "PACKET socket", _FAMILY),
    _filtered("io_uring", "io_uring", ("ENOSYS",)),
    _file("write_outside", "writing a file outside"),
    _file("read_outside", "reading a file outside"),
    _file("read_passwd", "reading /etc/passwd"),
    _file("list_outside", "listing a folder outside"),
    _parent("ptrace_parent", "ptrace of the supervisor"),
    _parent("signal_parent", "signalling the supervisor"),
    _parent("read_parent_memory", "reading the supervisor's memory"),
    _parent("pidfd_parent", "pidfd of the supervisor"),
    _filtered("fork", "forking"),
    _filtered("execve", "executing a program"),
    _filtered("memfd", "memfd_create"),
    _filtered("userfaultfd", "userfaultfd"),
    _filtered("keyctl", "kernel keyrings"),
    _filtered("unshare", "new user namespace"),
    _filtered("i386_socket", "socket by the 32-bit entry", ("SIGSYS",)),
    _filtered("x32_socket", "socket by the x32 entry", ("SIGSYS",)),
)
CHANNEL_NAMES: Final = tuple(channel.name for channel in CHANNELS)
_BY_NAME: Final = {channel.name: channel for channel in CHANNELS}

# Outside: the machine does not have the channel at all. SIGSEGV is a kernel without 32-bit entry.
_ABSENT: Final = frozenset(
    {"EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "EOPNOTSUPP", "ENOSYS", "ENODEV",
     "EADDRNOTAVAIL", "SIGSEGV"}
)  # fmt: skip
#: Channels whose targets the supervisor makes itself: outside they are open, or nothing is proven.
CONTROLLED: Final = frozenset(
    {"unix_path", "inherited_unix", "inherited_file", "write_outside",
     "read_outside", "list_outside", "fork", "memfd"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Probe:
    """One channel: what was seen inside, the same outside as the positive control, the results.

    ``expected_errno`` is null where the level promises nothing.
    """

    name: ChannelName
    result: ResultText
    expected_errno: Seen | None
    seen_errno: Seen | None
    control_result: ResultText
    control_errno: Seen | None


#: The namespaces that a child has of its own from level ``namespaces`` on.
NAMESPACES: Final = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


@dataclass(frozen=True, slots=True)
class NamespaceInode:
    """A namespace of the child that is not the supervisor's, by its inode number."""

    kind: Annotated[str, OneOf(NAMESPACES)]
    inode: U64


@dataclass(frozen=True, slots=True)
class Status:
    """What the supervisor read of the child in /proc/PID/status (capabilities as bit masks)."""

    seccomp: U32
    no_new_privs: U32
    effective: U64
    permitted: U64
    bounding: U64


@dataclass(frozen=True, slots=True)
class EgressReport:
    """The audit of one finished sandbox, before the model was opened.

    ``level`` is the one reached; ``lowered`` says why it is below the profile's, else null.
    ``landlock_abi`` is 0 where the kernel has none; it is recorded, not used. ``filter_digest`` is
    the SHA-256 of the seccomp program.
    """

    schema: Annotated[str, OneOf((REPORT_SCHEMA,))]
    profile: SandboxProfile
    profile_digest: Digest
    level: Enforcement
    lowered: Annotated[str, MaxLength(2000)] | None
    kernel: ShortText
    machine: ShortText
    landlock_abi: U32
    namespaces: Annotated[tuple[NamespaceInode, ...], MaxLength(len(NAMESPACES))]
    status: Status
    filter_digest: Digest | None
    probes: Annotated[tuple[Probe, ...], MaxLength(len(CHANNELS))]
    result: Annotated[str, OneOf(("passed", "failed"))]


def control_result(seen: str | None) -> Result:
    """Say what a probe outside of any sandbox found."""
    if seen is None:
        return "open"
    return "unsupported" if seen in _ABSENT else "closed"


def inside_result(name: str, level: str, seen: str | None) -> Result:
    """Say what a probe inside found.

    A promised channel is closed only if it fails as it should; any other failure says nothing.
    """
    if seen is None:
        return "open"
    expected = _BY_NAME[name].expected(level)
    if expected:
        return "closed" if seen in expected else "unsupported"
    return control_result(seen)


def is_promised(name: str, level: str) -> bool:
    """Say whether ``level`` promises that the channel is closed."""
    return bool(_BY_NAME[name].expected(level))


def make_probe(name: str, level: str, inside: str | None, outside: str | None) -> Probe:
    """Return the probe of channel ``name`` from what was seen inside and outside."""
    expected = _BY_NAME[name].expected(level)
    return Probe(
        name=name,
        result=inside_result(name, level, inside),
        expected_errno=expected[0] if expected else None,
        seen_errno=inside,
        control_result=control_result(outside),
        control_errno=outside,
    )


def broken_promises(probes: tuple[Probe, ...], level: str) -> tuple[Probe, ...]:
    """Return the probes of channels that ``level`` promises closed and that are not.

    ``unsupported`` counts as closed only if the control outside is unsupported too.
    """
    return tuple(
        probe
        for probe in probes
        if is_promised(probe.name, level)
        and probe.result != "closed"
        and (probe.result, probe.control_result) != ("unsupported", "unsupported")
    )


def failed_controls(probes: tuple[Probe, ...]) -> tuple[Probe, ...]:
    """Return the probes whose target the supervisor made, and which did not reach it outside."""
    return tuple(
        probe for probe in probes if probe.name in CONTROLLED and probe.control_result != "open"
    )


def title_of(name: str) -> str:
    """Return a channel's name for people."""
    return _BY_NAME[name].title
