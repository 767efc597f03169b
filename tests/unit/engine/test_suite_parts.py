from __future__ import annotations

import json
from pathlib import Path

import pytest
from gguf import GGUFReader

from tallystick.engine.suite.parts import SUITE_VERSION, suite
from tallystick.engine.suite.weights import FORMATS
from tests.golden.write_suite_parts import GOLDEN, identity

PARTS = {part.name: part for part in suite()}


def test_names_occur_once() -> None:
    assert len(PARTS) == len(suite())


@pytest.mark.parametrize("name", PARTS)
def test_a_part_never_changes(name: str) -> None:
    golden = json.loads(GOLDEN.read_text())[SUITE_VERSION]
    assert identity(PARTS[name]) == golden[name]


def test_no_part_left_the_suite() -> None:
    assert list(json.loads(GOLDEN.read_text())[SUITE_VERSION]) == list(PARTS)


@pytest.mark.parametrize("name", PARTS)
def test_batches_cover_the_tokens(name: str) -> None:
    part = PARTS[name]
    assert sum(part.batches) == len(part.tokens)
    assert min(part.tokens) >= 0
    assert max(part.tokens) < 96


@pytest.mark.parametrize("name", sorted(PARTS.keys() - {"few-bits"}))
def test_the_reference_reader_reads_a_part(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(PARTS[name].build())
    reader = GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()
    assert reader.fields["tokenizer.ggml.model"].contents() == "no_vocab"
    assert reader.fields[f"{architecture}.vocab_size"].contents() == 96
    assert "token_embd.weight" in {tensor.name for tensor in reader.tensors}


def test_every_weight_type_takes_part() -> None:
    used = {tensor.type_number for part in suite() for tensor in part.recipe("any").tensors}
    assert used == {form.number for form in FORMATS.values()}


def test_row_counts_are_on_both_sides_of_every_kernel_change() -> None:
    assert {1, 2, 7, 8, 33} <= {size for part in suite() for size in part.batches}
    assert any(len(part.tokens) > 256 for part in suite())
    assert any(part.first_position >= 100_000 for part in suite())
