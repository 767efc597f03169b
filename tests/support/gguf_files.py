"""Looks into GGUF files, and forges them, with the reference reader (the ``gguf`` package)."""

from __future__ import annotations

import shutil
from pathlib import Path

from gguf import GGUFReader

from tallystick.engine.gguf_writer import Entry, ValueType
from tallystick.engine.suite.weights import FORMATS

# A field's parts are the key's length, the key, the type, then the value as it is in the file.
_VALUE_PARTS = slice(3, None)
# The top mantissa bit of the number formats: a change of less than half, always finite.
_MANTISSA_BIT = {"F32": 22, "F16": 9, "BF16": 6}


def donor_vocabulary(path: Path) -> tuple[tuple[Entry, ...], int]:
    """Return the ``tokenizer.*`` entries of the file at ``path`` and its number of tokens."""
    fields = GGUFReader(path).fields
    entries = tuple(
        Entry(
            name,
            ValueType(field.types[0]),
            b"".join(part.tobytes() for part in field.parts[_VALUE_PARTS]),
        )
        for name, field in fields.items()
        if name.startswith("tokenizer.") and name != "tokenizer.chat_template"
    )
    return entries, len(fields["tokenizer.ggml.tokens"].data)


def _weight_bit(kind: str, size: int) -> int:
    """Return a bit in the middle of a tensor of ``size`` bytes that belongs to one weight."""
    form = FORMATS[kind]
    block = size // form.block_bytes // 2 * form.block_bytes
    if kind in _MANTISSA_BIT:
        return block * 8 + _MANTISSA_BIT[kind]
    # The middle of a block is quants in every type; scales and minima are at its ends.
    return (block + form.block_bytes // 2) * 8 + 7


def flip_weight_bit(source: Path, out: Path, tensor: str, bit: int | None = None) -> None:
    """Copy the model at ``source`` to ``out`` with one bit of one tensor changed.

    ``bit`` counts from the tensor's first byte, lowest bit first; None takes a bit that belongs
    to a single weight in the tensor's middle: the result changes and stays finite.
    """
    found = next(entry for entry in GGUFReader(source).tensors if entry.name == tensor)
    size = int(found.n_bytes)
    place = _weight_bit(found.tensor_type.name, size) if bit is None else bit
    if not 0 <= place < size * 8:
        raise ValueError(f"{tensor} has {size * 8} bits")
    shutil.copyfile(source, out)
    with out.open("r+b") as file:
        file.seek(int(found.data_offset) + place // 8)
        changed = file.read(1)[0] ^ (1 << place % 8)
        file.seek(-1, 1)
        file.write(bytes([changed]))
