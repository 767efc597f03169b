"""``bundle create``: from data and a task to a bundle (docs/spec/bundles.md#create)."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tallystick.bundles.check import CheckedBundle, check_bundle
from tallystick.bundles.hashing import BUFFER_BYTES, Content, read_content, usable_threads
from tallystick.bundles.settings import (
    SETTINGS_FILE,
    BundleSettings,
    SplitSettings,
    dataset_name,
    read_settings,
)
from tallystick.bundles.splits import geometry_tiles, tile_list, tiles_on_disk
from tallystick.bundles.tree import (
    Listing,
    TreeProblemError,
    list_tree,
    opened_below,
    opened_file,
    opened_root,
    require_unchanged,
)
from tallystick.canonical.hashing import sha256
from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.dataset import (
    DATA,
    MANIFEST_FILE,
    MANIFEST_SCHEMA,
    MODEL_REF_FILE,
    TASK,
    DatasetManifest,
    DeclaredFile,
    DeclaredModel,
    RunParameters,
    Split,
    Task,
    check_manifest,
)
from tallystick.contracts.model_ref import MODEL_REF_SCHEMA, ModelRef, check_model_ref
from tallystick.contracts.request import PRODUCER
from tallystick.errors import EvidenceError, InputError, UnavailableError
from tallystick.models.files import Progress, silent
from tallystick.models.registry import ModelFile, resolve

FILE_MODE: Final = 0o644
FOLDER_MODE: Final = 0o755
_PARTS: Final = (DATA.rstrip("/"), TASK.rstrip("/"))
_OCTETS: Final = "application/octet-stream"
_MEDIA_TYPES: Final = {
    ".csv": "text/csv",
    ".geojson": "application/geo+json",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".md": "text/markdown",
    ".png": "image/png",
    ".tif": "image/tiff",
    ".tiff": "image/tiff",
    ".txt": "text/plain",
    ".webp": "image/webp",
    ".yaml": "application/yaml",
}


@dataclass(frozen=True, slots=True)
class CreatedBundle:
    """A new bundle, and the names beside data/ and task/ in its source that were left out."""

    bundle: CheckedBundle
    left_out: tuple[str, ...]


def create_bundle(
    source: Path,
    output: Path,
    model: str,
    home: Path,
    *,
    progress: Progress = silent,
    clock: Callable[[], float] = time.time,
    accept: Callable[[CheckedBundle], object] = lambda _bundle: None,
) -> CreatedBundle:
    """Make a bundle of ``source`` (data/, task/, perhaps bundle.yaml) for ``model`` at ``output``.

    ``model`` is a name or a path as everywhere, resolved in ``home``. ``output`` is new or an empty
    directory, and appears with the whole bundle in it, which was checked first; else nothing is
    left. ``accept`` may raise EvidenceError for a bundle that shall not be. Raises InputError for a
    source that makes no bundle or a bad model, UnavailableError for a place that cannot be written.
    """
    _require_free(output)
    found = resolve(model, home, progress)
    with _new_directory(output) as place:
        try:
            with opened_root(source) as root:
                tree, left_out = _source_tree(root)
                contents = _copy_all(root, tree, place)
        except TreeProblemError as problem:
            raise InputError(
                f"{source} makes no bundle: {problem.message}", hint=problem.hint
            ) from None
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(
                f"no directory {source}", expected="a directory with data/ and task/"
            ) from None
        settings = read_settings(source, paths=frozenset(contents))
        settings = replace(settings, run=_with_clock(settings.run, found, clock))
        _write_documents(place, settings, found, contents)
        bundle = check_bundle(place)
        try:
            accept(bundle)
        except EvidenceError as error:  # whoever wrote the source can mend it
            raise InputError.of(error) from None
    return CreatedBundle(replace(bundle, directory=output), left_out)


def _require_free(output: Path) -> None:
    try:
        if any(output.iterdir()):
            raise UnavailableError(
                f"{output} is not empty",
                expected="a new or empty directory",
                hint="choose another place: nothing is ever overwritten",
            )
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UnavailableError(f"cannot write to {output}", found=error.strerror) from error


@contextlib.contextmanager
def _new_directory(output: Path) -> Iterator[Path]:
    """Yield a directory that gets the name ``output`` at the end, or is removed after an error."""
    output = output.absolute()
    place = output.with_name(f".{output.name[:100]}.{secrets.token_hex(8)}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir(mode=FOLDER_MODE)
        yield place
        os.replace(place, output)  # an empty directory of that name gives way, another does not
    except OSError as error:
        raise UnavailableError(f"cannot write to {output}", found=error.strerror) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _source_tree(root: int) -> tuple[tuple[Listing, ...], tuple[str, ...]]:
    """Return the listings of data/ and task/, and the other names beside them."""
    names = {os.fsencode(name).decode("utf-8", "surrogateescape") for name in os.listdir(root)}
    for part in _PARTS:
        if part not in names:
            raise TreeProblemError("", f"there is no {part}/ in it")
    tree = list_tree(root, skip=frozenset(names - set(_PARTS)))
    inside = [listing for listing in tree if listing.path]
    parents = {listing.path.rpartition("/")[0] for listing in inside}
    for listing in inside:
        if not listing.files and listing.path not in parents:
            raise TreeProblemError(listing.path, "it is an empty directory", hint="remove it")
    if tree[0].files:
        raise TreeProblemError(tree[0].files[0], "it is a file, and a directory is expected")
    return tuple(inside), tuple(sorted(names - {*_PARTS, SETTINGS_FILE}))


def _copy_all(root: int, tree: Sequence[Listing], place: Path) -> dict[str, Content]:
    """Copy every listed file below ``place`` while it is hashed; return what each holds."""
    for listing in tree:
        (place / listing.path).mkdir(mode=FOLDER_MODE)
    contents: dict[str, Content] = {}
    with ThreadPoolExecutor(usable_threads()) as pool:
        try:
            for part in pool.map(lambda listing: _copy(root, listing, place), tree):
                contents |= part
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return contents


def _copy(root: int, listing: Listing, place: Path) -> dict[str, Content]:
    buffer = bytearray(BUFFER_BYTES)
    done: dict[str, Content] = {}
    with opened_below(root, listing.path) as directory:
        for name, path in zip(listing.files, listing.paths(), strict=True):
            with opened_file(directory, name, path) as descriptor:
                done[path] = _copy_file(descriptor, path, place / path, buffer)
        require_unchanged(directory, listing)
    return done


def _copy_file(descriptor: int, path: str, target: Path, buffer: bytearray) -> Content:
    try:
        with open(target, "xb", buffering=0) as file:

            def write(piece: memoryview) -> None:
                while piece:
                    piece = piece[file.write(piece) or 0 :]

            content = read_content(descriptor, path, buffer, write).content
            os.fchmod(file.fileno(), FILE_MODE)
    except OSError as error:
        raise UnavailableError(
            f"cannot write {target.name}", found=error.strerror or errno.errorcode[errno.EIO]
        ) from error
    return content


def _write_documents(
    place: Path, settings: BundleSettings, model: ModelFile, contents: dict[str, Content]
) -> None:
    ref = model_ref(model, settings.model_sources)
    data = encode_bytes(ref)
    contents[MODEL_REF_FILE] = Content(len(data), sha256(data).hex())
    manifest = _manifest(place, settings, contents, ref)
    try:
        check_model_ref(ref)
        check_manifest(manifest)
    except EvidenceError as error:  # whoever wrote the source can mend it
        raise InputError(
            error.message.replace("dataset manifest", SETTINGS_FILE),
            expected=error.expected,
            found=error.found,
            hint=error.hint,
        ) from None
    for name, document in ((MODEL_REF_FILE, data), (MANIFEST_FILE, encode_bytes(manifest))):
        path = place / name
        path.write_bytes(document)
        path.chmod(FILE_MODE)


def model_ref(model: ModelFile, sources: Sequence[str]) -> ModelRef:
    """Return the reference to ``model``: by the name of its pin, else one made from its file's."""
    name = dataset_name(model.path.stem) if model.pin is None else model.pin.name
    known = () if model.pin is None else (model.pin.source,)
    places = tuple(dict.fromkeys((*sources, *(s for s in known if not s.startswith("file:")))))
    return ModelRef(MODEL_REF_SCHEMA, PRODUCER, name, model.digest, model.size, places)


