"""The first page of an SQLite file, read without SQLite. Pure.

SQLite reads the whole schema of a file before its first answer, in one call that no signal ends,
and some schemas keep it at that for hours. So the schema of a file from elsewhere is read here:
one page, whatever the size of the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tallystick.errors import EvidenceError

PAGE_BYTES: Final = 4096
HEADER_BYTES: Final = 100
HEADER_MAGIC: Final = b"SQLite format 3\0"
# Where the file header says how the file is written and read: 1 rollback journal, 2 WAL.
JOURNAL_BYTES: Final = slice(18, 20)
WAL_MARK: Final = b"\x02\x02"
ROLLBACK_MARK: Final = b"\x01\x01"
_LEAF: Final = 0x0D  # of a table: what sqlite_master is as long as it has one page
_CELLS_BEGIN: Final = HEADER_BYTES + 8
_COLUMNS: Final = 5  # type, name, tbl_name, rootpage, sql
_ROOT_PAGE: Final = 3
# The header of every file that SQLite writes with our settings, but for what it counts.
_FIXED: Final = (
    (16, PAGE_BYTES.to_bytes(2, "big"), "pages of 4096 bytes"),
    (20, bytes((0, 64, 32, 32)), "whole pages, and the payload fractions 64, 32 and 32"),
    (44, (4).to_bytes(4, "big"), "schema format 4"),
    (48, bytes(8), "no suggested cache size and no vacuuming"),
    (56, (1).to_bytes(4, "big"), "encoding 1 (UTF-8)"),
    (64, bytes(4), "no incremental vacuuming"),
    (72, bytes(20), "zeros in the reserved bytes"),
)
_WIDTHS: Final = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 7: 8, 8: 0, 9: 0}  # of serial types


@dataclass(frozen=True, slots=True)
class FirstPage:
    """What the first page says: the marks, and type, name, table and SQL of each object.

    ``objects`` is in the order of type and name; no bytes stand for a null.
    """

    application_id: int
    user_version: int
    objects: tuple[bytes, ...]


def read_first_page(data: bytes, *, kind: str, max_objects: int) -> FirstPage:
    """Return what the first page of the database file ``data`` says; ``kind`` names it in errors.

    Raises EvidenceError for a file that is no SQLite database in WAL mode, of other pages or
    another encoding, of another length than it announces, or whose schema is no single page of at
    most ``max_objects`` objects.
    """
    _require_header(data, kind)
    return FirstPage(
        application_id=int.from_bytes(data[68:72], "big"),
        user_version=int.from_bytes(data[60:64], "big"),
        objects=_objects(data[:PAGE_BYTES], kind, max_objects),
    )


def _require_header(data: bytes, kind: str) -> None:
    if len(data) < HEADER_BYTES or not data.startswith(HEADER_MAGIC):
        raise EvidenceError(
            f"the {kind} is no SQLite database",
            expected=f"at least {HEADER_BYTES} bytes that begin with an SQLite header",
            found=f"{len(data)} bytes",
        )
    if data[JOURNAL_BYTES] != WAL_MARK:
        raise EvidenceError(
            f"the {kind} has no WAL",
            expected=f"marks {WAL_MARK.hex()} at bytes 18 and 19",
            found=data[JOURNAL_BYTES].hex(),
        )
    for offset, value, words in _FIXED:
        found = data[offset : offset + len(value)]
        if found != value:
            raise EvidenceError(
                f"the {kind} has another SQLite header",
                expected=f"{words}: {value.hex()} at byte {offset}",
                found=found.hex(),
            )
    announced = int.from_bytes(data[28:32], "big") * PAGE_BYTES
    if announced != len(data):
        raise damaged(kind, f"{len(data)} bytes where the header says {announced}")


def _objects(page: bytes, kind: str, max_objects: int) -> tuple[bytes, ...]:
    count = int.from_bytes(page[103:105], "big")
    if page[HEADER_BYTES] != _LEAF or count > max_objects:
        raise EvidenceError(
            f"the {kind}'s tables, indexes or triggers are not those of its version",
            expected=f"at most {max_objects}, on the first page",
            found=f"{count}, or more pages of them",
            hint="somebody changed the schema: its rows prove nothing",
        )
    try:
        starts = range(_CELLS_BEGIN, _CELLS_BEGIN + 2 * count, 2)
        rows = [_row(page, int.from_bytes(page[at : at + 2], "big")) for at in starts]
    except (IndexError, KeyError):
        raise damaged(kind, "a schema that contradicts itself") from None
    return tuple(value for row in sorted(rows) for value in row)


def _row(page: bytes, at: int) -> tuple[bytes, ...]:
    """Return type, name, table and SQL of the cell at ``at``. Raises IndexError, KeyError."""
    size, at = _varint(page, at)
    _, at = _varint(page, at)  # the row's number says nothing
    record = page[at : at + size]
    if len(record) != size:
        raise IndexError
    header_size, at = _varint(record, 0)
    offset, values = header_size, []
    for column in range(_COLUMNS):
        kind, at = _varint(record, at)
        width = _WIDTHS[kind] if kind < 12 else (kind - 12) // 2
        value = record[offset : offset + width]
        if len(value) != width:
            raise IndexError
        offset += width
        if column != _ROOT_PAGE:
            values.append(value if kind >= 12 else b"")
    if at != header_size or offset != size:
        raise IndexError
    return tuple(values)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at ``at`` and where it ends. Raises IndexError."""
    value = 0
    for _ in range(8):
        byte = data[at]
        at += 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at
    return value << 8 | data[at], at + 1


def damaged(kind: str, found: str) -> EvidenceError:
    """Return the error for a file whose parts do not fit together."""
    return EvidenceError(
        f"the {kind} is damaged",
        expected="a whole SQLite database",
        found=found,
        hint="get the file again from whoever made it",
    )
