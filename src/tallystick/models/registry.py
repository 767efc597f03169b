"""Named models: pins on disk, from a name or path to an open, unchanged, hashed file.

A pin is a document under ``<home>/models/<name>.json`` (docs/spec/models.md): it says where the
file is and what it must hash to. Pins of files inside the models folder hold a relative path, so
that the folder can be moved.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallystick.canonical.json import JSONValue, parse_canonical
from tallystick.contracts.codec import decode_bytes, encode_bytes
from tallystick.contracts.model import PIN_SCHEMA, ModelFacts, ModelPin
from tallystick.contracts.sandbox_profile import SandboxProfile
from tallystick.errors import (
    EvidenceError,
    IncomparableError,
    InputError,
    RunFailedError,
    TallystickError,
)
from tallystick.models.catalogue import CATALOGUE
from tallystick.models.digests import DigestCache, HashedFile
from tallystick.models.facts_child import read_facts
from tallystick.models.files import (
    FileIdentity,
    Progress,
    opened,
    silent,
    sync_directory,
    unavailable,
)
from tallystick.store.home import ensure_private_dir, user_path

MAX_PIN: Final = 4 * 1024 * 1024
_EARLIER_SCHEMAS: Final = ("tallystick.model-pin/v1",)
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_SUFFIXES: Final = (".json", ".gguf", ".partial")


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model file that was hashed: ``identity`` is what it looked like while it was."""

    path: Path
    digest: str
    size: int
    pin: ModelPin | None
    facts: ModelFacts
    identity: FileIdentity


@dataclass(frozen=True, slots=True)
class OpenModel:
    """An open model file; ``fd`` may be passed to children, and stays ours to close."""

    fd: int
    digest: str
    identity: FileIdentity

    def unchanged(self) -> None:
        """Raise RunFailedError when the file was touched since it was hashed."""
        now = FileIdentity.of(self.fd)
        if now != self.identity:
            raise RunFailedError(
                "the model file changed while it was in use",
                expected=_difference(self.identity, now),
                found=_difference(now, self.identity),
                hint="leave the file alone while models run, and start again",
            )


def _difference(shown: FileIdentity, other: FileIdentity) -> str:
    names = ("device", "inode", "size", "mtime_ns", "ctime_ns")
    return ", ".join(
        f"{name} {getattr(shown, name)}"
        for name in names
        if getattr(shown, name) != getattr(other, name)
    )


def models_dir(home: Path) -> Path:
    """Return the folder of pins and pulled files; nothing is created."""
    return home / "models"


def checked_name(name: str) -> str:
    """Return ``name`` if it can name a model. Raises InputError otherwise."""
    if not _NAME.fullmatch(name) or name.endswith(_SUFFIXES):
        raise InputError(
            "not a usable model name",
            expected="1 to 100 of a-z 0-9 . _ - with a letter or digit first, no file suffix",
            found=ascii(name[:120]),
        )
    return name


def resolve(
    name_or_path: str,
    home: Path,
    progress: Progress = silent,
    sandbox: SandboxProfile | None = None,
) -> ModelFile:
    """Return the model that a name or a path means, hashed (or known from the cache) and parsed.

    A name of a pin wins unless the text has a directory separator. ``sandbox`` holds the child that
    parses it; SandboxError where it cannot. Raises InputError for an
    unknown or damaged model or a pinned file that is no longer what was pinned, IncomparableError
    for a file that the engine's loader refuses as it is.
    """
    pin = find_pin(name_or_path, home)
    path = user_path(name_or_path) if pin is None else pin_path(pin, home)
    real = resolved(path)
    if pin is None and name_or_path in CATALOGUE and not os.path.lexists(path):
        raise _not_pulled(name_or_path)
    with opened(real) as descriptor:
        hashed = DigestCache(home).digest_of(descriptor, progress=progress)
        if pin is not None:
            _require_pinned(pin, hashed)
        facts = read_facts(descriptor, sandbox) if pin is None else pin.facts
    require_loadable(facts, real)
    return ModelFile(real, hashed.digest, hashed.identity.size, pin, facts, hashed.identity)


def resolved(path: Path) -> Path:
    """Return the absolute path of the file itself: hub caches are symlinks to blobs."""
    try:
        return path.resolve(strict=False)
    except (OSError, RuntimeError, ValueError):
        return path.absolute()


def _not_pulled(name: str) -> InputError:
    return InputError(
        f"the model {name} was not pulled yet",
        expected="a model that `tallystick model ls` shows, or the path of a .gguf file",
        found=f"no such model and no such file: {name}",
        hint=f"run `tallystick model pull {name}`",
    )


