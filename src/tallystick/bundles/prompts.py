"""The prompt that a bundle gives for a run, read through sealed copies (docs/spec/bundles.md)."""

from __future__ import annotations

from tallystick.bundles.check import CheckedBundle
from tallystick.bundles.snapshot import snapshot
from tallystick.bundles.template import (
    MAX_DESCRIPTION_BYTES,
    MAX_TEMPLATE_BYTES,
    decode_text,
    render,
    template_fields,
)
from tallystick.contracts.dataset import TASK, TILE_FIELDS, Split, tile_path
from tallystick.errors import InputError


class Prompts:
    """Renders the template at ``path`` of a bundle, which is read once; None: the manifest's own.

    Raises InputError for a bundle without it and for what is no template, EvidenceError when a file
    is not any more what was checked.
    """

    def __init__(self, bundle: CheckedBundle, path: str | None = None) -> None:
        self._bundle = bundle
        self._tiles: dict[str, frozenset[str]] = {}
        self.path = _template_path(bundle, path)
        with snapshot(bundle, [self.path]) as files:
            data = files.read(self.path)
        self._template = decode_text(data, what="the prompt template", max_bytes=MAX_TEMPLATE_BYTES)
        self._wants_description = "description" in template_fields(self._template)

    def render(self, split: str | None, tile: str | None) -> str:
        """Return the prompt for a tile of a split; None for both: for the bundle as a whole.

        Raises InputError for a tile that is not in the split, or when it cannot be rendered.
        """
        values = {"dataset": self._bundle.manifest.name}
        if split is not None and tile is not None:
            self._require_tile(split, tile)
            values |= {"split": split, "tile": tile}
            values |= dict(zip(TILE_FIELDS, tile.split("/"), strict=True))
            if self._wants_description:
                values |= _description(self._bundle, tile)
        return render(self._template, values)

    def _require_tile(self, split: str, tile: str) -> None:
        # Looked up in a set: a split may have as many tiles as there are runs to render.
        if split not in self._tiles:
            self._tiles[split] = frozenset(named_split(self._bundle, split).tiles)
        if tile not in self._tiles[split]:
            raise _no_such_tile(split, tile)


def named_split(bundle: CheckedBundle, name: str) -> Split:
    """Return the split of that name. Raises InputError."""
    for split in bundle.manifest.splits:
        if split.name == name:
            return split
    known = ", ".join(split.name for split in bundle.manifest.splits) or "none"
    raise InputError("the bundle has no such split", expected=known, found=ascii(name[:64]))


def split_of(bundle: CheckedBundle, tile: str) -> str:
    """Return the name of the one split that has ``tile``. Raises InputError for none or several."""
    names = [split.name for split in bundle.manifest.splits if tile in split.tiles]
    if len(names) != 1:
        raise InputError(
            f"the tile is in {len(names)} splits of the bundle",
            expected="a tile of one split, or the split's name",
            found=ascii(", ".join(names) or tile[:40]),
        )
    return names[0]


def require_tile(split: Split, tile: str) -> None:
    """Raise InputError unless ``tile`` is in the split."""
    if tile not in split.tiles:
        raise _no_such_tile(split.name, tile)


def _no_such_tile(split: str, tile: str) -> InputError:
    return InputError(f"the split {split} has no such tile", found=ascii(tile[:40]))


def _template_path(bundle: CheckedBundle, path: str | None) -> str:
    task = bundle.manifest.task
    wanted = task.prompt_template if path is None else path
    if wanted is None:
        raise InputError(
            "the bundle has no prompt template",
            hint="put one into task/prompt.txt, and create the bundle again",
        )
    if not wanted.startswith(TASK) or all(file.path != wanted for file in task.files):
        raise InputError("the bundle's task has no such template", found=ascii(wanted[:200]))
    return wanted


def _description(bundle: CheckedBundle, tile: str) -> dict[str, str]:
    imagery = bundle.manifest.imagery
    if imagery is None or imagery.descriptions is None:
        return {}
    path = tile_path(imagery.descriptions, tile)
    with snapshot(bundle, [path]) as files:
        data = files.read(path)
    what = f"the description of {tile}"
    return {"description": decode_text(data, what=what, max_bytes=MAX_DESCRIPTION_BYTES)}
