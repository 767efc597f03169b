"""``dac.manifest/v2``: what a dataset bundle consists of (docs/spec/bundles.md#manifest)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Final

from tallystick.canonical.hashing import domain_digest, format_digest, sha256, u64le
from tallystick.contracts.codec import decode_bytes, encode_bytes
from tallystick.contracts.paths import check_path, check_together
from tallystick.contracts.request import (
    Chat,
    Disclosure,
    Enforcement,
    EvidencePart,
    PathText,
    Producer,
    SplitName,
    TileId,
)
from tallystick.contracts.runtime import SEQUENTIAL, Policy
from tallystick.contracts.sandbox_profile import ProfileName
from tallystick.contracts.types import (
    U64,
    Digest,
    Hex32,
    IntRange,
    KeyedBy,
    MaxLength,
    OneOf,
    Pattern,
    ShortText,
    Temperature,
)
from tallystick.errors import EvidenceError

MANIFEST_SCHEMA: Final = "dac.manifest/v2"
MANIFEST_FILE: Final = "manifest.json"
MODEL_REF_FILE: Final = "model.ref.json"
DATA: Final = "data/"
TASK: Final = "task/"
MAX_FILES: Final = 100_000
MAX_SPLITS: Final = 256
MAX_TILES: Final = 100_000
MAX_MANIFEST_BYTES: Final = 64 * 1024 * 1024
#: It goes into a set beside the other envelopes, which have their room in 1 MiB.
MAX_SOURCE_ENVELOPE: Final = 768 * 1024
MAX_ZOOM: Final = 30
#: The fields that a tile's path has, each exactly once.
TILE_FIELDS: Final = ("z", "x", "y")
_FIELD: Final = re.compile(r"\{([^{}]*)\}")

DatasetName = Annotated[str, Pattern(r"[a-z0-9][a-z0-9._-]*", 100)]
MediaType = Annotated[str, Pattern(r"[a-z]+/[a-z0-9][a-z0-9.+-]*", 100)]


@dataclass(frozen=True, slots=True)
class DeclaredFile:
    """One file: its path from the bundle's root, the sha256 of its bytes, their number."""

    path: PathText
    sha256: Hex32
    size: U64
    media_type: MediaType


Files = Annotated[tuple[DeclaredFile, ...], KeyedBy("path", MAX_FILES)]


@dataclass(frozen=True, slots=True)
class Imagery:
    """Where imagery comes from, and on what terms it may be used.

    ``tiles`` is the path of a tile's image with ``{z}``, ``{x}`` and ``{y}`` in it,
    ``descriptions`` that of a UTF-8 text about the tile. ``source_attestation`` is the path of the
    provider's envelope. Null where there is none.
    """

    source: Annotated[str, MaxLength(1000)]
    license: ShortText
    attribution: Annotated[str, MaxLength(1000)]
    tiles: PathText | None
    descriptions: PathText | None
    source_attestation: PathText | None


