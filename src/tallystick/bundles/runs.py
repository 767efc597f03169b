"""From a bundle to declared runs, one for each tile of a split (docs/spec/bundles.md#runs)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tallystick.bundles.check import CheckedBundle
from tallystick.bundles.prompts import Prompts, named_split, require_tile
from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.digests import derive_blind, request_body
from tallystick.contracts.layout import PRIVATE_MODE
from tallystick.contracts.request import PRODUCER, RUN_SCHEMA, ExpectedDigest, InferenceRun
from tallystick.contracts.runtime import SEQUENTIAL
from tallystick.errors import UnavailableError
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
    prompts = Prompts(bundle)
    runs = []
    for tile in chosen:
        run = _declare(bundle, model_path, new_id())
        run = replace(
            run,
            prompt=prompts.render(split, tile),
            prompt_path=prompts.path,
            split=split,
            tile=tile,
        )
        runs.append(TileRun(split, tile, _blinded(run, commit_key)))
    return tuple(runs)


def declare_whole(
    bundle: CheckedBundle,
    *,
    commit_key: bytes,
    model_path: str | None = None,
    new_id: Callable[[], str] = uuid7,
) -> InferenceRun:
    """Return the declared run of a bundle whose prompt is about no single tile.

    The rest is as for :func:`declare_runs`.
    """
    prompts = Prompts(bundle)
    run = _declare(bundle, model_path, new_id())
    run = replace(run, prompt=prompts.render(None, None), prompt_path=prompts.path)
    return _blinded(run, commit_key)


def _blinded(run: InferenceRun, commit_key: bytes) -> InferenceRun:
    return replace(run, blind=derive_blind(commit_key, request_body(run)).hex())


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
    split = named_split(bundle, name)
    if tiles is None:
        return split.tiles
    for tile in tiles:
        require_tile(split, tile)
    return tuple(tile for tile in split.tiles if tile in set(tiles))


def _declare(bundle: CheckedBundle, model_path: str | None, run_id: str) -> InferenceRun:
    """Return the run but for its prompt and its blind."""
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
        prompt="",
        prompt_path=None,
        split=None,
        tile=None,
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
