"""The files that a provider hands over, as they are on disk (docs/spec/attestations.md)."""

from __future__ import annotations

import os
from pathlib import Path

from tallystick.bundles.hashing import HashedTree
from tallystick.bundles.tree import TreeProblemError, list_tree, opened_root
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
            if tree[0].files:
                raise TreeProblemError(
                    tree[0].files[0], "it is a file, and a directory is expected"
                )
            with HashedTree(root, tree) as hashed:
                read = [
                    SourceFile(path, content.sha256, content.size)
                    for path, (content, _) in hashed.files()
                ]
    except TreeProblemError as problem:
        raise InputError(f"{source} is no tile set: {problem.message}", hint=problem.hint) from None
    except OSError as error:
        raise InputError(f"cannot read {source}", found=error.strerror) from error
    files = sorted(read, key=lambda file: file.path)
    if not files:
        raise InputError(f"{source} is no tile set", expected=f"files under {DATA}", found="none")
    try:
        check_together((file.path for file in files), where="tile set")
    except EvidenceError as error:
        raise InputError.of(error) from None
    return tuple(files)
