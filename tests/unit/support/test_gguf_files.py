from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, quants

from tests.support.gguf_files import donor_vocabulary, flip_weight_bit
from tests.support.models import SMALL_VOCABULARY

ToyModel = Callable[[str], Path]
TENSOR = "blk.1.ffn_down.weight"


def _weights(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    found = next(tensor for tensor in GGUFReader(path).tensors if tensor.name == TENSOR)
    return quants.dequantize(found.data, found.tensor_type)


@pytest.mark.parametrize(
    "name", ["llama-f32", "llama-f16", "llama-bf16", "llama-q4_0", "llama-q8_0", "kquant"]
)
def test_one_weight_changes_and_stays_finite(
    name: str, toy_model: ToyModel, tmp_path: Path
) -> None:
    source, forged = toy_model(name), tmp_path / "forged.gguf"
    flip_weight_bit(source, forged, TENSOR)
    before, after = source.read_bytes(), forged.read_bytes()
    assert len(before) == len(after)
    changed = [one ^ two for one, two in zip(before, after, strict=True) if one != two]
    assert len(changed) == 1
    assert changed[0].bit_count() == 1
    weights = _weights(forged)
    assert np.isfinite(weights).all()
    assert int((weights != _weights(source)).sum()) == 1


def test_a_chosen_bit_changes(toy_llama: Path, tmp_path: Path) -> None:
    flip_weight_bit(toy_llama, tmp_path / "forged.gguf", TENSOR, bit=17)
    offset = next(
        int(tensor.data_offset) for tensor in GGUFReader(toy_llama).tensors if tensor.name == TENSOR
    )
    before, after = toy_llama.read_bytes(), (tmp_path / "forged.gguf").read_bytes()
    assert before[offset + 2] ^ after[offset + 2] == 1 << 1


def test_a_bit_outside_the_tensor_is_refused(toy_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bits"):
        flip_weight_bit(toy_llama, tmp_path / "forged.gguf", TENSOR, bit=1 << 40)


def test_a_donor_gives_its_vocabulary(toy_llama: Path) -> None:
    entries, size = donor_vocabulary(toy_llama)
    assert (entries, size) == (SMALL_VOCABULARY.entries, SMALL_VOCABULARY.size)
