"""Writes the benchmark's model to disk, one period of four layers in memory at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.big.geometry import Scale, vocabulary_entries
from tallystick.engine import gguf_writer
from tallystick.engine.gguf_writer import Entry, Tensor, TensorPlace, write_data, write_header
from tallystick.engine.suite.architectures import FULL_ATTENTION_INTERVAL, hybrid
from tallystick.engine.suite.weights import FORMATS
from tests.support.tokenizer import EOS_ID, SPECIALS, TURN_END

_PERIOD: Final = FULL_ATTENTION_INTERVAL
_LABEL: Final = "bench/big"
_BLOCK_BYTES: Final = {form.number: form.block_bytes for form in FORMATS.values()}
_END_IDS: Final = (EOS_ID, SPECIALS.index(TURN_END))
_STEP: Final = 7919  # blocks by which a period's weights lie apart from those of the one before


def metadata(scale: Scale) -> tuple[Entry, ...]:
    """Return every metadata entry of the model."""
    name = scale.numbers.architecture
    small = hybrid(scale.shape(0, 1), scale.recurrent(), scale.kind_of, _LABEL)
    changed = {
        f"{name}.block_count": gguf_writer.u32(f"{name}.block_count", scale.numbers.layers),
        f"{name}.rope.dimension_sections": gguf_writer.i32_array(
            f"{name}.rope.dimension_sections", scale.rope_sections
        ),
    }
    return (
        *(changed.get(entry.key, entry) for entry in small.metadata),
        gguf_writer.text("general.name", f"random weights, {scale.name} geometry"),
        *vocabulary_entries(scale.numbers.vocabulary),
    )


def write_model(path: Path, scale: Scale) -> None:
    """Write the model to ``path``: the same bytes on every machine.

    The layers of one period are made from labels; those of the others are the same blocks of
    weights, moved on within each tensor, so that no two layers are equal.
    """
    ends = _ends(scale)
    period = hybrid(scale.shape(_PERIOD, 1), scale.recurrent(), scale.kind_of, _LABEL)
    layers = tuple(tensor for tensor in period.tensors if tensor.name.startswith("blk."))
    periods = range(scale.numbers.layers // _PERIOD)
    places = [tensor.place for tensor in ends]
    places += [_place(tensor, number) for number in periods for tensor in layers]
    with path.open("wb") as stream:
        write_header(stream, metadata(scale), places)
        for tensor in ends:
            write_data(stream, tensor.data)
        for number in periods:
            for tensor in layers:
                write_data(stream, *_moved(tensor, number))
        stream.flush()
        os.fsync(stream.fileno())


def _ends(scale: Scale) -> tuple[Tensor, ...]:
    """Return embedding, last norm and head; no token that ends a text is ever the likeliest."""
    shape = scale.shape(0, scale.numbers.vocabulary)
    return tuple(
        replace(tensor, data=_endless(tensor)) if tensor.name == "output.weight" else tensor
        for tensor in hybrid(shape, scale.recurrent(), scale.kind_of, _LABEL).tensors
    )


def _endless(head: Tensor) -> bytes:
    row = len(head.data) // head.shape[0]
    data = bytearray(head.data)
    for token in _END_IDS:
        data[token * row : (token + 1) * row] = bytes(row)  # a logit of 0
    return bytes(data)


def _place(tensor: Tensor, period: int) -> TensorPlace:
    _, layer, rest = tensor.name.split(".", 2)
    return replace(tensor.place, name=f"blk.{int(layer) + _PERIOD * period}.{rest}")


def _moved(tensor: Tensor, period: int) -> Iterator[memoryview]:
    block = _BLOCK_BYTES[tensor.type_number]
    start = period * _STEP * block % len(tensor.data)
    yield memoryview(tensor.data)[start:]
    yield memoryview(tensor.data)[:start]
