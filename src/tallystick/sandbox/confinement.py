"""The supervisor's half of a sandbox: what a child needs inside, its report, our own look at it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from tallystick.contracts.codec import decode, encode
from tallystick.contracts.egress import EgressReport
from tallystick.contracts.sandbox_profile import SandboxProfile, at_least
from tallystick.errors import RunFailedError, SandboxError, UnavailableError
from tallystick.sandbox import readback
from tallystick.sandbox.audit import make_report
from tallystick.sandbox.cage_spec import CageSpec, LockedReport, Observations, Refusal
from tallystick.sandbox.messages import MessageReader, well_formed
from tallystick.sandbox.sealed import sealed
from tallystick.sandbox.targets import TargetNames, targets

# A child says nothing while it imports and loads; the machine may be busy.
_PATIENCE: Final = 300.0
_GO: Final = b"g"


@dataclass(frozen=True, slots=True)
class Confinement:
    """What holds a child, and what it needs inside.

    ``files`` (files or folders) are readable inside besides the runtime; ``libraries`` are loaded
    and ``modules`` imported before the lock; ``model_size`` is what it will map, in bytes; one that
    ``writes`` may make a file grow that it was given open.
    ``on_open`` says what becomes of a child with an open channel that its level promises closed.
    """

    profile: SandboxProfile
    files: tuple[Path, ...] = ()
    libraries: tuple[Path, ...] = ()
    modules: tuple[str, ...] = ()
    model_size: int = 0
    writes: bool = False
    on_open: Literal["refuse", "report"] = "refuse"


@dataclass(frozen=True, slots=True)
class Held:
    """A locked child: its process id as the supervisor sees it, and the report of its audit."""

    pid: int
    report: EgressReport


@dataclass(frozen=True, slots=True)
class Ends:
    """The descriptors of one attempt to lock a child: what it is given, what we keep.

    ``theirs`` are to be closed here as soon as the child has them.
    """

    spec: int
    given: tuple[int, ...]
    report: int
    go: int
    theirs: contextlib.ExitStack = field(repr=False)


@contextlib.contextmanager
def prepared(confinement: Confinement, level: str, keep: Sequence[int]) -> Iterator[Ends]:
    """Make the probes' targets, the pipes and the sealed document for one attempt at ``level``.

    Everything is closed when the body is left. Raises UnavailableError.
    """
    with contextlib.ExitStack() as stack:
        try:
            names = stack.enter_context(targets())
        except OSError as error:
            raise UnavailableError(
                "the probes' targets cannot be made", found=error.strerror
            ) from None
        theirs = stack.enter_context(contextlib.ExitStack())
        report, report_end = os.pipe()
        stack.callback(os.close, report)
        theirs.callback(os.close, report_end)
        go_end, go = os.pipe()
        stack.callback(os.close, go)
        theirs.callback(os.close, go_end)
        spec = sealed(_spec(confinement, level, keep, names, report_end, go_end))
        theirs.callback(os.close, spec)
        given = (spec, report_end, go_end, *names.inherited())
        yield Ends(spec, given, report, go, theirs)


def _spec(
    confinement: Confinement,
    level: str,
    keep: Sequence[int],
    names: TargetNames,
    report: int,
    go: int,
) -> Any:
    return encode(
        CageSpec(
            level=level,
            limits=confinement.profile.limits,
            model_size=confinement.model_size,
            writes=confinement.writes,
            report=report,
            go=go,
            keep=tuple(keep),
            files=tuple(os.fspath(path.absolute()) for path in confinement.files),
            libraries=tuple(os.fspath(path.absolute()) for path in confinement.libraries),
            modules=confinement.modules,
            targets=names,
        )
    )


def await_lock(
    ends: Ends, process: int, confinement: Confinement, level: str, lowered: Sequence[str]
) -> Held | Refusal | None:
    """Wait until the child ``process`` is locked at ``level``, look at it, return its report.

    Returns the refusal where the level cannot be reached, None when the child died. The child
    waits until :func:`release`. ``lowered`` says why higher levels were not reached.

    Raises SandboxError when what the kernel says of the child differs from what the level
    promises, and RunFailedError when the child speaks out of form.
    """
    ends.theirs.close()  # or the end of the child would not be seen
    reader = MessageReader(ends.report)
    control: Observations | None = None
    locked: LockedReport | None = None
    while control is None or locked is None:
        message = reader.next(_PATIENCE)
        if message is None:
            return None
        with well_formed("a report of its sandbox"):
            if message.kind == "refused" and locked is None:
                return decode(Refusal, message.body, where="refusal")
            if message.kind == "control" and control is None:
                control = decode(Observations, message.body, where="control")
            elif message.kind == "locked" and locked is None:
                locked = decode(LockedReport, message.body, where="report")
            else:
                raise RunFailedError("the child reported on its sandbox out of order")
    readback.require_descendant(locked.pid, process)
    status = readback.read_status(locked.pid)
    readback.check_status(level, status)
    found = readback.read_namespaces(locked.pid) if at_least(level, "namespaces") else ()
    readback.check_namespaces(level, found)
    if at_least(level, "namespaces"):
        readback.check_mounts(locked.pid)
    report = make_report(
        confinement.profile,
        level,
        "; ".join(lowered)[:2000] or None,
        control,
        locked,
        status,
        found,
    )
    return Held(locked.pid, report)


def release(ends: Ends) -> None:
    """Let a locked child go on."""
    with contextlib.suppress(BrokenPipeError):  # it has died: its result pipe will say so
        os.write(ends.go, _GO)


def require_held(held: Held) -> None:
    """Look at the child again, before its result is accepted. Raises SandboxError."""
    status = readback.read_status(held.pid)
    if status != held.report.status:
        raise SandboxError(
            "the child is not held as it was when it was locked",
            expected=str(held.report.status),
            found=str(status),
        )


def refused(refusal: Refusal, profile: SandboxProfile, level: str) -> SandboxError:
    """Return the error for a level that cannot be reached on this machine."""
    return SandboxError(
        f"the sandbox level {level} cannot be enforced here",
        expected=f"profile {profile.name}: {' or '.join(profile.levels())}",
        found=f"{refusal.step}: {refusal.text}",
        hint=_hint(refusal),
    )


def _hint(refusal: Refusal) -> str:
    lower = "or name a lower acceptable level in the profile (lowest)"
    if refusal.step in ("namespaces", "user namespace"):
        if refusal.error in ("ENOSPC", "EUSERS"):
            return f"raise the sysctl user.max_user_namespaces, {lower}"
        if refusal.error == "ENOSYS":
            return f"use a kernel with namespaces, {lower}"
        return (
            "allow user namespaces: kernel.apparmor_restrict_unprivileged_userns=0 or an AppArmor "
            f"profile (Ubuntu), a container's seccomp profile that lets unshare pass, {lower}"
        )
    if refusal.step == "root":
        return f"it takes Linux 5.12 and the right to mount in a namespace of one's own; {lower}"
    if refusal.step == "runtime":
        return (
            "the interpreter and its packages must be readable by every user: install them outside "
            f"of a private home, {lower}"
        )
    if refusal.step in ("filter", "library"):
        return f"use an x86-64 Linux with seccomp filters and the pinned engine, {lower}"
    return f"see docs/spec/sandbox.md, {lower}"