@dataclass(frozen=True, slots=True)
class Split:
    """A named part of the tiles: what counts is the list, in ascending order of z, x, y.

    ``origin`` is the path of the GeoJSON geometry or tile list that it was made from.
    """

    name: SplitName
    origin: PathText | None
    tiles: Annotated[tuple[TileId, ...], MaxLength(MAX_TILES)]


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be done with the data: every file under ``task/``.

    ``prompt_template`` is the path of the template from which each run's prompt is made.
    """

    prompt_template: PathText | None
    files: Files


@dataclass(frozen=True, slots=True)
class DeclaredModel:
    """The file that names the model, and the sha256 of the model itself."""

    ref: Annotated[str, OneOf((MODEL_REF_FILE,))]
    digest: Digest


@dataclass(frozen=True, slots=True)
class RunParameters:
    """What each run over the bundle asks for; the fields are those of ``dac.InferenceRun``."""

    chat: Chat | None = field(repr=False)
    max_tokens: Annotated[int, IntRange(1, 1024)]
    temperature: Temperature
    seed: U64 | None
    policy: Policy
    evidence: Annotated[tuple[EvidencePart, ...], MaxLength(3)]
    disclosure: Disclosure
    sandbox_profile: ProfileName
    enforcement: Enforcement


@dataclass(frozen=True, slots=True)
class DatasetManifest:
    """The declaration of a dataset bundle: every file but this one, the model, the task, the runs.

    ``files`` holds what is not under ``task/``, the model reference included.
    """

    schema: Annotated[str, OneOf((MANIFEST_SCHEMA,))]
    producer: Producer
    name: DatasetName
    imagery: Imagery | None
    splits: Annotated[tuple[Split, ...], KeyedBy("name", MAX_SPLITS)]
    files: Files
    task: Task
    model: DeclaredModel
    run: RunParameters

    def all_files(self) -> tuple[DeclaredFile, ...]:
        """Return every declared file, sorted by path as the digests take them."""
        return tuple(sorted((*self.files, *self.task.files), key=lambda file: file.path))


def read_manifest(data: bytes) -> DatasetManifest:
    """Return the manifest whose canonical bytes are ``data``, its rules checked.

    Raises EvidenceError that names the field.
    """
    manifest = decode_bytes(
        DatasetManifest, data, max_bytes=MAX_MANIFEST_BYTES, where="dataset manifest"
    )
    check_manifest(manifest)
    return manifest


def bundle_digest(manifest_digest: bytes, files: tuple[DeclaredFile, ...]) -> str:
    """Return the digest that names a bundle.

    ``manifest_digest`` is the raw sha256 of the bytes of manifest.json, ``files`` what
    :meth:`DatasetManifest.all_files` returns.
    """
    return domain_digest("tallystick.bundle", 1, [manifest_digest, *_file_parts(files)])


def task_digest(task: Task) -> str:
    """Return the digest that names a task: of its files alone, wherever it is used."""
    return domain_digest("tallystick.task", 1, list(_file_parts(task.files)))


def tile_set(manifest: DatasetManifest) -> tuple[DeclaredFile, ...]:
    """Return the files that a provider hands over: those under data/ but his attestation."""
    attested = None if manifest.imagery is None else manifest.imagery.source_attestation
    return tuple(
        sorted(
            (f for f in manifest.files if f.path.startswith(DATA) and f.path != attested),
            key=lambda file: file.path,
        )
    )


def tile_set_digest(files: Iterable[tuple[str, int, str]]) -> str:
    """Return the digest that a provider attests to: of path, size and sha256 (hex) of each file.

    Paths begin with data/, as in a bundle, and are in ascending order.
    """
    parts = [
        part
        for path, size, digest in files
        for part in (path.encode("utf-8"), u64le(size), bytes.fromhex(digest))
    ]
    return domain_digest("tallystick.tile-set", 1, parts)


def manifest_digest(manifest: DatasetManifest) -> str:
    """Return the sha256 of manifest.json."""
    return format_digest(sha256(encode_bytes(manifest)))


def _file_parts(files: tuple[DeclaredFile, ...]) -> Iterator[bytes]:
    for file in files:
        yield file.path.encode("utf-8")
        yield u64le(file.size)
        yield bytes.fromhex(file.sha256)


def check_manifest(manifest: DatasetManifest) -> None:
    """Raise EvidenceError, naming the field, for parts that do not go together."""
    files = manifest.all_files()
    paths = frozenset(file.path for file in files)
    for file in files:
        check_path(file.path, where="dataset manifest: bad field files")
    check_together((MANIFEST_FILE, *(file.path for file in files)), where="dataset manifest")
    _check_places(manifest)
    _check_named(manifest, paths)
    for split in manifest.splits:
        _check_split(split)
    _check_tiles(manifest, paths)
    check_parameters(manifest.run, where="dataset manifest: bad field run")


def _check_places(manifest: DatasetManifest) -> None:
    """Hold each file to its place, and let there be data and a task."""
    if not any(file.path.startswith(DATA) for file in manifest.files):
        raise _refusal("files", "at least one file under data/", "none")
    if not manifest.task.files:
        raise _refusal("task.files", "at least one file under task/", "none")
    for file in manifest.files:
        if not file.path.startswith(DATA) and file.path != MODEL_REF_FILE:
            raise _refusal("files", f"paths under data/, and {MODEL_REF_FILE}", ascii(file.path))
    for file in manifest.task.files:
        if not file.path.startswith(TASK):
            raise _refusal("task.files", "paths under task/", ascii(file.path))


def _check_named(manifest: DatasetManifest, paths: frozenset[str]) -> None:
    """Hold every path that the manifest names to the files that it declares."""
    named: list[tuple[str, str | None]] = [
        ("model.ref", manifest.model.ref),
        ("task.prompt_template", manifest.task.prompt_template),
    ]
    if manifest.imagery is not None:
        named.append(("imagery.source_attestation", manifest.imagery.source_attestation))
    named += [(f"splits[{split.name!r}].origin", split.origin) for split in manifest.splits]
    for name, path in named:
        if path is not None and path not in paths:
            raise _refusal(name, "the path of a declared file", ascii(path))
    template = manifest.task.prompt_template
    if template is not None and not template.startswith(TASK):
        raise _refusal("task.prompt_template", "a path under task/", ascii(template))


def _check_split(split: Split) -> None:
    name = f"splits[{split.name!r}].tiles"
    if not split.tiles:
        raise _refusal(name, "at least one tile", "none")
    numbers = [tile_numbers(tile) for tile in split.tiles]
    for tile, (zoom, column, row) in zip(split.tiles, numbers, strict=True):
        if zoom > MAX_ZOOM or max(column, row) >= 2**zoom:
            raise _refusal(name, f"z to {MAX_ZOOM}, x and y below 2^z", tile)
    if any(a >= b for a, b in itertools.pairwise(numbers)):
        raise _refusal(name, "ascending z, x, y, each tile once", "another order")


def _check_tiles(manifest: DatasetManifest, paths: frozenset[str]) -> None:
    """Let every tile of a split have its image and its description, where these are declared."""
    imagery = manifest.imagery
    if imagery is None:
        return
    for name, template in (("tiles", imagery.tiles), ("descriptions", imagery.descriptions)):
        if template is None:
            continue
        if sorted(_FIELD.findall(template)) != sorted(TILE_FIELDS):
            raise _refusal(f"imagery.{name}", "a path with {z}, {x} and {y}, each once", "another")
        for split in manifest.splits:
            for tile in split.tiles:
                if (path := tile_path(template, tile)) not in paths:
                    raise _refusal(f"imagery.{name}", f"a declared file for {tile}", ascii(path))


def check_parameters(run: RunParameters, *, where: str) -> None:
    """Raise EvidenceError that begins with ``where`` for parameters that do not go together."""
    if (run.seed is None) != (run.temperature == "0"):
        raise EvidenceError(f"{where}.seed", expected="null exactly when the temperature is 0")
    if run.policy == SEQUENTIAL and run.temperature != "0":
        raise EvidenceError(f"{where}.temperature", expected="0 under the policy sequential")
    ordered = tuple(part for part in ("states", "graph", "gemm") if part in run.evidence)
    if ordered != run.evidence:
        raise EvidenceError(f"{where}.evidence", expected="states, graph, gemm in this order")


def tile_numbers(tile: str) -> tuple[int, int, int]:
    """Return z, x, y of a tile id."""
    zoom, column, row = map(int, tile.split("/"))
    return zoom, column, row


def tile_path(template: str, tile: str) -> str:
    """Return the path that ``template`` gives for ``tile``."""
    numbers = dict(zip(TILE_FIELDS, tile.split("/"), strict=True))
    return _FIELD.sub(lambda found: numbers[found[1]], template)


def _refusal(name: str, expected: str, found: str) -> EvidenceError:
    return EvidenceError(f"dataset manifest: bad field {name}", expected=expected, found=found)
