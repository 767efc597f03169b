"""Paths of a bundle: what is accepted, what is refused and why, what cannot stand side by side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.contracts.paths import check_path, check_together, path_problem
from tallystick.errors import EvidenceError


@pytest.mark.parametrize(
    "path",
    [
        "data/a",
        ".git/config",
        "data/.gitattributes",
        "data/ä.png",
        "data/日本/\U0001f30a.txt",
        "data/a b,c;d'e\"f$(g)|h.txt",
        "data/" + "n" * 255,
        "/".join(["d"] * 16),
        "data/a:b",
        "data/-rf",
    ],
)
def test_ordinary_paths_are_accepted(path: str) -> None:
    assert path_problem(path) is None
    assert check_path(path, where="here") == path


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", "empty"),
        ("/etc/passwd", "empty"),
        ("data//a", "empty"),
        ("data/", "empty"),
        ("data/../a", "`..`"),
        ("./a", "`.`"),
        ("..", "`..`"),
        ("data\\a", "backslash"),
        ("C:/a", "drive"),
        ("c:a", "drive"),
        ("data/a\nb", "control"),
        ("data/a\x00", "control"),
        ("data/a\x7f", "control"),
        ("data/a\u0085", "control"),
        ("data/a\u202eb", "invisible"),
        ("data/a\u200bb", "invisible"),
        ("data/\ufeffa", "invisible"),
        ("data/a\u2028b", "separator"),
        ("data/a\u0308", "NFC"),
        ("data/\udcff", "UTF-8"),
        ("data/ a", "space"),
        ("data/a ", "space"),
        ("data/a.", "full stop"),
        ("data/" + "n" * 256, "255 bytes"),
        ("data/" + "ä" * 128, "255 bytes"),
        ("d" * 1025, "1024 bytes"),
        ("ä/" * 16 + "a", "nested deeper"),
        ("/".join(["d"] * 17), "nested deeper"),
    ],
)
def test_unusual_paths_are_refused_with_the_reason(path: str, why: str) -> None:
    problem = path_problem(path)
    assert problem is not None
    assert why in problem
    with pytest.raises(EvidenceError, match="here: an unusable path") as caught:
        check_path(path, where="here")
    assert caught.value.found is not None
    assert caught.value.found.isascii()
    assert caught.value.found.isprintable()


@given(st.text())
def test_any_text_has_a_verdict_and_accepted_ones_are_harmless(path: str) -> None:
    if path_problem(path) is None:
        assert path.encode("utf-8")
        assert not path.startswith("/")
        assert {"", ".", ".."}.isdisjoint(path.split("/"))
        assert path.isprintable() or not path.isascii()


@pytest.mark.parametrize(
    "paths",
    [
        ("data/a", "data/A"),
        ("data/a/b", "data/A/c"),
        ("data/straße", "data/STRASSE"),
        ("data/a", "data/a/b"),
        ("data/a", "data/A/b"),
        ("data/Ä", "data/ä"),
        ("data/a", "data/a"),
    ],
)
def test_paths_that_fold_together_are_refused(paths: tuple[str, str]) -> None:
    for pair in (paths, paths[::-1]):
        with pytest.raises(EvidenceError, match="two paths that some file systems take for one"):
            check_together(pair, where="here")


def test_different_paths_stand_side_by_side() -> None:
    check_together(("data/a", "data/b", "data/ab/c", "task/a", "data/ä"), where="here")
