"""``tallystick.sandbox-profile``: what a sandbox has to enforce (docs/spec/sandbox.md#profiles).

A profile's digest stands in the core of a receipt; which level was reached stands beside it, in
what was observed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from tallystick.canonical.hashing import domain_digest
from tallystick.canonical.json import JSONValue, jcs
from tallystick.contracts.codec import decode, encode
from tallystick.contracts.request import Enforcement
from tallystick.contracts.types import Count, IntRange, Pattern
from tallystick.errors import EvidenceError

#: The levels, each of which includes all that come before it.
LEVELS: Final = ("none", "process", "namespaces", "full")
ProfileName = Annotated[str, Pattern(r"[a-z0-9][a-z0-9._-]*", 64)]
OpenFiles = Annotated[int, IntRange(16, 65536)]
Bytes = Annotated[int, IntRange(1024 * 1024, 2**53 - 1)]


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Bounds on one child, beyond those that every level from ``process`` on has.

    ``processes`` bounds processes and threads together, from ``namespaces`` on. ``memory_bytes``
    is address space in addition to the model's size and to what is mapped at the lock,
    ``cpu_seconds`` processor time; null leaves them unbounded.
    """

    processes: Count
    open_files: OpenFiles
    cpu_seconds: Count | None
    memory_bytes: Bytes | None


@dataclass(frozen=True, slots=True)
class SandboxProfile:
    """What a child has to be held by, and the lowest level that is still acceptable.

    ``lowest`` is null when only ``level`` itself is acceptable. At level ``none`` there is nothing
    to say, so both other fields are null.
    """

    name: ProfileName
    level: Enforcement
    lowest: Enforcement | None
    limits: SandboxLimits | None

    def levels(self) -> tuple[str, ...]:
        """Return the acceptable levels, the wanted one first."""
        low = self.level if self.lowest is None else self.lowest
        return tuple(reversed(LEVELS[LEVELS.index(low) : LEVELS.index(self.level) + 1]))


#: The profile of a run whose child nothing holds.
NO_SANDBOX: Final = "none"
NONE: Final = SandboxProfile(NO_SANDBOX, "none", None, None)


def check_profile(profile: SandboxProfile, *, where: str = "sandbox profile") -> None:
    """Raise EvidenceError for fields that do not go together."""
    if (profile.level == "none") != (profile.limits is None):
        raise _refusal(
            where, "limits", "limits from level process on, and none below", profile.level
        )
    if profile.lowest is not None and LEVELS.index(profile.lowest) >= LEVELS.index(profile.level):
        raise _refusal(where, "lowest", f"a level below {profile.level}, or null", profile.lowest)


def profile_document(profile: SandboxProfile) -> JSONValue:
    """Return the document that is hashed: a profile of level ``none`` has name and level only."""
    if profile.level == "none":
        return {"name": profile.name, "level": profile.level}
    return encode(profile)


def read_profile(value: JSONValue, *, where: str = "sandbox profile") -> SandboxProfile:
    """Return the profile that the document ``value`` describes. Raises EvidenceError."""
    if isinstance(value, dict) and value.get("level") == "none":
        value = {"lowest": None, "limits": None, **value}
    profile = decode(SandboxProfile, value, where=where)
    check_profile(profile, where=where)
    return profile


def profile_digest(profile: SandboxProfile) -> str:
    """Return the digest that stands for ``profile`` in the core of a receipt."""
    return domain_digest("tallystick.sandbox-profile", 1, [jcs(profile_document(profile))])


def at_least(found: str, wanted: str) -> bool:
    """Say whether level ``found`` includes all that level ``wanted`` asks for."""
    return LEVELS.index(found) >= LEVELS.index(wanted)


def _refusal(where: str, field: str, expected: str, found: str) -> EvidenceError:
    return EvidenceError(f"{where}: bad field {field}", expected=expected, found=found)


def holding(profile: SandboxProfile | None) -> SandboxProfile | None:
    """Return ``profile``, None for one that holds nothing."""
    return None if profile is None or profile.level == "none" else profile
