"""What an engine child reports about the platform that it ran on (docs/spec/manifest.md).

Facts, not keys: whether two executions may be compared goes by the runtime class alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from tallystick.contracts.types import Digest, LineText, MaxLength, OneOf, ShortText

MAX_LIBRARIES: Final = 32
MAX_VARIABLES: Final = 16
#: Every variable that a child's environment may have (docs/spec/execution.md#runtime-class).
ENVIRONMENT: Final = (
    "GGML_CPU_TILED_MM",
    "GGML_CPU_TILED_MM_FORCE",
    "GGML_NO_BACKTRACE",
    "GOMP_SPINCOUNT",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "PATH",
    "PYTHONPATH",
    "PYTHONUSERBASE",
    "TZ",
    "__CF_USER_TEXT_ENCODING",
)
#: Of these only the name is reported: their values name folders of one machine.
NAME_ONLY: Final = ("PYTHONPATH", "PYTHONUSERBASE", "__CF_USER_TEXT_ENCODING")


@dataclass(frozen=True, slots=True)
class LoadedLibrary:
    """A shared object that the process had mapped: file name, and sha256 of the file."""

    name: LineText
    digest: Digest


@dataclass(frozen=True, slots=True)
class EngineBuildFacts:
    """What the engine library says of itself."""

    system_info: Annotated[str, MaxLength(2000)]
    ggml_version: LineText
    ggml_commit: LineText


@dataclass(frozen=True, slots=True)
class WheelFacts:
    """The distribution that the engine was installed from.

    ``record`` is the digest of what its RECORD says of the package's own files.
    """

    name: LineText
    version: LineText
    record: Digest


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What computes: ``machine`` is the instruction set, ``model`` the processor's name."""

    kind: Annotated[str, OneOf(("cpu",))]
    machine: LineText
    model: LineText


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """This program: its version, the digest of its own files, and the interpreter."""

    version: LineText
    sources: Digest
    python: LineText


@dataclass(frozen=True, slots=True)
class PlatformFacts:
    """Everything that a runtime manifest says of a platform.

    ``libraries`` are sorted by name and digest. ``environment`` holds sorted ``NAME=VALUE`` texts,
    or ``NAME`` for the names in NAME_ONLY.
    """

    libraries: Annotated[tuple[LoadedLibrary, ...], MaxLength(MAX_LIBRARIES)]
    build: EngineBuildFacts
    wheel: WheelFacts
    device: DeviceFacts
    program: ProgramFacts
    environment: Annotated[tuple[ShortText, ...], MaxLength(MAX_VARIABLES)]
