"""The files of one artifact set: names, visibility, modes, bounds (docs/spec/artifact-set.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

Visibility = Literal["public", "private"]

PUBLIC_MODE: Final = 0o644
PRIVATE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
MARKER_SUFFIX: Final = ".complete"
MAX_MARKER: Final = 64 * 1024
# Acceptance envelopes arrive after the marker was written, so the marker never names them.
LATER_SUFFIXES: Final = (".acceptance.jsonl",)
_NAME = re.compile(r"([0-9a-f]{32})(\.[a-z][a-z.]{0,40})")


@dataclass(frozen=True, slots=True)
class MemberKind:
    """One kind of file: who may read it, and its largest size in bytes.

    ``suffix`` comes after ``<id>``; the state store has a name of its own instead, ``shared``.
    """

    suffix: str
    visibility: Visibility
    max_bytes: int
    shared: str | None = None

    @property
    def mode(self) -> int:
        """The exact permission bits of such a file."""
        return PUBLIC_MODE if self.visibility == "public" else PRIVATE_MODE

    def name(self, set_id: str) -> str:
        """Return the name of this file in the set ``set_id``."""
        return self.shared or set_id + self.suffix


COMPUTE_RECEIPT: Final = MemberKind(".palw", "public", 4096)
PUBLIC_JSON: Final = MemberKind(".json", "public", 64 * 1024)
RECEIPT: Final = MemberKind(".geoai.json", "public", 256 * 1024)
EXEC: Final = MemberKind(".exec.json", "public", 64 * 1024)
TELEMETRY: Final = MemberKind(".telemetry.jsonl", "public", 1024 * 1024)
ENVELOPES: Final = MemberKind(".intoto.jsonl", "public", 1024 * 1024)
BUNDLE: Final = MemberKind(".palw.bundle", "private", 64 * 1024 * 1024)
STATE: Final = MemberKind("", "private", 64 * 1024 * 1024, shared="palw-state.sqlite3")
MARKER: Final = MemberKind(MARKER_SUFFIX, "public", MAX_MARKER)
# In this order the marker names them; every one of them is part of every set.
MEMBERS: Final = (
    COMPUTE_RECEIPT,
    PUBLIC_JSON,
    RECEIPT,
    EXEC,
    TELEMETRY,
    ENVELOPES,
    BUNDLE,
    STATE,
)


def split_name(name: str) -> tuple[str, str] | None:
    """Return ``(id, suffix)`` of a set's file name, or None for any other name."""
    match = _NAME.fullmatch(name)
    return (match.group(1), match.group(2)) if match else None


def kind_of(suffix: str) -> MemberKind | None:
    """Return the kind of file with this suffix, the marker included, or None."""
    for kind in (*MEMBERS, MARKER):
        if kind.suffix == suffix:
            return kind
    return None
