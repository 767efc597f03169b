"""What an engine child sees of the platform it runs on (docs/spec/manifest.md#platform-facts).

Called in the child, after the engine was loaded: which libraries a process really uses, only that
process can say.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tallystick.canonical.hashing import domain_digest
from tallystick.contracts.platform import (
    ENVIRONMENT,
    MAX_LIBRARIES,
    NAME_ONLY,
    DeviceFacts,
    EngineBuildFacts,
    LoadedLibrary,
    PlatformFacts,
    ProgramFacts,
    WheelFacts,
)
from tallystick.engine.port import EngineSummary
from tallystick.errors import IncomparableError, RunFailedError

MAPS: Final = Path("/proc/self/maps")
_SHORT: Final = 200
_PACKAGE: Final = Path(__file__).resolve().parents[1]
# What the engine library asks the loader for, by the part of the file name before a version.
_SYSTEM: Final = ("libc", "libdl", "libgcc_s", "libgomp", "libm", "libmvec", "libpthread", "librt",
                  "libstdc++", "libomp", "libc++")  # fmt: skip
_STEM: Final = re.compile(r"[^-.]+")
_UNKNOWN: Final = "unknown"
# A RECORD's lines about the installation itself differ from one installer to another.
_OF_THE_INSTALLER: Final = ("INSTALLER", "RECORD", "REQUESTED", "direct_url.json")


def platform_facts(
    library: Path, digest: str, build: EngineBuildFacts, observer: Path | None = None
) -> PlatformFacts:
    """Return the facts. ``library`` is the loaded engine, ``digest`` what it hashed to.

    ``observer`` is the compiled observer, if one was loaded. Takes some ten milliseconds: the
    engine is not hashed again. Raises RunFailedError when a mapped library is no longer there,
    IncomparableError for a variable that no engine child may have.
    """
    return PlatformFacts(
        libraries=loaded_libraries(library, digest, observer),
        build=build,
        wheel=wheel_facts(library),
        device=DeviceFacts("cpu", platform.machine()[:_SHORT], processor_name()[:_SHORT]),
        program=program_facts(),
        environment=environment_facts(os.environ),
    )


def build_facts(summary: EngineSummary) -> EngineBuildFacts:
    """Return what the engine said of itself, as it goes into a manifest."""
    return EngineBuildFacts(
        system_info=summary.system_info[:2000],
        ggml_version=summary.version[:_SHORT],
        ggml_commit=summary.commit[:_SHORT],
    )


def environment_facts(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the child's environment as sorted texts. IncomparableError for another variable."""
    unknown = sorted(environment.keys() - set(ENVIRONMENT))
    if unknown:
        raise IncomparableError(
            "the engine's process has a variable that no manifest can name",
            expected="only the listed variables",
            found=ascii(unknown[0][:_SHORT]),
        )
    return tuple(
        sorted(
            (name if name in NAME_ONLY else f"{name}={value}")[:_SHORT]
            for name, value in environment.items()
        )
    )


def program_facts() -> ProgramFacts:
    """Return version and digest of this program as it is installed, and its interpreter."""
    parts: list[bytes] = []
    for path in sorted(_own_files(), key=lambda path: path.relative_to(_PACKAGE).as_posix()):
        parts.append(path.relative_to(_PACKAGE).as_posix().encode())
        parts.append(hashlib.sha256(path.read_bytes()).digest())
    return ProgramFacts(
        version=_version_beside(_PACKAGE),
        sources=domain_digest("palw.program-sources", 1, parts),
        python=f"{platform.python_implementation()} {platform.python_version()}"[:_SHORT],
    )


def wheel_facts(library: Path) -> WheelFacts:
    """Return what the installer recorded of the engine's wheel; "unknown" where it did not."""
    package = library.parent
    name = package.name[:_SHORT]
    record = _info_beside(package) / "RECORD"
    try:
        lines = record.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    parts = [line.encode() for line in sorted(lines) if _recorded(line)]
    return WheelFacts(name, _version_beside(package), domain_digest("palw.wheel-record", 1, parts))


def _recorded(line: str) -> bool:
    path, _, rest = line.partition(",")
    return "sha256=" in rest and path.rpartition("/")[2] not in _OF_THE_INSTALLER


def _info_beside(package: Path) -> Path:
    """Return the installer's folder for ``package``; one that is not there when there is none."""
    found = sorted(package.parent.glob(f"{package.name}-*.dist-info"))
    return found[0] if len(found) == 1 else package.parent / f"{package.name}-{_UNKNOWN}.dist-info"


def _version_beside(package: Path) -> str:
    name = _info_beside(package).name
    return name.removeprefix(f"{package.name}-").removesuffix(".dist-info")[:_SHORT]


def _own_files() -> Iterator[Path]:
    for folder, folders, names in os.walk(_PACKAGE):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (Path(folder, name) for name in names if not name.endswith(".pyc"))


def loaded_libraries(
    library: Path, digest: str, observer: Path | None = None
) -> tuple[LoadedLibrary, ...]:
    """Return the engine, the observer if it is loaded, and what the engine asks the loader for.

    Sorted by name and digest. Raises RunFailedError when one is no longer there.
    """
    engine = os.path.realpath(library)
    own = None if observer is None else os.path.realpath(observer)
    found = {LoadedLibrary(library.name[:_SHORT], digest)}
    for path in mapped_objects():
        if path != engine and (path == own or _is_system(os.path.basename(path))):
            found.add(LoadedLibrary(os.path.basename(path)[:_SHORT], _file_digest(path)))
    if len(found) > MAX_LIBRARIES:
        raise IncomparableError(
            "the process has loaded too many libraries",
            expected=f"at most {MAX_LIBRARIES}",
            found=str(len(found)),
        )
    return tuple(sorted(found, key=lambda item: (item.name, item.digest)))


def mapped_objects() -> frozenset[str]:
    """Return the paths of all files that this process has mapped as code; none off Linux."""
    try:
        lines = MAPS.read_bytes().splitlines()
    except OSError:
        return frozenset()
    fields = (line.split(maxsplit=5) for line in lines)
    return frozenset(
        os.fsdecode(field[5])
        for field in fields
        if len(field) == 6 and b"x" in field[1] and field[5].startswith(b"/")
    )


def _is_system(name: str) -> bool:
    stem = _STEM.match(name)
    return ".so" in name and stem is not None and (stem[0] in _SYSTEM or name.startswith("ld-"))


def _file_digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunFailedError(
            "a library that is in use cannot be read",
            found=f"{os.path.basename(path)}: {error.strerror}",
            hint="it was replaced while models ran: start again",
        ) from None


def processor_name() -> str:
    """Return what the kernel calls the first processor, else what this build was made for."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or sys.platform
