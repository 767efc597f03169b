"""The files that a provider hands over, as they are on disk (docs/spec/attestations.md)."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tallystick.bundles.hashing import BUFFER_BYTES, read_content, usable_threads
from tallystick.bundles.tree import (
    Listing,
    TreeProblemError,
    list_tree,
    opened_below,
    opened_file,
    opened_root,
    require_unchanged,
)
from tallystick.contracts.dataset import DATA
from tallystick.contracts.paths import check_together
from tallystick.contracts.source import SourceFile
from tallystick.errors import EvidenceError, InputError


def read_tile_set(source: Path) -> tuple[SourceFile, ...]:
    """Return every file under ``source``/data with its sha256, in the order that a digest takes.

    ``source`` is what `bundle create` takes, or a bundle; nothing beside data/ is looked at. Raises
    InputError when there is no file, or something that no bundle may hold.
    """
    try:
        with opened_root(source) as root:
            names = {
                os.fsencode(name).decode("utf-8", "surrogateescape") for name in os.listdir(root)
            }
            tree = list_tree(root, skip=frozenset(names - {DATA.rstrip("/")}))
            with ThreadPoolExecutor(usable_threads()) as pool:
                parts = list(pool.map(lambda listing: _read(root, listing), tree))
    except TreeProblemError as problem:
        raise InputError(f"{source} is no tile set: {problem.message}", hint=problem.hint) from None
    except OSError as error:
        raise InputError(f"cannot read {source}", found=error.strerror) from error
    files = sorted((file for part in parts for file in part), key=lambda file: file.path)
    if not files:
        raise InputError(f"{source} is no tile set", expected=f"files under {DATA}", found="none")
    try:
        check_together((file.path for file in files), where="tile set")
    except EvidenceError as error:
        raise InputError.of(error) from None
    return tuple(files)


def _read(root: int, listing: Listing) -> list[SourceFile]:
    buffer = bytearray(BUFFER_BYTES)
    found: list[SourceFile] = []
    with opened_below(root, listing.path) as directory:
        for name, path in zip(listing.files, listing.paths(), strict=True):
            if not path.startswith(DATA):
                raise TreeProblemError(path, "it is a file, and a directory is expected")
            with opened_file(directory, name, path) as descriptor:
                content = read_content(descriptor, path, buffer).content
            found.append(SourceFile(path, content.sha256, content.size))
        require_unchanged(directory, listing)
    return found
