"""Fetch one registry blob into a partial file, continuing where an earlier attempt ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tallystick.errors import EvidenceError, UnavailableError
from tallystick.models.files import Progress
from tallystick.models.oci import BlobName, RegistryClient
from tallystick.models.partial import PartialFile
from tallystick.models.web import (
    BlobStream,
    BrokenTransferError,
    RangeRefusedError,
    TransferError,
)

_CHUNK: Final = 1 << 20
_PATIENCE: Final = 5
_FIRST_PAUSE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Transfer:
    """What to fetch, from where, into what."""

    client: RegistryClient
    repository: str
    blob: BlobName
    partial: PartialFile
    progress: Progress
    pause: Callable[[float], None] = time.sleep


def fetch_blob(transfer: Transfer) -> None:
    """Bring the partial file to the blob's full length. Its content is the caller's to check.

    A broken transfer is continued, with growing pauses, until five attempts in a row brought
    nothing. Raises UnavailableError then (the partial file is kept), EvidenceError when
    the server's sizes contradict the manifest, InputError when it has no such blob.
    """
    failures = 0
    while not _complete(transfer):
        before = transfer.partial.size
        try:
            if _fetch_once(transfer):
                return
        except TransferError as problem:
            if isinstance(problem, RangeRefusedError):
                transfer.partial.clear()
            failures = 0 if transfer.partial.size > before else failures + 1
            if failures >= _PATIENCE:
                raise _given_up(problem.error, transfer.partial) from None
            transfer.pause(_FIRST_PAUSE * 2.0**failures)


def _given_up(error: UnavailableError, partial: PartialFile) -> UnavailableError:
    if partial.size and error.hint is not None:
        error.hint += ": what was received is kept"
    return error


def _complete(transfer: Transfer) -> bool:
    size, have = transfer.blob.size, transfer.partial.size
    if size is not None and have > size:
        transfer.partial.clear()
        return False
    return size is not None and have == size


def _fetch_once(transfer: Transfer) -> bool:
    """Read one response to its end; say whether the blob is complete with it."""
    partial = transfer.partial
    stream = transfer.client.open_blob(transfer.repository, transfer.blob.digest, partial.size)
    try:
        total = _agreed_size(transfer.blob, stream)
        if stream.start != partial.size:
            partial.clear()  # the server ignored the range and starts anew
        _copy(stream, transfer, total)
    finally:
        stream.close()
    if total is not None and partial.size < total:
        raise BrokenTransferError(
            UnavailableError(
                "the transfer broke off",
                expected=f"{total} bytes",
                found=f"{partial.size} bytes",
                hint="try again",
            )
        )
    return True


def _agreed_size(blob: BlobName, stream: BlobStream) -> int | None:
    if blob.size is None or stream.total is None:
        return blob.size if blob.size is not None else stream.total
    if stream.total != blob.size:
        raise EvidenceError(
            "the registry offers a blob of another size",
            expected=f"{blob.size} bytes",
            found=f"{stream.total} bytes",
        )
    return blob.size


def _copy(stream: BlobStream, transfer: Transfer, total: int | None) -> None:
    done = transfer.partial.size
    while chunk := stream.read(_CHUNK):
        if total is not None and done + len(chunk) > total:
            transfer.partial.clear()
            raise EvidenceError(
                "the registry sends more than the blob's size",
                expected=f"{total} bytes",
                found=f"at least {done + len(chunk)} bytes",
            )
        transfer.partial.append(chunk)
        done += len(chunk)
        transfer.progress("downloading", done, total or 0)
