"""The bounded GGUF reader: what it takes, what it refuses, and how it says so."""

from __future__ import annotations

import os
import struct
from dataclasses import replace

import pytest

from tallystick.engine.gguf_writer import ValueType
from tallystick.errors import InputError
from tallystick.models import gguf
from tallystick.models.gguf import read_header, read_string, read_value
from tests.support.gguf_bytes import (
    ARRAY,
    BOOL,
    F64,
    I8,
    STRING,
    U32,
    U64,
    GgufBytes,
    TensorBytes,
    array,
    as_file,
    scalar,
    text,
    tiny,
)


def refusal(data: bytes) -> InputError:
    with as_file(data) as descriptor, pytest.raises(InputError) as caught:
        read_header(descriptor)
    assert caught.value.exit_code == 4
    return caught.value


@pytest.mark.parametrize("version", [2, 3])
def test_a_sound_file(version: int) -> None:
    data = replace(tiny(), version=version).build()
    with as_file(data) as descriptor:
        header = read_header(descriptor)
        name = header.find("general.name")
        layers = header.find("llama.block_count")
        assert name is not None
        assert layers is not None
        assert read_string(descriptor, name, limit=10) == b"Tiny"
        assert read_value(descriptor, layers) == 2
        assert read_value(descriptor, name) is None
        assert read_string(descriptor, layers, limit=10) is None
        with pytest.raises(InputError, match="too long"):
            read_string(descriptor, name, limit=3)
    assert header.version == version
    assert header.alignment == 32
    assert header.data_offset % 32 == 0
    assert header.file_size == len(data)
    assert [entry.key for entry in header.entries] == [key for key, _ in tiny().entries]
    tokens = header.find("tokenizer.ggml.tokens")
    assert tokens is not None
    assert (tokens.type, tokens.item_type, tokens.count) == (ValueType.ARRAY, ValueType.STRING, 4)
    assert [(t.name, t.shape, t.type.name, t.offset, t.size) for t in header.tensors] == [
        ("token_embd.weight", (32, 4), "Q8_0", 0, 136),
        ("blk.0.attn_norm.weight", (32,), "F32", 160, 128),
        ("output_norm.weight", (3,), "F32", 288, 12),
    ]
    first = header.data_offset
    assert data[first : first + 136] == bytes(range(136))


@pytest.mark.parametrize("kind", [k for k in ValueType if k.name not in ("STRING", "ARRAY")])
def test_every_scalar_type_and_its_array(kind: ValueType) -> None:
    value = 1
    built = tiny().with_entries(("x", scalar(kind, value)), ("y", array(kind, [value] * 5)))
    with as_file(built.build()) as descriptor:
        header = read_header(descriptor)
        single, several = header.find("x"), header.find("y")
        assert single is not None
        assert several is not None
        assert read_value(descriptor, single) == value
        assert read_value(descriptor, several) is None
    assert (single.type, several.item_type, several.count) == (kind, kind, 5)


def test_vocabularies_longer_than_the_window_are_skipped_exactly() -> None:
    tokens = ["x" * (i % 300) for i in range(20_000)]  # about 3 MB, windows are 1 MiB
    built = tiny().with_entries(
        ("long", array(STRING, tokens)), ("huge", scalar(STRING, "y" * 3_000_000)),
        ("after", scalar(U32, 77)),
    )  # fmt: skip
    with as_file(built.build()) as descriptor:
        header = read_header(descriptor)
        after = header.find("after")
        assert after is not None
        assert read_value(descriptor, after) == 77
    assert header.tensors[0].name == "token_embd.weight"


def test_the_descriptors_position_is_left_alone() -> None:
    with as_file(tiny().build()) as descriptor:
        os.lseek(descriptor, 5, os.SEEK_SET)
        read_header(descriptor)
        assert os.lseek(descriptor, 0, os.SEEK_CUR) == 5


def test_an_empty_file_is_called_empty() -> None:
    assert "empty file" in refusal(b"").message