def _require_pinned(pin: ModelPin, hashed: HashedFile) -> None:
    if hashed.digest != pin.digest:
        raise InputError(
            f"the file of the model {pin.name} is not the one that was pinned",
            expected=f"{pin.digest}, {pin.size} bytes",
            found=f"{hashed.digest}, {hashed.identity.size} bytes",
            hint=f"run `tallystick model check {pin.name}`; put the file back, or add the new one "
            "under another name",
        )


def require_loadable(facts: ModelFacts, path: Path) -> None:
    """Raise IncomparableError, with reasons and flag, if the engine would refuse the file."""
    if facts.needs_normalising:
        raise IncomparableError(
            "the engine cannot load this model file as it is",
            expected="a file that its loader accepts",
            found="; ".join(facts.needs_normalising),
            hint=f"write a derived file: tallystick model add {shlex.quote(str(path))} --normalise",
        )


@contextlib.contextmanager
def open_model(model: ModelFile) -> Iterator[OpenModel]:
    """Open ``model`` for a run. Raises RunFailedError when it changed since it was hashed."""
    with opened(model.path) as descriptor:
        handle = OpenModel(descriptor, model.digest, model.identity)
        handle.unchanged()
        yield handle


def pin_path(pin: ModelPin, home: Path) -> Path:
    """Return where the pinned file is."""
    return models_dir(home) / pin.path  # an absolute path replaces the folder


def path_for_pin(path: Path, home: Path) -> str:
    """Return ``path`` as a pin holds it: relative inside the models folder.

    Raises InputError when it is not UTF-8.
    """
    inside = resolved(path.parent) == resolved(models_dir(home))
    text = path.name if inside else os.fspath(path)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(
            "the path of the model file is not UTF-8", hint="rename the file, or link to it"
        ) from None
    return text


def find_pin(name: str, home: Path) -> ModelPin | None:
    """Return the pin called ``name``, None when there is none. InputError when it is damaged."""
    if not _NAME.fullmatch(name):
        return None
    path = models_dir(home) / f"{name}.json"
    data = _read_pin(path)
    if data is None:
        return None
    outdated = _outdated(data)
    if outdated is not None:
        raise _earlier(path, name, home, outdated)
    try:
        pin = decode_bytes(ModelPin, data, max_bytes=MAX_PIN, where="model pin")
    except EvidenceError as error:
        raise _damaged(path, error) from None
    if pin.name != name:
        raise _damaged(path, InputError("another name", expected=name, found=ascii(pin.name)))
    return pin


def pinned_digest(name: str, home: Path) -> str | None:
    """Return the digest that ``name`` stands for, also where its pin is of an earlier version.

    None when there is no such name. Raises InputError when the pin is damaged.
    """
    data = _read_pin(models_dir(home) / f"{checked_name(name)}.json")
    outdated = None if data is None else _outdated(data)
    if outdated is not None:
        return str(outdated["digest"])
    pin = find_pin(name, home)
    return None if pin is None else pin.digest


def _read_pin(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(MAX_PIN + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"cannot read the model pin {path}", found=error.strerror) from error


def _outdated(data: bytes) -> Mapping[str, JSONValue] | None:
    """Return a pin of an earlier version as it is, None for anything else."""
    try:
        value = parse_canonical(data, max_bytes=MAX_PIN)
    except EvidenceError:
        return None
    if not isinstance(value, dict) or value.get("schema") not in _EARLIER_SCHEMAS:
        return None
    texts = (value.get("digest"), value.get("path"))
    return value if all(isinstance(text, str) for text in texts) else None


def _earlier(path: Path, name: str, home: Path, outdated: Mapping[str, JSONValue]) -> InputError:
    file = models_dir(home) / str(outdated["path"])
    return InputError(
        f"the model pin {path} was written by an earlier version",
        expected=PIN_SCHEMA,
        found=str(outdated["schema"]),
        hint=f"make it anew: tallystick model add {shlex.quote(str(file))} --name {name}",
    )


def _damaged(path: Path, error: TallystickError) -> InputError:
    return InputError(
        f"the model pin {path} is damaged: {error.message}",
        expected=error.expected,
        found=error.found,
        hint="remove it and add the model again",
    )


def save_pin(pin: ModelPin, home: Path) -> ModelPin:
    """Write ``pin`` unless its name is taken; a pin for the same digest is refreshed.

    Raises InputError when the name belongs to a model with another digest, UnavailableError when
    the folder cannot be written.
    """
    known = pinned_digest(pin.name, home)
    if known is not None and known != pin.digest:
        raise InputError(
            f"the name {pin.name} is taken by another model",
            expected=known,
            found=pin.digest,
            hint="choose another name with --name",
        )
    path, data = models_dir(home) / f"{pin.name}.json", encode_bytes(pin)
    if _read_pin(path) != data:
        replace_document(path, data)
    return pin


def replace_document(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` as a whole or not at all, mode 0600. Raises UnavailableError."""
    ensure_private_dir(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        raise unavailable(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)
