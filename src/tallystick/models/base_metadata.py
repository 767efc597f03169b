"""Fetch the small files that describe a pinned model's base (docs/spec/profile-pins.md).

All of them or none: they are put together beside the asked directory and renamed at the end.
Anonymous: no token is read from anywhere, and none is sent.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tallystick.canonical.hashing import sha256
from tallystick.contracts.codec import decode_bytes, encode_bytes
from tallystick.contracts.profile_pin import (
    BASE_METADATA_SCHEMA,
    BaseArtifact,
    BaseMetadata,
    MetadataRecord,
    PinnedFile,
    ProfilePin,
)
from tallystick.contracts.request import PRODUCER
from tallystick.errors import EvidenceError, InputError, UnavailableError
from tallystick.models.files import Progress, silent, sync_directory
from tallystick.models.web import BrokenTransferError, TransferError, WebClient
from tallystick.store.files import opened_directory, read_plain, write_new
from tallystick.store.home import make_private_dirs, unavailable

DEFAULT_ENDPOINT: Final = "https://huggingface.co"
RECORD_NAME: Final = "base-metadata.json"
MAX_FILE: Final = 64 * 1024 * 1024
_MAX_RECORD: Final = 64 * 1024
_MODE: Final = 0o644
_CHUNK: Final = 1 << 20
_ATTEMPTS: Final = 5
_FIRST_PAUSE: Final = 0.5

Pause = Callable[[float], None]


def fetch(
    pin: ProfilePin,
    directory: Path,
    endpoint: str = DEFAULT_ENDPOINT,
    progress: Progress = silent,
    pause: Pause = time.sleep,
) -> BaseMetadata:
    """Fetch the files of ``pin`` into ``directory``, which is new or empty; return the record.

    ``endpoint`` serves ``/REPOSITORY/resolve/REVISION/PATH``. Raises EvidenceError for a file with
    another digest than the pinned one or of an impossible size, InputError when there is no such
    file or the directory has other content, UnavailableError when it cannot be reached or written.
    """
    _require_room(directory)
    client = WebClient(endpoint, "hub")
    target = directory.absolute()
    staging = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        make_private_dirs(staging)
        records = []
        base = pin.base_artifact
        for index, file in enumerate(base.files):
            progress("fetching metadata", index, len(base.files))
            data = _download(client, base, file, pause)
            records.append(_record(file, data))
            _write(staging, file.path, data)
        progress("fetching metadata", len(base.files), len(base.files))
        found = _document(pin, tuple(records))
        _write(staging, RECORD_NAME, encode_bytes(found))
        sync_directory(staging)
        os.rename(staging, target)
        sync_directory(target.parent)
    except OSError as error:
        raise unavailable(directory, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return found


def check(pin: ProfilePin, directory: Path) -> BaseMetadata:
    """Hash the files of an earlier fetch and compare them with its record and with ``pin``.

    Raises EvidenceError naming the first file that differs, InputError without a record.
    """
    try:
        with opened_directory(directory) as folder:
            data, _ = read_plain(folder, RECORD_NAME, max_bytes=_MAX_RECORD)
            found = decode_bytes(BaseMetadata, data, max_bytes=_MAX_RECORD, where=RECORD_NAME)
            records = []
            for file in pin.base_artifact.files:
                data, _ = read_plain(folder, file.path, max_bytes=MAX_FILE)
                records.append(_record(file, data))
    except OSError as error:
        raise InputError(
            "the directory does not hold a model's metadata",
            expected=f"{RECORD_NAME} and the {len(pin.base_artifact.files)} pinned files",
            found=error.strerror,
            hint="fetch it into a new directory",
        ) from error
    expected = _document(pin, tuple(records))
    if found != expected:
        raise EvidenceError(
            "the metadata is not what was fetched", expected=_different(found, expected)
        )
    return found


def has_record(directory: Path) -> bool:
    """Say whether ``directory`` holds what an earlier fetch left."""
    return os.path.lexists(directory / RECORD_NAME)


def _different(found: BaseMetadata, expected: BaseMetadata) -> str:
    recorded = {record.path: record for record in found.files}
    for record in expected.files:
        if recorded.get(record.path) != record:
            return f"{record.path} as {RECORD_NAME} says"
    return f"the record of {expected.profile_name}"


def _document(pin: ProfilePin, records: tuple[MetadataRecord, ...]) -> BaseMetadata:
    return BaseMetadata(
        schema=BASE_METADATA_SCHEMA,
        producer=PRODUCER,
        profile_name=pin.profile_name,
        repository=pin.base_artifact.repository,
        revision=pin.base_artifact.revision,
        files=records,
    )


def _record(file: PinnedFile, data: bytes) -> MetadataRecord:
    digest = sha256(data).hex()
    if file.sha256 not in (None, digest):
        raise EvidenceError(
            f"the metadata file {file.path} is not the pinned one",
            expected=file.sha256,
            found=digest,
            hint="the source is damaged or forged",
        )
    if not data:
        raise EvidenceError(f"the metadata file {file.path} is empty", expected="at least 1 byte")
    return MetadataRecord(file.path, digest, len(data))


def _require_room(directory: Path) -> None:
    try:
        empty = not any(directory.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise unavailable(directory, error) from error
    if not empty:
        raise InputError(
            f"{directory} is not empty",
            expected="a new or empty directory",
            hint="nothing is overwritten: choose another place",
        )


def _download(client: WebClient, base: BaseArtifact, file: PinnedFile, pause: Pause) -> bytes:
    path = f"{base.repository}/resolve/{base.revision}/{file.path}"
    for attempt in range(_ATTEMPTS):
        try:
            return _read(client, path, file)
        except TransferError as problem:
            if attempt == _ATTEMPTS - 1:
                raise problem.error from None
            pause(_FIRST_PAUSE * 2.0**attempt)
    raise AssertionError("unreachable")


def _read(client: WebClient, path: str, file: PinnedFile) -> bytes:
    data = bytearray()
    with client.open(path, {}) as stream:
        while chunk := stream.read(_CHUNK):
            data += chunk
            if len(data) > MAX_FILE:
                raise EvidenceError(
                    f"the metadata file {file.path} is too large",
                    expected=f"at most {MAX_FILE} bytes",
                    found="more",
                )
        if stream.total is not None and len(data) != stream.total:
            raise BrokenTransferError(
                UnavailableError(
                    "the transfer broke off",
                    expected=f"{stream.total} bytes",
                    found=f"{len(data)} bytes",
                    hint="try again",
                )
            )
    return bytes(data)


def _write(directory: Path, name: str, data: bytes) -> None:
    with opened_directory(directory) as folder:
        write_new(folder, name, data, _MODE)
