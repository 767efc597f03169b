"""GGUF files as plain bytes, every field free to be wrong: for tests of the reader."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMATS = {
    U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?",
    U64: "Q", I64: "q", F64: "d",
}  # fmt: skip
Q8_0 = 8


def text(value: str | bytes) -> bytes:
    raw = value.encode("utf-8") if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind: int, value: object) -> bytes:
    """Return an encoded value: type field and value."""
    assert isinstance(value, str | bytes | int | float)
    body = text(value) if isinstance(value, str | bytes) else struct.pack(
        "<" + _FORMATS[kind], value
    )  # fmt: skip
    return struct.pack("<I", kind) + body


def array(kind: int, values: Sequence[object]) -> bytes:
    items = b"".join(scalar(kind, value)[4:] for value in values)
    return struct.pack("<IIQ", ARRAY, kind, len(values)) + items


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """``offset`` None: right after the tensor before."""

    name: str | bytes
    shape: tuple[int, ...] = (4,)
    type_id: int = 0
    offset: int | None = None
    data: bytes = bytes(16)


@dataclass(frozen=True, slots=True)
class GgufBytes:
    """The parts of a file. ``entry_count`` and ``tensor_count`` may contradict the content."""

    entries: tuple[tuple[str | bytes, bytes], ...] = ()
    tensors: tuple[TensorBytes, ...] = ()
    version: int = 3
    alignment: int = 32
    magic: bytes = b"GGUF"
    entry_count: int | None = None
    tensor_count: int | None = None
    final_padding: int | None = None

    def with_entries(self, *entries: tuple[str, bytes]) -> GgufBytes:
        """Return this file with ``entries`` added, or put in the place of those of equal key."""
        keys = dict(entries)
        kept = tuple((key, keys.pop(str(key), value)) for key, value in self.entries)
        return replace(self, entries=kept + tuple(keys.items()))

    def with_tensors(self, *tensors: TensorBytes) -> GgufBytes:
        return replace(self, tensors=self.tensors + tensors)

    def header(self) -> bytes:
        """Return everything before the tensor data, padding included."""
        tensor_count = len(self.tensors) if self.tensor_count is None else self.tensor_count
        entry_count = len(self.entries) if self.entry_count is None else self.entry_count
        out = [self.magic, struct.pack("<IQQ", self.version, tensor_count, entry_count)]
        out += [text(key) + value for key, value in self.entries]
        offset = 0
        for tensor in self.tensors:
            out.append(text(tensor.name) + struct.pack("<I", len(tensor.shape)))
            out += [struct.pack("<Q", length) for length in tensor.shape]
            at = offset if tensor.offset is None else tensor.offset
            out.append(struct.pack("<IQ", tensor.type_id, at))
            offset = self._aligned(offset + len(tensor.data))
        raw = b"".join(out)
        return raw + bytes(self._aligned(len(raw)) - len(raw))

    def build(self) -> bytes:
        out = self.header()
        for index, tensor in enumerate(self.tensors):
            out += tensor.data
            padding = self._aligned(len(tensor.data)) - len(tensor.data)
            if index == len(self.tensors) - 1 and self.final_padding is not None:
                padding = self.final_padding
            out += bytes(padding)
        return out

    def _aligned(self, offset: int) -> int:
        return -(-offset // self.alignment) * self.alignment


def tiny(architecture: str = "llama") -> GgufBytes:
    """Return a small file with everything that the facts are made of."""
    return GgufBytes(
        entries=(
            ("general.architecture", scalar(STRING, architecture)),
            ("general.name", scalar(STRING, "Tiny")),
            (f"{architecture}.block_count", scalar(U32, 2)),
            (f"{architecture}.embedding_length", scalar(U32, 32)),
            (f"{architecture}.context_length", scalar(U32, 128)),
            ("tokenizer.ggml.model", scalar(STRING, "gpt2")),
            ("tokenizer.ggml.tokens", array(STRING, ["a", "b", "", "日本"])),
            ("tokenizer.ggml.token_type", array(I32, [1, 1, 3, 1])),
            ("tokenizer.ggml.bos_token_id", scalar(U32, 1)),
            ("tokenizer.chat_template", scalar(STRING, "{{ messages }}")),
        ),
        tensors=(
            TensorBytes("token_embd.weight", (32, 4), Q8_0, data=bytes(range(136))),
            TensorBytes("blk.0.attn_norm.weight", (32,), data=bytes(range(128))),
            TensorBytes("output_norm.weight", (3,), data=b"\x01" * 12),
        ),
    )


@contextmanager
def as_file(data: bytes) -> Iterator[int]:
    """Yield a descriptor of an unnamed file with these bytes."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        yield file.fileno()
