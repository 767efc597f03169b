"""The binary codec: what is written comes back, and nothing else is taken."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.canonical.codec import BinaryReader, BinaryWriter, decode_strict
from tallystick.errors import EvidenceError, InputError

Row = tuple[int, int, int, int, bytes, bytes, tuple[int, ...]]

rows = st.tuples(
    st.integers(0, 2**8 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(min_size=32, max_size=32),
    st.binary(max_size=40),
    st.lists(st.integers(0, 2**16 - 1), max_size=5).map(tuple),
)


def written(row: Row) -> bytes:
    writer = BinaryWriter()
    writer.u8(row[0])
    writer.u16(row[1])
    writer.u32(row[2])
    writer.u64(row[3])
    writer.digest(row[4])
    writer.sized(row[5], limit=40)
    writer.count(len(row[6]), limit=5)
    for item in row[6]:
        writer.u16(item)
    return writer.finish()


def read_row(reader: BinaryReader) -> Row:
    head = (reader.u8(), reader.u16(), reader.u32(), reader.u64())
    digest, text = reader.digest(), reader.sized(limit=40)
    number = reader.count(limit=5, item_bytes=2)
    return (*head, digest, text, tuple(reader.u16() for _ in range(number)))


def decoded(data: bytes) -> Row:
    return decode_strict(data, read_row, max_bytes=200, where="row")


def test_the_layout_is_little_endian_without_padding() -> None:
    row: Row = (1, 2, 3, 4, bytes(range(32)), b"ab", (5,))
    expected = (
        "01" + "0200" + "03000000" + "0400000000000000" + bytes(range(32)).hex()
        + "02000000" + "6162" + "01000000" + "0500"
    )  # fmt: skip
    assert written(row).hex() == expected


@given(rows)
def test_a_row_comes_back(row: Row) -> None:
    assert decoded(written(row)) == row


@given(rows, st.data())
def test_a_prefix_and_a_longer_text_are_refused(row: Row, data: st.DataObject) -> None:
    encoding = written(row)
    cut = data.draw(st.integers(0, len(encoding) - 1))
    with pytest.raises(EvidenceError, match=r"^row: "):
        decoded(encoding[:cut])
    with pytest.raises(EvidenceError, match="bytes after the end"):
        decoded(encoding + b"\0")


@given(st.binary(max_size=120))
def test_what_is_read_is_the_only_encoding_of_its_value(data: bytes) -> None:
    try:
        row = decoded(data)
    except EvidenceError:
        return
    assert written(row) == data


def test_integers_in_one_go_are_the_same_bytes() -> None:
    layout = struct.Struct("<BHIQ")
    at_once, one_by_one = BinaryWriter(), BinaryWriter()
    at_once.integers(layout, (1, 2, 3, 2**64 - 1))
    one_by_one.u8(1)
    one_by_one.u16(2)
    one_by_one.u32(3)
    one_by_one.u64(2**64 - 1)
    data = at_once.finish()
    assert data == one_by_one.finish()
    assert BinaryReader(data).integers(layout) == (1, 2, 3, 2**64 - 1)
    with pytest.raises(EvidenceError, match="ends early"):
        BinaryReader(data[:-1]).integers(layout)


def test_a_refusal_says_where() -> None:
    with pytest.raises(EvidenceError) as caught:
        decoded(b"\1\2")
    assert caught.value.message == "row: the data ends early (at byte 1)"
    assert (caught.value.expected, caught.value.found) == ("2 bytes", "1 bytes")


def test_lengths_are_bounded_before_anything_is_read() -> None:
    reader = BinaryReader(b"\xff\xff\xff\xff" + b"x" * 50)
    with pytest.raises(EvidenceError, match=r"too many bytes \(at byte 0\)"):
        reader.sized(limit=40)
    with pytest.raises(EvidenceError, match="too many items"):
        BinaryReader(b"\6\0\0\0" + bytes(100)).count(limit=5, item_bytes=2)
    with pytest.raises(EvidenceError, match="more items announced") as caught:
        BinaryReader(b"\5\0\0\0" + bytes(9)).count(limit=5, item_bytes=2)
    assert (caught.value.expected, caught.value.found) == ("at most 4", "5")
    assert BinaryReader(b"\5\0\0\0" + bytes(10)).count(limit=5, item_bytes=2) == 5


def test_too_much_data_is_refused_before_it_is_read() -> None:
    def fail(_: BinaryReader) -> int:
        raise AssertionError("was read")

    with pytest.raises(EvidenceError, match=r"^thing: too long"):
        decode_strict(bytes(11), fail, max_bytes=10, where="thing")


@pytest.mark.parametrize(
    "write",
    [
        lambda writer: writer.u8(256),
        lambda writer: writer.u16(2**16),
        lambda writer: writer.u32(2**32),
        lambda writer: writer.u64(2**64),
        lambda writer: writer.u64(-1),
        lambda writer: writer.digest(bytes(31)),
        lambda writer: writer.sized(bytes(41), limit=40),
        lambda writer: writer.count(6, limit=5),
        lambda writer: writer.integers(struct.Struct("<II"), (1, 2**32)),
        lambda writer: writer.integers(struct.Struct("<II"), (1, -1)),
        lambda writer: writer.count(-1, limit=5),
    ],
)
def test_what_does_not_fit_is_not_written(write: Callable[[BinaryWriter], None]) -> None:
    writer = BinaryWriter()
    with pytest.raises(InputError):
        write(writer)
    assert writer.finish() == b""
