"""Files of audit and bundle keys, 32 raw bytes each (docs/spec/keys.md)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from tallystick.attest.bundlekeys import SECRET_BYTES, AuditKey, BundleKey, SecretKey
from tallystick.attest.secretfiles import (
    KEY_FILE,
    create_file,
    parent_directory,
    private_directory,
    read_secret,
)
from tallystick.contracts.layout import PRIVATE_MODE
from tallystick.errors import InputError
from tallystick.store.files import exists

_MODES: Final = (0o400, PRIVATE_MODE)
# More than a key has, so that the message can say how much too long a file is.
_MAX_READ: Final = 4096
_RAW_HINT: Final = "the file holds the bytes themselves: no hex digits, no line end"

_Key = TypeVar("_Key", bound=SecretKey)


def read_audit_key(path: Path, outside: Sequence[Path] = ()) -> AuditKey:
    """Return the audit key in the file ``path``, which lies in none of the directories ``outside``.

    Raises InputError when the file is missing, unsafe (a symlink, no plain file, another user's, a
    mode other than 0400 and 0600, more than one link), inside one of ``outside``, or does not hold
    exactly 32 bytes that are not all zero.
    """
    return _read(path, AuditKey, outside, hint="`tallystick run` without a key file makes one")


def read_bundle_key(path: Path, outside: Sequence[Path] = ()) -> BundleKey:
    """Return the key of one bundle in the file ``path``. The rules are those of an audit key."""
    return _read(path, BundleKey, outside, hint="ask the bundle's owner for the bundle's key")


def write_bundle_key(path: Path, key: BundleKey, outside: Path | None = None) -> None:
    """Write the key of one bundle to the new file ``path`` (0600), to hand it to one auditor.

    ``outside`` is the directory of the bundle's set: a key in it would go wherever the set goes.
    Raises InputError when the file would lie there or its name is taken, UnavailableError when the
    place cannot be written.
    """
    if outside is not None and lies_in(path, outside):
        raise InputError(
            "the bundle's key would lie in the directory of its set",
            expected="a place that is not handed out with the set",
            found=str(path),
            hint="choose another place: nothing was written",
        )
    with parent_directory(path) as directory:
        create_file(directory, path, key.raw, PRIVATE_MODE)


def default_audit_key_path(home: Path) -> Path:
    """Return where the default audit key lives under ``home``."""
    return home / "keys" / "audit.key"


def default_audit_key(home: Path, outside: Path | None = None) -> tuple[AuditKey, bool]:
    """Return the default audit key of ``home``, and whether it was created just now.

    Processes that come here at once end with one key. Raises InputError as :func:`read_audit_key`
    does, UnavailableError when the key directory cannot be used.
    """
    path = default_audit_key_path(home)
    _require_outside(path, () if outside is None else (outside,))
    with private_directory(path.parent) as directory:
        created = not exists(directory, path.name)
        if created:
            create_file(directory, path, os.urandom(SECRET_BYTES), PRIVATE_MODE)
        data = read_secret(path, max_bytes=_MAX_READ, directory=directory, modes=_MODES)
    return _key(path, data, AuditKey), created


def _read(path: Path, make: Callable[[bytes], _Key], outside: Sequence[Path], *, hint: str) -> _Key:
    data = read_secret(
        path, max_bytes=_MAX_READ, modes=_MODES, kind=replace(KEY_FILE, missing=hint)
    )
    _require_outside(path, outside)
    return _key(path, data, make)


def _key(path: Path, data: bytes, make: Callable[[bytes], _Key]) -> _Key:
    try:
        return make(data)
    except InputError as error:
        raise InputError(
            error.message,
            expected=error.expected,
            found=f"{path}: {error.found}" if error.found else str(path),
            hint=_RAW_HINT,
        ) from None


def _require_outside(path: Path, outside: Sequence[Path]) -> None:
    """Refuse a key that would be handed out, copied or deleted together with the output."""
    if any(lies_in(path, directory) for directory in outside):
        raise InputError(
            "the key file lies inside the output directory",
            expected="a place that is not handed out with the results",
            found=str(path),
            hint="move the key, or choose another output directory",
        )


def lies_in(path: Path, directory: Path) -> bool:
    """Say whether ``path`` is ``directory`` or lies in it, under whatever names; none has to exist.

    Symlinks, ``..`` and mounts are resolved.
    """
    real, forbidden = Path(os.path.realpath(path)), Path(os.path.realpath(directory))
    return real.is_relative_to(forbidden) or any(_same(forbidden, above) for above in real.parents)


def _same(one: Path, other: Path) -> bool:
    """Say whether both names lead to one directory: mounts and file systems may alias them."""
    try:
        return os.path.samestat(one.stat(), other.stat())
    except OSError:
        return False