@pytest.mark.parametrize("data", [b"GGML" + bytes(40), b"PK\x03\x04", b"\0", b"<!DOCTYPE html>"])
def test_other_files_are_called_so(data: bytes) -> None:
    error = refusal(data)
    assert error.message == "not a GGUF file"
    assert error.expected == "b'GGUF'"


@pytest.mark.parametrize("version", [0, 1, 4, 77])
def test_other_versions(version: int) -> None:
    error = refusal(replace(tiny(), version=version).build())
    assert error.message == "unsupported GGUF version"
    assert error.found == f"version {version}"


def test_big_endian_is_recognised() -> None:
    data = b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(64)
    assert refusal(data).message == "a big-endian GGUF file"


def test_every_cut_is_called_truncated() -> None:
    data = replace(tiny(), final_padding=0).build()
    whole = len(data)
    for length in range(1, whole):
        error = refusal(data[:length])
        assert error.message == "the GGUF file is truncated", length
        assert error.found == f"{length} bytes"
        expected = error.expected or ""
        needed = int(expected.split()[-2])
        assert length < needed <= whole


def test_one_missing_byte_names_both_sizes() -> None:
    data = replace(tiny(), final_padding=0).build()
    error = refusal(data[:-1])
    assert (error.expected, error.found) == (f"{len(data)} bytes", f"{len(data) - 1} bytes")


@pytest.mark.parametrize("padding", [0, 1, 19, 20])
def test_the_last_tensors_padding_may_be_missing(padding: int) -> None:
    data = replace(tiny(), final_padding=padding).build()
    with as_file(data) as descriptor:
        assert read_header(descriptor).file_size == len(data)


def test_more_than_the_padding_is_refused() -> None:
    error = refusal(replace(tiny(), final_padding=21).build())
    assert "goes on after its last tensor" in error.message


HUGE = 2**60


@pytest.mark.parametrize(
    ("built", "words"),
    [
        (replace(tiny(), entry_count=HUGE), "too many metadata entries"),
        (replace(tiny(), tensor_count=HUGE), "too many tensors"),
        (replace(tiny(), entry_count=2**64 - 1), "too many metadata entries"),
        (replace(tiny(), entry_count=60_000), "truncated"),
        (replace(tiny(), tensor_count=100_000), "truncated"),
        (tiny().with_entries(("x", struct.pack("<IIQ", ARRAY, U32, HUGE))), "too many items"),
        (tiny().with_entries(("x", struct.pack("<IIQ", ARRAY, I8, 2**23))), "truncated"),
        (tiny().with_entries(("x", struct.pack("<IIQ", ARRAY, STRING, 2**23))), "truncated"),
        (tiny().with_entries(("x", struct.pack("<IQ", STRING, HUGE))), "truncated"),
        (tiny().with_entries(("x", struct.pack("<IQ", STRING, 2**64 - 1))), "truncated"),
        (
            tiny().with_entries(
                ("x", struct.pack("<IIQ", ARRAY, STRING, 2) + struct.pack("<Q", HUGE))
            ),
            "truncated",
        ),
        (
            tiny().with_entries(("x", struct.pack("<IIQ", ARRAY, ARRAY, 1) + array(U32, [1])[4:])),
            "array of arrays",
        ),
        (tiny().with_entries(("x", struct.pack("<I", 13) + bytes(8))), "unknown type"),
        (tiny().with_entries(("x", struct.pack("<IIQ", ARRAY, 99, 1) + bytes(8))), "unknown type"),
    ],
)  # fmt: skip
def test_hostile_counts_and_types(built: GgufBytes, words: str) -> None:
    assert words in refusal(built.build()).message


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (b"", "not usable"),
        (b"\xff\xfe", "not usable"),
        (b"a\0b", "not usable"),
        (b"k" * 65_536, "too long"),
        (b"general.name", "twice"),
    ],
)
def test_unusable_keys(key: bytes, words: str) -> None:
    entries = (*tiny().entries, (key, scalar(U32, 1)))
    assert words in refusal(replace(tiny(), entries=entries).build()).message


