"""The numeric fingerprint of this machine: when may its bits be compared with another's?

Version strings neither prove nor disprove equal bits, so a fixed suite of tiny models is run and
its raw outputs are hashed (docs/spec/fingerprint.md). The result is cached for one boot, and only
as long as every library that took part is the same file.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from tallystick.canonical.hashing import domain_digest, format_digest, parse_digest, sha256
from tallystick.contracts.codec import decode_bytes, encode_bytes
from tallystick.contracts.receipt import FingerprintPart
from tallystick.contracts.types import Digest, LongText, MaxLength, ShortText
from tallystick.engine.suite.parts import SUITE_VERSION
from tallystick.errors import RunFailedError, TallystickError
from tallystick.execution.jobs import FingerprintJob
from tallystick.execution.knobs import KNOB_SETTINGS
from tallystick.execution.launch import (
    InstalledEngine,
    OnProgress,
    file_identity,
    no_progress,
    run_job,
)
from tallystick.models.registry import replace_document
from tallystick.sandbox.messages import well_formed
from tallystick.store.home import ensure_private_dir, owned

_MAX_CACHE: Final = 1024 * 1024
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PART_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.+-]{0,60}")
_SETTING_NAMES: Final = ("default", "untiled", "tiled")


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the suite under one knob setting, ``SETTING/NAME``, and its whole digest."""

    name: ShortText
    digest: Digest


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What the suite gave here. Equal ``digest``: bits may be compared."""

    digest: str
    parts: tuple[Part, ...]

    def short_parts(self) -> tuple[FingerprintPart, ...]:
        """Return the parts as a receipt carries them: 8 bytes of each digest."""
        return tuple(
            FingerprintPart(part.name, parse_digest(part.digest)[:8].hex()) for part in self.parts
        )


@dataclass(frozen=True, slots=True)
class LibraryFile:
    """A mapped library: its path, and its device, inode, size, mtime and ctime as one text."""

    path: LongText
    identity: ShortText


@dataclass(frozen=True, slots=True)
class _Cached:
    """A fingerprint and everything that has to be the same for it to be used again."""

    suite: ShortText
    boot: ShortText
    processor: Digest
    engine_library: Digest
    libraries: Annotated[tuple[LibraryFile, ...], MaxLength(200)]
    parts: Annotated[tuple[Part, ...], MaxLength(400)]


def fingerprint_of(parts: Sequence[Part]) -> Fingerprint:
    """Return the fingerprint over ``parts``, in the order of the suite."""
    hashed = [SUITE_VERSION.encode()]
    for part in parts:
        hashed += [part.name.encode(), parse_digest(part.digest)]
    return Fingerprint(domain_digest("tallystick.fingerprint", 1, hashed), tuple(parts))


def measure(
    engine: InstalledEngine, on_progress: OnProgress = no_progress
) -> tuple[Fingerprint, tuple[LibraryFile, ...]]:
    """Run the whole suite under every knob setting, each in a child of its own."""
    parts: list[Part] = []
    libraries: dict[str, LibraryFile] = {}
    for number, (setting, knobs) in enumerate(zip(_SETTING_NAMES, KNOB_SETTINGS, strict=True)):

        def report(what: str, done: int, total: int, number: int = number) -> None:
            on_progress("fingerprint", number * total + done, len(KNOB_SETTINGS) * total)

        # One thread: thread counts change no bit, and the suite is too small to share.
        body = run_job(FingerprintJob(engine.setup(1), knobs), knobs, on_progress=report).body
        parts += _parts(setting, body)
        libraries |= {path: _library(path) for path in _paths(body)}
    return fingerprint_of(parts), tuple(libraries[path] for path in sorted(libraries))


def current(
    home: Path, engine: InstalledEngine, on_progress: OnProgress = no_progress
) -> Fingerprint:
    """Return this machine's fingerprint, from the cache of this boot where nothing changed."""
    path = home / "cache" / "fingerprint.json"
    boot = _boot()
    cached = _load(path)
    if cached is not None and _still_holds(cached, boot, engine):
        return fingerprint_of(cached.parts)
    return renew(home, engine, on_progress)


def renew(
    home: Path, engine: InstalledEngine, on_progress: OnProgress = no_progress
) -> Fingerprint:
    """Measure this machine's fingerprint now, whatever is cached, and cache it."""
    fingerprint, libraries = measure(engine, on_progress)
    boot = _boot()
    if boot and libraries:
        document = _Cached(
            suite=SUITE_VERSION,
            boot=boot,
            processor=_processor(),
            engine_library=engine.build.library,
            libraries=libraries,
            parts=fingerprint.parts,
        )
        # A cache that cannot be written costs time, nothing else.
        with contextlib.suppress(TallystickError, OSError):
            cache = ensure_private_dir(home / "cache")
            replace_document(cache / "fingerprint.json", encode_bytes(document))
    return fingerprint


def differing_parts(
    ours: Sequence[FingerprintPart], theirs: Sequence[FingerprintPart]
) -> tuple[str, ...]:
    """Return the names of the parts that are not in both with one digest."""
    mine = {part.name: part.digest for part in ours}
    other = {part.name: part.digest for part in theirs}
    return tuple(sorted(name for name in mine | other if mine.get(name) != other.get(name)))


def _parts(setting: str, body: dict[str, Any]) -> list[Part]:
    listed = body.get("parts")
    if not isinstance(listed, list) or not 0 < len(listed) <= 100:
        raise RunFailedError("the fingerprint child sent a malformed result")
    parts = []
    for entry in listed:
        name, digest = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
        if not (isinstance(name, str) and _PART_NAME.fullmatch(name) and isinstance(digest, str)):
            raise RunFailedError("the fingerprint child sent a malformed part")
        with well_formed("a part's digest"):
            parts.append(Part(f"{setting}/{name}", format_digest(parse_digest(digest))))
    return parts


def _paths(body: dict[str, Any]) -> list[str]:
    listed = body.get("libraries")
    if not isinstance(listed, list) or not all(isinstance(path, str) for path in listed):
        raise RunFailedError("the fingerprint child sent a malformed list of libraries")
    return listed[:200]


def _library(path: str) -> LibraryFile:
    return LibraryFile(path, file_identity(path))


def _boot() -> str:
    with contextlib.suppress(OSError):
        return _BOOT_ID.read_text(encoding="ascii").strip()[:200]
    return ""


def _processor() -> str:
    """Return a digest of what the kernel says of the first processor."""
    text = platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="ascii") as lines:
        block = lines.read(65536).split("\n\n")[0].splitlines()
        # The clock rate changes from moment to moment.
        text = "\n".join(line for line in block if not line.startswith(("cpu MHz", "bogomips")))
    return format_digest(sha256(text.encode()))


def _load(path: Path) -> _Cached | None:
    try:
        with path.open("rb") as file:
            if not owned(os.fstat(file.fileno())):
                return None
            data = file.read(_MAX_CACHE + 1)
        return decode_bytes(_Cached, data, max_bytes=_MAX_CACHE, where="fingerprint cache")
    except (OSError, TallystickError):
        return None


def _still_holds(cached: _Cached, boot: str, engine: InstalledEngine) -> bool:
    return (
        cached.suite == SUITE_VERSION
        and cached.boot == boot != ""
        and cached.processor == _processor()
        and cached.engine_library == engine.build.library
        and all(_library(file.path) == file for file in cached.libraries)
    )
