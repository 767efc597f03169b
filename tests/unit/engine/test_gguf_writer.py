from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest
from gguf import GGUFReader, GGUFValueType

from tallystick.engine import gguf_writer
from tallystick.engine.gguf_writer import Entry, Tensor, write_gguf

_METADATA = (
    gguf_writer.text("general.architecture", "llama"),
    gguf_writer.text("general.name", "日本 \x00 🦊"),
    gguf_writer.u32("a.u32", 2**32 - 1),
    gguf_writer.f32("a.f32", 1e-6),
    gguf_writer.boolean("a.yes", True),
    gguf_writer.boolean("a.no", False),
    gguf_writer.i32_array("a.numbers", (-1, 0, 2**31 - 1)),
    gguf_writer.text_array("a.texts", ("", "é", "two words")),
    gguf_writer.i32_array("a.empty", ()),
)
_TENSORS = (
    Tensor("odd", 0, (3,), struct.pack("<3f", 1.0, -2.5, 0.0)),
    Tensor("matrix", 8, (2, 32), bytes(range(68))),
    Tensor("cube", 0, (2, 3, 4), struct.pack("<24f", *range(24))),
)


def _bytes(metadata: tuple[Entry, ...], tensors: tuple[Tensor, ...]) -> bytes:
    stream = io.BytesIO()
    write_gguf(stream, metadata, tensors)
    return stream.getvalue()


@pytest.fixture
def reader(tmp_path: Path) -> GGUFReader:
    path = tmp_path / "m.gguf"
    path.write_bytes(_bytes(_METADATA, _TENSORS))
    return GGUFReader(path)


def test_metadata_reads_back(reader: GGUFReader) -> None:
    values = {
        name: (field.contents(), field.types[0])
        for name, field in reader.fields.items()
        if not name.startswith("GGUF.")
    }
    assert values == {
        "general.architecture": ("llama", GGUFValueType.STRING),
        "general.name": ("日本 \x00 🦊", GGUFValueType.STRING),
        "a.u32": (2**32 - 1, GGUFValueType.UINT32),
        "a.f32": (pytest.approx(1e-6), GGUFValueType.FLOAT32),
        "a.yes": (True, GGUFValueType.BOOL),
        "a.no": (False, GGUFValueType.BOOL),
        "a.numbers": ([-1, 0, 2**31 - 1], GGUFValueType.ARRAY),
        "a.texts": (["", "é", "two words"], GGUFValueType.ARRAY),
        "a.empty": ([], GGUFValueType.ARRAY),
    }
    assert reader.get_field("GGUF.version").contents() == 3  # type: ignore[union-attr]


def test_tensors_read_back(reader: GGUFReader) -> None:
    read = {tensor.name: tensor for tensor in reader.tensors}
    assert list(read) == ["odd", "matrix", "cube"]
    assert [int(size) for size in read["cube"].shape] == [4, 3, 2]  # innermost first
    assert read["matrix"].tensor_type.name == "Q8_0"
    for tensor in _TENSORS:
        assert read[tensor.name].data.tobytes() == tensor.data
        assert int(read[tensor.name].data_offset) % gguf_writer.ALIGNMENT == 0


def test_a_file_is_whole_blocks() -> None:
    assert len(_bytes(_METADATA, _TENSORS)) % gguf_writer.ALIGNMENT == 0


def test_a_file_without_tensors_has_its_header_only() -> None:
    data = _bytes(_METADATA[:1], ())
    assert data[:24] == b"GGUF" + struct.pack("<IQQ", 3, 0, 1)


@pytest.mark.parametrize(
    ("metadata", "tensors"),
    [((*_METADATA, _METADATA[2]), _TENSORS), (_METADATA, (*_TENSORS, _TENSORS[0]))],
    ids=["key", "tensor"],
)
def test_a_name_that_occurs_twice_is_refused(
    metadata: tuple[Entry, ...], tensors: tuple[Tensor, ...]
) -> None:
    with pytest.raises(ValueError, match="occurs twice"):
        _bytes(metadata, tensors)
