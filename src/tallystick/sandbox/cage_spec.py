"""What a supervisor tells a child about its cage, and what the child says back, as documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from tallystick.contracts.egress import CHANNELS, ChannelName, Seen
from tallystick.contracts.request import Enforcement
from tallystick.contracts.sandbox_profile import SandboxLimits
from tallystick.contracts.types import U32, U64, Digest, MaxLength, ShortText
from tallystick.sandbox.targets import Name, Number, TargetNames

MAX_SPEC: Final = 1024 * 1024
_MAX_FILES: Final = 64


@dataclass(frozen=True, slots=True)
class CageSpec:
    """How a child program has to lock itself before it does anything else.

    It imports ``modules`` and loads ``libraries`` before, and sees ``files`` after. It keeps the
    descriptors ``keep`` (whose files may grow if it ``writes``) and its standard streams, reports
    on ``report`` and waits for a byte on ``go``; both are closed then.
    """

    level: Enforcement
    limits: SandboxLimits | None
    model_size: U64
    writes: bool
    report: Number
    go: Number
    keep: Annotated[tuple[Number, ...], MaxLength(_MAX_FILES)]
    files: Annotated[tuple[Name, ...], MaxLength(_MAX_FILES)]
    libraries: Annotated[tuple[Name, ...], MaxLength(_MAX_FILES)]
    modules: Annotated[tuple[ShortText, ...], MaxLength(_MAX_FILES)]
    targets: TargetNames


@dataclass(frozen=True, slots=True)
class Observation:
    """What one probe saw; null when it got through."""

    name: ChannelName
    seen: Seen | None


@dataclass(frozen=True, slots=True)
class Observations:
    """What each probe saw, in the order of the channels."""

    probes: Annotated[tuple[Observation, ...], MaxLength(len(CHANNELS))]

    @classmethod
    def of(cls, seen: dict[str, str | None]) -> Observations:
        """Return the observations ``seen`` in the order of the channels."""
        return cls(tuple(Observation(c.name, seen[c.name]) for c in CHANNELS))

    def by_name(self) -> dict[str, str | None]:
        """Return what was seen by the channel's name."""
        return {probe.name: probe.seen for probe in self.probes}


@dataclass(frozen=True, slots=True)
class LockedReport:
    """A child's word that it is locked: its process id outside, and what the probes saw."""

    pid: Number
    landlock_abi: U32
    filter_digest: Digest | None
    inside: Observations


@dataclass(frozen=True, slots=True)
class Refusal:
    """A level that could not be reached: at which step, and what the kernel said."""

    step: ShortText
    error: ShortText
    text: Annotated[str, MaxLength(1000)]