def _manifest(
    place: Path, settings: BundleSettings, contents: dict[str, Content], ref: ModelRef
) -> DatasetManifest:
    files = tuple(
        DeclaredFile(path, content.sha256, content.size, media_type(path))
        for path, content in sorted(contents.items())
    )
    return DatasetManifest(
        schema=MANIFEST_SCHEMA,
        producer=PRODUCER,
        name=settings.name,
        imagery=settings.imagery,
        splits=tuple(_split(place, split, settings, contents) for split in settings.splits),
        files=tuple(file for file in files if not file.path.startswith(TASK)),
        task=Task(
            settings.prompt_template, tuple(file for file in files if file.path.startswith(TASK))
        ),
        model=DeclaredModel(MODEL_REF_FILE, ref.digest),
        run=settings.run,
    )


def _split(
    place: Path, split: SplitSettings, settings: BundleSettings, contents: dict[str, Content]
) -> Split:
    origin = split.tiles or split.geometry or ""
    if origin not in contents:
        raise InputError(
            f"{SETTINGS_FILE}: bad field splits[{split.name!r}]",
            expected="the path of a file under data/ or task/",
            found=ascii(origin[:200]),
        )
    data = (place / origin).read_bytes()
    if split.tiles is not None:
        return Split(split.name, origin, tile_list(data, where=origin))
    template = None if settings.imagery is None else settings.imagery.tiles
    candidates = None if template is None else tiles_on_disk(template, contents)
    tiles = geometry_tiles(data, zoom=split.zoom, candidates=candidates, where=origin)
    return Split(split.name, origin, tiles)


def _with_clock(run: RunParameters, model: ModelFile, clock: Callable[[], float]) -> RunParameters:
    """Set the clock of a chat exactly if the model's template asks for one, as a plain run does."""
    if run.chat is None:
        return run
    wanted = int(clock()) if run.chat.clock is None else run.chat.clock
    shown = wanted if model.facts.template_uses_clock else None
    return replace(run, chat=replace(run.chat, clock=shown))


def media_type(path: str) -> str:
    """Return the media type that a file's suffix stands for, from a list of our own."""
    name = path.rpartition("/")[2].lower()
    return _MEDIA_TYPES.get(os.path.splitext(name)[1], _OCTETS)
