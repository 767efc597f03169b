"""The predicate of a source attestation (docs/spec/attestations.md#source-statement)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from tallystick.contracts.request import PathText
from tallystick.contracts.types import U64, Hex32, MaxLength, ShortText

MAX_LISTED: Final = 10_000

Acquisition = Annotated[str, MaxLength(1000)]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file that was handed over: its path from the bundle's root, its sha256, its bytes."""

    path: PathText
    sha256: Hex32
    size: U64


@dataclass(frozen=True, slots=True)
class SourcePredicate:
    """On what terms a tile set may be used, how it came to be, and its files.

    ``digests`` is None where the list would be too long: the subject's digest covers all of it.
    """

    license: ShortText
    acquisition: Acquisition
    digests: Annotated[tuple[SourceFile, ...], MaxLength(MAX_LISTED)] | None
