"""Finding and reading artifact sets, bounded and without following links.

The reader answers one question only: are these the files that the marker names? What they say is
for :mod:`tallystick.receipts.verify`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.contracts.codec import decode_bytes
from tallystick.contracts.layout import (
    DIRECTORY_MODE,
    LATER_SUFFIXES,
    MARKER,
    MEMBERS,
    RECEIPT,
    STATE,
    MemberKind,
    kind_of,
    split_name,
)
from tallystick.contracts.opening import ReceiptSet, SetMember
from tallystick.errors import EvidenceError, NothingToVerifyError
from tallystick.store.database.place import require_at_rest
from tallystick.store.files import CHECK_PATH, opened_directory, read_plain, real_directory

_INCOMPLETE = "the set is incomplete: ask for all public files, or run again"


@dataclass(frozen=True, slots=True)
class SetLocation:
    """Where one set was found: its directory and its id (32 hex digits)."""

    directory: Path
    set_id: str


@dataclass(frozen=True, slots=True)
class LoadedSet:
    """The files of one set by name, marker included; ``withheld`` names absent private ones."""

    location: SetLocation
    files: Mapping[str, bytes] = field(repr=False)
    withheld: tuple[str, ...]


def find_sets(path: Path) -> tuple[SetLocation, ...]:
    """Return the sets at ``path``: a directory, or one file of a set.

    Raises NothingToVerifyError when there is nothing recognisable.
    """
    if os.path.isdir(path):  # unlike Path.is_dir, no error for odd or forbidden paths
        return _sets_in(path)
    parts = split_name(path.name)
    if parts is None or kind_of(parts[1]) is None:
        raise NothingToVerifyError(
            f"{path} is no part of an artifact set",
            expected="a directory, <id>.geoai.json or <id>.complete",
            found="no such file" if not os.path.lexists(path) else "another file",
            hint=CHECK_PATH,
        )
    if not os.path.lexists(path):
        raise NothingToVerifyError(f"{path} does not exist", hint=CHECK_PATH)
    return (SetLocation(path.parent, parts[0]),)


def _sets_in(directory: Path) -> tuple[SetLocation, ...]:
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        raise NothingToVerifyError(f"cannot read {directory}", found=error.strerror) from error
    parts = (split_name(name) for name in names)
    ids = dict.fromkeys(part[0] for part in parts if part and kind_of(part[1]))
    if not ids:
        nested = any(os.path.isdir(directory / name) for name in names)
        raise NothingToVerifyError(
            f"{directory} holds no artifact set",
            expected="files <id>.complete, <id>.geoai.json and so on",
            hint=f"name the directories inside it: {directory}/*" if nested else None,
        )
    return tuple(SetLocation(directory, set_id) for set_id in ids)


def read_set(path: Path) -> LoadedSet:
    """Read the one set at ``path``. Raises as :func:`find_sets` and :func:`load_set` do.

    Raises NothingToVerifyError when ``path`` holds several sets.
    """
    return load_set(_only(path, find_sets(path)))


def _only(path: Path, locations: tuple[SetLocation, ...]) -> SetLocation:
    if len(locations) > 1:
        raise NothingToVerifyError(
            f"{path} holds {len(locations)} sets",
            expected="one",
            hint="name its <id>.geoai.json",
        )
    return locations[0]


def load_set(location: SetLocation) -> LoadedSet:
    """Read every file that the marker names; private ones may be absent.

    Raises NothingToVerifyError when the marker or a public file is missing, EvidenceError when a
    file is unparsable, too large, a link, not named by the marker, or private and yet readable by
    others, UnavailableError when the state store is not at rest.
    """
    try:
        with opened_directory(real_directory(location.directory)) as descriptor:
            return _load(location, descriptor)
    except OSError as error:
        raise NothingToVerifyError(
            f"cannot read {location.directory}", found=error.strerror
        ) from error


def require_kept_private(location: SetLocation) -> None:
    """Require a set as its holder keeps it: directory and files ours, with exact modes.

    Raises EvidenceError naming the file, NothingToVerifyError when one is not there.
    """
    try:
        with opened_directory(real_directory(location.directory)) as descriptor:
            _require_exact(os.fspath(location.directory), os.fstat(descriptor), DIRECTORY_MODE)
            for kind in (*MEMBERS, MARKER):
                name = kind.name(location.set_id)
                info = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                _require_exact(name, info, kind.mode)
    except OSError as error:
        raise NothingToVerifyError(
            f"cannot read {error.filename or location.directory}",
            found=error.strerror,
            hint=_INCOMPLETE,
        ) from error


def _require_exact(name: str, info: os.stat_result, mode: int) -> None:
    found = stat.S_IMODE(info.st_mode)
    if info.st_uid != os.geteuid() or found != mode:
        raise EvidenceError(
            f"{name} is not as its holder keeps it",
            expected=f"owner {os.geteuid()}, mode {mode:04o}",
            found=f"owner {info.st_uid}, mode {found:04o}",
        )


def _load(location: SetLocation, descriptor: int) -> LoadedSet:
    marker_name = location.set_id + MARKER.suffix
    files = {marker_name: _read_public(descriptor, marker_name, MARKER.max_bytes)}
    marker = decode_bytes(
        ReceiptSet, files[marker_name], max_bytes=MARKER.max_bytes, where=marker_name
    )
    withheld: list[str] = []
    for member in marker.members:
        data = _read_member(descriptor, member, location.set_id)
        if data is None:
            withheld.append(member.name)
        else:
            files[member.name] = data
    _require_nothing_else(descriptor, location.set_id, files, marker)
    return LoadedSet(location=location, files=files, withheld=tuple(withheld))


def _read_member(descriptor: int, member: SetMember, set_id: str) -> bytes | None:
    kinds = {kind.name(set_id): kind for kind in MEMBERS}
    kind: MemberKind | None = kinds.get(member.name)
    if kind is None:
        raise EvidenceError(
            f"the marker names {member.name}, which is no member of this set",
            expected=", ".join(kinds),
        )
    if kind.visibility == "public":
        return _read_public(descriptor, member.name, kind.max_bytes)
    try:
        data, info = _read_private(descriptor, member.name, kind)
    except (FileNotFoundError, PermissionError):
        return None
    mode = stat.S_IMODE(info.st_mode)
    if mode & 0o077:
        raise EvidenceError(
            f"{member.name} is private, but other users can reach it",
            expected="mode 0600",
            found=f"mode {mode:04o}",
            hint="treat its content as published; chmod 600 it to verify the set",
        )
    return data


def _read_private(descriptor: int, name: str, kind: MemberKind) -> tuple[bytes, os.stat_result]:
    if kind is not STATE:
        return read_plain(descriptor, name, max_bytes=kind.max_bytes)
    require_at_rest(descriptor, name)
    found = read_plain(descriptor, name, max_bytes=kind.max_bytes)
    require_at_rest(descriptor, name)  # nor did anyone open it while it was read
    return found


def _read_public(descriptor: int, name: str, max_bytes: int) -> bytes:
    try:
        return read_plain(descriptor, name, max_bytes=max_bytes)[0]
    except OSError as error:
        raise NothingToVerifyError(
            f"{name} cannot be read",
            found=error.strerror,
            hint=_INCOMPLETE,
        ) from error


def _require_nothing_else(
    descriptor: int, set_id: str, files: Mapping[str, bytes], marker: ReceiptSet
) -> None:
    """Refuse a file that carries this set's id and that the marker does not vouch for."""
    named = {*files, *(member.name for member in marker.members)}
    for name in sorted(os.listdir(descriptor)):
        parts = split_name(name)
        if parts is None or parts[0] != set_id or name in named or parts[1] in LATER_SUFFIXES:
            continue
        raise EvidenceError(
            f"{name} is not named by the set's marker",
            expected="only files that the marker names",
            hint="move the file away, and find out where it came from",
        )


def read_receipt(path: Path) -> bytes:
    """Return the bytes of one receipt, for display: a directory, ``<id>.complete`` or the file.

    Nothing is judged, so a receipt without its set will do. Raises NothingToVerifyError when there
    is none, or several; EvidenceError when it is a link or too large.
    """
    directory, name = path.parent, path.name
    if os.path.isdir(path):
        location = _only(path, find_sets(path))
        directory, name = path, location.set_id + RECEIPT.suffix
    elif name.endswith(MARKER.suffix):
        name = name.removesuffix(MARKER.suffix) + RECEIPT.suffix
    try:
        with opened_directory(real_directory(directory)) as descriptor:
            return read_plain(descriptor, name, max_bytes=RECEIPT.max_bytes)[0]
    except OSError as error:
        raise NothingToVerifyError(
            f"{directory / name} cannot be read", found=error.strerror, hint=CHECK_PATH
        ) from error
