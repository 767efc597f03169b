"""Every vectors file of the specification is listed there, read by a test, and small."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.vectors import spec_vectors

HERE = Path(__file__).parent
TABLE = spec_vectors().parent / "README.md"
FILES = sorted(path for path in spec_vectors().iterdir() if path.is_file())
NAMES = [path.name for path in FILES]
MAX_BYTES = 64 * 1024


def listed() -> list[str]:
    """Return the files that the specification's page lists."""
    return re.findall(
        r"^\| \[([a-z_-]+\.jsonl?)\]\(vectors/\1\) \|", TABLE.read_text(), re.MULTILINE
    )


def test_the_page_lists_every_file() -> None:
    assert listed() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_test_reads_the_file(name: str) -> None:
    readers = [
        path.name
        for path in HERE.rglob("test_*.py")
        if f'"{name}"' in path.read_text(encoding="utf-8") and path != Path(__file__)
    ]
    assert readers


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_files_are_small(path: Path) -> None:
    assert path.stat().st_size <= MAX_BYTES
