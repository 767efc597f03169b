"""What the kernel says of a child, read by its supervisor: never the child's own word."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from tallystick.contracts.egress import NAMESPACES, NamespaceInode, Status
from tallystick.contracts.sandbox_profile import at_least
from tallystick.errors import SandboxError

_FILTER_MODE: Final = 2
_FIELD: Final = re.compile(r"^(\w+):\s+(\S+)", re.MULTILINE)
_INODE: Final = re.compile(r"[a-z]+:\[([0-9]+)\]")
_ANCESTORS: Final = 2  # at most so many processes between a child program and its locked self


def read_status(pid: int) -> Status:
    """Return what /proc says of process ``pid``. Raises SandboxError when it is gone."""
    fields = _fields(pid)
    try:
        return Status(
            seccomp=int(fields["Seccomp"]),
            no_new_privs=int(fields["NoNewPrivs"]),
            effective=int(fields["CapEff"], 16),
            permitted=int(fields["CapPrm"], 16),
            bounding=int(fields["CapBnd"], 16),
        )
    except (KeyError, ValueError):
        raise SandboxError("the kernel does not say how the child is held") from None


def _fields(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise SandboxError("the locked child cannot be looked at", found=error.strerror) from None
    return dict(_FIELD.findall(text))


def require_descendant(pid: int, ancestor: int) -> None:
    """Raise SandboxError unless ``pid`` is ``ancestor`` or one of its descendants."""
    found = pid
    for _ in range(_ANCESTORS + 1):
        if found == ancestor:
            return
        found = int(_fields(found).get("PPid", "0"))
    raise SandboxError("the child names a process that is not its own", found=f"process {pid}")


def read_namespaces(pid: int) -> tuple[NamespaceInode, ...]:
    """Return the namespaces of ``pid`` that are not this process's. Raises SandboxError."""
    found = []
    for kind in NAMESPACES:
        theirs = _inode(f"/proc/{pid}/ns/{kind}")
        if theirs != _inode(f"/proc/self/ns/{kind}"):
            found.append(NamespaceInode(kind, theirs))
    return tuple(found)


def _inode(path: str) -> int:
    try:
        match = _INODE.fullmatch(os.readlink(path))
    except OSError as error:
        raise SandboxError(
            "a namespace of the child cannot be looked at", found=f"{path}: {error.strerror}"
        ) from None
    if match is None:
        raise SandboxError("a namespace has no inode number", found=path)
    return int(match[1])


def check_status(level: str, status: Status) -> None:
    """Raise SandboxError when a child at ``level`` has rights that it should not have."""
    wanted = {"no_new_privs": 1, "effective": 0, "permitted": 0}
    if at_least(level, "namespaces"):
        wanted["bounding"] = 0
    if at_least(level, "full"):
        wanted["seccomp"] = _FILTER_MODE
    if not at_least(level, "process"):
        wanted = {}
    for name, value in wanted.items():
        if (found := getattr(status, name)) != value:
            raise SandboxError(
                f"the kernel says otherwise of the locked child: {name}",
                expected=f"{value:x}",
                found=f"{found:x}",
            )


def check_namespaces(level: str, found: tuple[NamespaceInode, ...]) -> None:
    """Raise SandboxError when a child at ``level`` shares a namespace with its supervisor."""
    kinds = {namespace.kind for namespace in found}
    if at_least(level, "namespaces") and (shared := set(NAMESPACES) - kinds):
        raise SandboxError(
            "the locked child shares namespaces with its supervisor",
            expected="seven of its own",
            found=", ".join(sorted(shared)),
        )


def check_mounts(pid: int) -> None:
    """Raise SandboxError when ``pid`` sees a file system that is not mounted read-only."""
    try:
        lines = Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise SandboxError("the child's mounts cannot be looked at", found=error.strerror) from None
    for line in lines.splitlines():
        fields = line.split(" ")
        if len(fields) < 6 or not {"ro", "nosuid", "nodev"} <= set(fields[5].split(",")):
            raise SandboxError(
                "the locked child has a mount with too many rights",
                expected="ro,nosuid,nodev",
                found=" ".join(fields[4:6]),
            )
