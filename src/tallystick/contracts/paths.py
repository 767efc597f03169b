"""Paths of files in a bundle: which are accepted, and which cannot stand side by side.

Rules: docs/spec/bundles.md#paths. Pure: nothing here looks at a disk. Characters are refused by
fixed lists, so that no verdict depends on the Unicode tables of a Python version more than
normalisation and case folding themselves do.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final

from tallystick.errors import EvidenceError

MAX_PATH_BYTES: Final = 1024
MAX_NAME_BYTES: Final = 255
MAX_DEPTH: Final = 16
# Controls, line and paragraph separators, and what is invisible or turns the direction of a line.
_UNSEEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_DRIVE: Final = re.compile("[A-Za-z]:")
# Most paths are of this shape and need no other look: ASCII names, no full stop at an end of one.
_NAME_SHAPE: Final = "[A-Za-z0-9_-]++(?:[.][A-Za-z0-9_-]++)*+"
_ORDINARY: Final = re.compile(f"{_NAME_SHAPE}(?:/{_NAME_SHAPE}){{0,{MAX_DEPTH - 1}}}")


def path_problem(path: str) -> str | None:
    """Return why ``path`` is no path of a bundle, None when it is one."""
    if len(path) <= MAX_NAME_BYTES and _ORDINARY.fullmatch(path) is not None:
        return None
    if _SURROGATE.search(path) is not None:
        return "it is not UTF-8"
    if len(path.encode("utf-8")) > MAX_PATH_BYTES:
        return f"it has more than {MAX_PATH_BYTES} bytes"
    if _UNSEEN.search(path) is not None:
        return "it has a control, separator or invisible character"
    if unicodedata.normalize("NFC", path) != path:
        return "it is not in Unicode's normal form NFC"
    return _shape_problem(path)


def _shape_problem(path: str) -> str | None:
    if "\\" in path:
        return "it has a backslash"
    if _DRIVE.match(path) is not None:
        return "it begins with a drive"
    names = path.split("/")
    if "" in names or "." in names or ".." in names:
        return "a name in it is empty, `.` or `..`"
    if len(names) > MAX_DEPTH:
        return f"it is nested deeper than {MAX_DEPTH} levels"
    if len(path.encode()) > MAX_NAME_BYTES < max(len(name.encode()) for name in names):
        return f"a name in it has more than {MAX_NAME_BYTES} bytes"
    if any(name[0] == " " or name[-1] in " ." for name in names):
        return "a name in it begins with a space, or ends with a space or full stop"
    return None


def check_path(path: str, *, where: str) -> str:
    """Return ``path``. Raises EvidenceError, beginning with ``where``, for an unusable one."""
    problem = path_problem(path)
    if problem is not None:
        raise EvidenceError(
            f"{where}: an unusable path",
            expected="a relative path of plain UTF-8 names (docs/spec/bundles.md#paths)",
            found=f"{show_path(path)}: {problem}",
        )
    return path


def show_path(path: str) -> str:
    """Return ``path`` quoted, escaped, and cut off when it is long: fit for an error text."""
    return ascii(path if len(path) <= 120 else path[:120] + "...")


def check_together(paths: Iterable[str], *, where: str) -> None:
    """Raise EvidenceError when two of ``paths`` cannot be told apart somewhere.

    That is: they or directories on their way are equal after case folding, or one is a directory
    on the way to the other. Each path has passed :func:`check_path`.
    """
    files: dict[str, str] = {}
    directories: dict[str, str] = {}
    seen: set[str] = set()
    for path in paths:
        key = _folded(path)
        if key in files:
            raise _collision(path, files[key], where)
        files[key] = path
        for parent in _parents(path):
            if parent in seen:
                break  # and so are those above it
            seen.add(parent)
            folded = _folded(parent)
            if directories.setdefault(folded, parent) != parent:
                raise _collision(parent, directories[folded], where)
    for key in files.keys() & directories.keys():
        raise _collision(files[key], directories[key], where)


def _parents(path: str) -> Iterator[str]:
    end = path.rfind("/")
    while end > 0:
        yield path[:end]
        end = path.rfind("/", 0, end)


def _folded(path: str) -> str:
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())


def _collision(path: str, other: str, where: str) -> EvidenceError:
    return EvidenceError(
        f"{where}: two paths that some file systems take for one",
        expected="paths that differ beyond upper and lower case",
        found=f"{show_path(other)} and {show_path(path)}",
        hint="rename one of them",
    )
