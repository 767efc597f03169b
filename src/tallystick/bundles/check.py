"""``bundle check``: is a directory exactly the bundle that its manifest declares? Fail closed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tallystick.bundles.hashing import BUFFER_BYTES, Content, HashedTree, read_content
from tallystick.bundles.match import AttestedData
from tallystick.bundles.tree import (
    Listing,
    TreeProblemError,
    list_tree,
    opened_below,
    opened_file,
    opened_root,
)
from tallystick.canonical.hashing import format_digest, sha256
from tallystick.contracts.dataset import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    MAX_SOURCE_ENVELOPE,
    MODEL_REF_FILE,
    DatasetManifest,
    bundle_digest,
    read_manifest,
    task_digest,
    tile_set,
    tile_set_digest,
)
from tallystick.contracts.model_ref import MAX_MODEL_REF_BYTES, ModelRef, read_model_ref
from tallystick.errors import EvidenceError, InputError, NothingToVerifyError


@dataclass(frozen=True, slots=True)
class CheckedBundle:
    """A bundle that was what it declares when it was checked.

    ``bundle_digest`` and ``task_digest`` are what a run and its receipt name it by,
    ``manifest_digest`` is the sha256 of manifest.json, ``source_attestation_digest`` that of the
    provider's envelope, None without one; ``source`` is that envelope and what it has to be about,
    which nobody has compared yet. Files may change later: what a run reads goes through
    :func:`tallystick.bundles.snapshot.snapshot`, which compares again.
    """

    directory: Path
    bundle_digest: str
    task_digest: str
    manifest_digest: str
    source_attestation_digest: str | None
    manifest: DatasetManifest
    model_ref: ModelRef
    source: AttestedData | None = None

    @property
    def tile_set_digest(self) -> str:
        """What a provider attests to: the digest of the files under data/ but his attestation."""
        return (
            _tile_set_digest(self.manifest) if self.source is None else self.source.tile_set_digest
        )


def check_bundle(directory: Path) -> CheckedBundle:
    """Return the bundle in ``directory``, every byte of it compared with its manifest.

    Raises EvidenceError that names the first path that differs; NothingToVerifyError when there is
    no manifest.json or no directory. Steps: docs/spec/bundles.md#check.
    """
    with _opened(directory) as root:
        return _check(root, directory)


def named_bundle(directory: Path) -> str:
    """Return the bundle_digest that manifest.json in ``directory`` gives, nothing else being read.

    Whether the directory is that bundle is for :func:`check_bundle` to say. Raises as it does.
    """
    with _opened(directory) as root:
        data = _manifest_bytes(root, directory)
        return bundle_digest(sha256(data), read_manifest(data).all_files())


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    """Yield a descriptor of the directory; whatever goes wrong below is told as ours."""
    try:
        with opened_root(directory) as root:
            yield root
    except TreeProblemError as problem:
        raise EvidenceError(
            f"bundle: {problem.message}",
            expected="exactly the files that manifest.json declares",
            hint=problem.hint,
        ) from None
    except (FileNotFoundError, NotADirectoryError):
        raise NothingToVerifyError(
            f"no bundle at {directory}",
            expected="a directory with manifest.json in it, not a symbolic link",
        ) from None
    except OSError as error:
        raise InputError(f"cannot read the bundle {directory}", found=error.strerror) from error


def _manifest_bytes(root: int, directory: Path) -> bytes:
    data = _read(root, MANIFEST_FILE, MAX_MANIFEST_BYTES)
    if data is None:
        raise NothingToVerifyError(
            f"no bundle at {directory}",
            expected="manifest.json in it",
            hint="`tallystick bundle create` makes a bundle",
        )
    return data


def _check(root: int, directory: Path) -> CheckedBundle:
    data = _manifest_bytes(root, directory)
    tree = list_tree(root)
    with HashedTree(root, tree) as hashed:
        manifest = read_manifest(data)
        files = manifest.all_files()
        declared = {file.path: Content(file.size, file.sha256) for file in files}
        declared[MANIFEST_FILE] = Content(len(data), sha256(data).hex())
        _require_same_paths(tree, declared)
        name = bundle_digest(sha256(data), files)
        hashed.require(declared)
    model_ref = _model_ref(root, manifest, declared[MODEL_REF_FILE])
    source = _source(root, manifest, declared)
    return CheckedBundle(
        directory,
        name,
        task_digest(manifest.task),
        format_digest(sha256(data)),
        None if source is None else format_digest(sha256(source.envelope)),
        manifest,
        model_ref,
        source,
    )


def _require_same_paths(tree: tuple[Listing, ...], declared: dict[str, Content]) -> None:
    """Raise TreeProblemError for the first path that is only on disk or only in the manifest."""
    directories = {""}
    for path in declared:
        while path := path.rpartition("/")[0]:
            directories.add(path)
    found: set[str] = set()
    for listing in tree:
        if listing.path not in directories:
            empty = "an empty directory" if not listing.files else "a directory"
            raise TreeProblemError(listing.path, f"{empty} that is not declared", hint="remove it")
        for path in listing.paths():
            if path not in declared:
                raise TreeProblemError(path, "it is not declared", hint="remove it")
            found.add(path)
    missing = sorted(declared.keys() - found)
    if missing:
        raise TreeProblemError(missing[0], "it is declared, and missing")


def _model_ref(root: int, manifest: DatasetManifest, wanted: Content) -> ModelRef:
    data = _read(root, MODEL_REF_FILE, MAX_MODEL_REF_BYTES)
    if data is None or Content(len(data), sha256(data).hex()) != wanted:
        raise TreeProblemError(MODEL_REF_FILE, "it changed while it was read")
    ref = read_model_ref(data)
    if ref.digest != manifest.model.digest:
        raise EvidenceError(
            "bundle: manifest.json and model.ref.json name different models",
            expected=manifest.model.digest,
            found=ref.digest,
        )
    return ref


def _tile_set_digest(manifest: DatasetManifest) -> str:
    return tile_set_digest((file.path, file.size, file.sha256) for file in tile_set(manifest))


def _source(
    root: int, manifest: DatasetManifest, declared: dict[str, Content]
) -> AttestedData | None:
    """Return the provider's envelope: one line, so that it can go into a set as it is."""
    imagery = manifest.imagery
    if imagery is None or imagery.source_attestation is None:
        return None
    path = imagery.source_attestation
    folder, _, name = path.rpartition("/")
    with opened_below(root, folder) as directory:
        data = _read_file(directory, name, path, MAX_SOURCE_ENVELOPE)
    if Content(len(data), sha256(data).hex()) != declared[path]:
        raise TreeProblemError(path, "it changed while it was read")
    if not data or b"\n" in data:
        raise TreeProblemError(
            path,
            "a source attestation is one line without a newline",
            hint="`tallystick attest source` writes it so",
        )
    return AttestedData(data, _tile_set_digest(manifest), imagery.license)


def _read(root: int, name: str, max_bytes: int) -> bytes | None:
    """Return the bytes of a file in the root, None when there is no such name."""
    try:
        os.stat(name, dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return _read_file(root, name, name, max_bytes)


def _read_file(directory: int, name: str, path: str, max_bytes: int) -> bytes:
    pieces: list[bytes] = []
    with opened_file(directory, name, path) as descriptor:
        if os.fstat(descriptor).st_size > max_bytes:
            raise TreeProblemError(path, f"it has more than {max_bytes} bytes")
        buffer = bytearray(BUFFER_BYTES)
        read_content(descriptor, path, buffer, lambda piece: pieces.append(bytes(piece)))
    return b"".join(pieces)