def test_a_key_length_of_2_to_the_60_is_refused_without_reading_it() -> None:
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", HUGE) + bytes(100)
    assert "too long" in refusal(data).message


def test_keys_are_bounded_together() -> None:
    entries = tuple((f"{i:05}" + "k" * 60_000, scalar(U32, 1)) for i in range(280))
    assert "keys are too long" in refusal(replace(tiny(), entries=entries).build()).message


@pytest.mark.parametrize("value", [0, 3, 48, 2**21, 2**31])
def test_alignment_must_be_a_small_power_of_two(value: int) -> None:
    data = tiny().with_entries(("general.alignment", scalar(U32, value))).build()
    assert "alignment" in refusal(data).message


@pytest.mark.parametrize("encoded", [scalar(U64, 32), scalar(STRING, "32"), scalar(BOOL, True)])
def test_alignment_must_be_an_u32(encoded: bytes) -> None:
    data = tiny().with_entries(("general.alignment", encoded)).build()
    assert "alignment" in refusal(data).message


@pytest.mark.parametrize("value", [1, 8, 64, 4096])
def test_other_alignments(value: int) -> None:
    built = tiny().with_entries(("general.alignment", scalar(U32, value)))
    with as_file(replace(built, alignment=value).build()) as descriptor:
        header = read_header(descriptor)
    assert header.alignment == value
    assert all(tensor.offset % value == 0 for tensor in header.tensors)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (TensorBytes("token_embd.weight"), "twice"),
        (TensorBytes("n" * 64), "too long"),
        (TensorBytes(b""), "not usable"),
        (TensorBytes(b"a\0"), "not usable"),
        (TensorBytes("a", shape=(1, 1, 1, 1, 1)), "too many dimensions"),
        (TensorBytes("a", shape=(2**40, 2**40)), "too large"),
        (TensorBytes("a", shape=(2**64 - 1,)), "too large"),
        (TensorBytes("a", shape=(2**63 - 1, 0)), None),
        (TensorBytes("a", shape=(33,), type_id=8), "no whole blocks"),
        (TensorBytes("a", type_id=4), "does not know"),
        (TensorBytes("a", type_id=2**32 - 1), "does not know"),
        (TensorBytes("a", offset=0), "does not start where"),
        (TensorBytes("a", offset=321), "does not start where"),
        (TensorBytes("a", offset=352), "does not start where"),
        (TensorBytes("a", offset=2**63), "does not start where"),
        (TensorBytes("a", shape=(2**50,)), "truncated"),
    ],
)
def test_hostile_tensors(tensor: TensorBytes, words: str | None) -> None:
    built = tiny().with_tensors(tensor)
    if words is None:
        built = replace(built, tensors=(*built.tensors[:-1], replace(tensor, data=b"")))
        with as_file(built.build()) as descriptor:
            assert read_header(descriptor).tensors[-1].size == 0
    else:
        assert words in refusal(built.build()).message


def test_hostile_names_are_printed_as_ascii() -> None:
    error = refusal(tiny().with_entries(("\x1b[31m\u202e", struct.pack("<I", 13))).build())
    assert str(error).isascii()
    assert "\x1b" not in str(error)


def test_a_file_that_shrinks_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = tiny().build()
    with as_file(data) as descriptor:
        monkeypatch.setattr(os, "pread", lambda *_: b"")
        with pytest.raises(InputError, match="became shorter"):
            read_header(descriptor)


def test_scalars_and_zero_dimensional_tensors_have_one_element() -> None:
    built = tiny().with_tensors(TensorBytes("scale", shape=(), data=bytes(4)))
    with as_file(built.build()) as descriptor:
        last = read_header(descriptor).tensors[-1]
    assert (last.elements, last.size) == (1, 4)


def test_align() -> None:
    assert [gguf.align(n, 32) for n in (0, 1, 31, 32, 33)] == [0, 32, 32, 32, 64]


def test_text_helper_is_what_the_format_says() -> None:
    assert text("ab") == b"\x02\0\0\0\0\0\0\0ab"
    assert scalar(F64, 1.0)[:4] == struct.pack("<I", 12)
