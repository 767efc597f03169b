"""From a bundle to declared runs, one for each tile of a split (docs/spec/bundles.md#runs)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tallystick.bundles.check import CheckedBundle
from tallystick.bundles.snapshot import snapshot
from tallystick.bundles.template import (
    MAX_DESCRIPTION_BYTES,
    MAX_TEMPLATE_BYTES,
    decode_text,
    render,
    template_fields,
)
from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.dataset import Split, tile_path
from tallystick.contracts.digests import derive_blind, request_body
from tallystick.contracts.layout import PRIVATE_MODE
from tallystick.contracts.request import PRODUCER, RUN_SCHEMA, ExpectedDigest, InferenceRun
from tallystick.contracts.runtime import SEQUENTIAL
from tallystick.errors import InputError, UnavailableError
from tallystick.store.files import opened_directory, remove, write_new
from tallystick.store.home import make_private_dirs, remove_empty, require_private
from tallystick.store.ids import uuid7


@dataclass(frozen=True, slots=True)
class TileRun:
    """The run that answers for one tile. Private: it holds the prompt and the blind."""

    split: str
    tile: str
    run: InferenceRun = field(repr=False)

    @property
    def file_name(self) -> str:
        """The name under which it is written: ``<split>-<z>-<x>-<y>.json``."""
        return f"{self.split}-{self.tile.replace('/', '-')}.json"


def declare_runs(
    bundle: CheckedBundle,
    split: str,
    *,
    commit_key: bytes,
    model_path: str | None = None,
    tiles: Sequence[str] | None = None,
    new_id: Callable[[], str] = uuid7,
) -> tuple[TileRun, ...]:
    """Return a declared run for each tile of a split, or for those of them in ``tiles``.

    ``commit_key`` is the local commit key (32 bytes) from which each blind is derived, as for a
    plain run; ``model_path`` says where the model is (None: the name in model.ref.json).
    Raises InputError for an unknown split or tile and for a template that cannot be rendered,
    EvidenceError when a file is not any more what was checked.
    """
    chosen = _chosen(bundle, split, tiles)
    template = _template(bundle)
    wants_description = "description" in template_fields(template)
    runs = []
    for tile in chosen:
        zoom, column, row = tile.split("/")
        values = {"dataset": bundle.manifest.name, "split": split, "tile": tile}
        values |= {"z": zoom, "x": column, "y": row}
        if wants_description:
            values |= _description(bundle, tile)
        run = _declare(bundle, render(template, values), model_path, new_id())
        blind = derive_blind(commit_key, request_body(run)).hex()
        runs.append(TileRun(split, tile, replace(run, blind=blind)))
    return tuple(runs)


def write_runs(runs: Sequence[TileRun], directory: Path) -> tuple[Path, ...]:
    """Write each run into ``directory``, which is new or empty, and ours alone; return the paths.

    All are written, or nothing is left. Raises UnavailableError.
    """
    created: tuple[Path, ...] = ()
    try:
        created = make_private_dirs(directory)
        require_private(directory, directory.lstat())
        with opened_directory(directory) as descriptor:
            _write_all(runs, directory, descriptor)
    except OSError as error:
        remove_empty(created)
        raise UnavailableError(f"cannot write to {directory}", found=error.strerror) from error
    except BaseException:
        remove_empty(created)
        raise
    return tuple(directory / run.file_name for run in runs)


def _write_all(runs: Sequence[TileRun], directory: Path, descriptor: int) -> None:
    if any(directory.iterdir()):
        raise UnavailableError(
            f"{directory} is not empty",
            expected="a new or empty directory",
            hint="choose another place: nothing is ever overwritten",
        )
    done: list[str] = []
    try:
        for run in runs:
            done.append(run.file_name)
            write_new(descriptor, run.file_name, encode_bytes(run.run), PRIVATE_MODE)
    except BaseException:
        for name in done:
            remove(descriptor, name)
        raise


def _chosen(bundle: CheckedBundle, name: str, tiles: Sequence[str] | None) -> tuple[str, ...]:
    split = next((split for split in bundle.manifest.splits if split.name == name), None)
    if split is None:
        known = ", ".join(split.name for split in bundle.manifest.splits) or "none"
        raise InputError("the bundle has no such split", expected=known, found=ascii(name[:64]))
    return split.tiles if tiles is None else _subset(split, tiles)


def _subset(split: Split, tiles: Sequence[str]) -> tuple[str, ...]:
    strangers = [tile for tile in tiles if tile not in set(split.tiles)]
    if strangers:
        raise InputError(f"the split {split.name} has no such tile", found=ascii(strangers[0][:40]))
    return tuple(tile for tile in split.tiles if tile in set(tiles))


def _template(bundle: CheckedBundle) -> str:
    path = bundle.manifest.task.prompt_template
    if path is None:
        raise InputError(
            "the bundle has no prompt template",
            hint="put one into task/prompt.txt, and create the bundle again",
        )
    with snapshot(bundle, [path]) as files:
        data = files.read(path)
    return decode_text(data, what="the prompt template", max_bytes=MAX_TEMPLATE_BYTES)


def _description(bundle: CheckedBundle, tile: str) -> dict[str, str]:
    imagery = bundle.manifest.imagery
    if imagery is None or imagery.descriptions is None:
        return {}
    path = tile_path(imagery.descriptions, tile)
    with snapshot(bundle, [path]) as files:
        data = files.read(path)
    what = f"the description of {tile}"
    return {"description": decode_text(data, what=what, max_bytes=MAX_DESCRIPTION_BYTES)}


def _declare(
    bundle: CheckedBundle, prompt: str, model_path: str | None, run_id: str
) -> InferenceRun:
    wanted, model = bundle.manifest.run, bundle.model_ref
    return InferenceRun(
        schema=RUN_SCHEMA,
        producer=PRODUCER,
        run_id=run_id,
        model_path=model.name if model_path is None else model_path,
        model_digest=model.digest,
        dataset=ExpectedDigest(bundle.bundle_digest),
        task=ExpectedDigest(bundle.task_digest),
        model=ExpectedDigest(model.digest),
        prompt=prompt,
        chat=wanted.chat,
        add_special=True,
        parse_special=wanted.chat is not None or wanted.policy == SEQUENTIAL,
        max_tokens=wanted.max_tokens,
        temperature=wanted.temperature,
        seed=wanted.seed,
        policy=wanted.policy,
        evidence=wanted.evidence,
        disclosure=wanted.disclosure,
        sandbox_profile=wanted.sandbox_profile,
        enforcement=wanted.enforcement,
        network_id=None,
        replica_slot=None,
        expires_at=None,
        blind="00" * 32,
    )
