"""docs/spec/vectors/observer.json and .jsonl: program and second implementation both give them."""

from __future__ import annotations

import json
import struct
from typing import Any, Final

import pytest

from tallystick.errors import RunFailedError
from tallystick.evidence.observer.reader import read_transcript
from tallystick.evidence.observer.sketch import lanes, sketch
from tests.golden import reference_observer as reference
from tests.golden import reference_sealing_pass as sealing
from tests.golden.write_observer_vectors import little_endian, text
from tests.support.vectors import spec_vectors

TEXT: Final = (spec_vectors() / "observer.json").read_text(encoding="utf-8")
TRANSCRIPT: Final = (spec_vectors() / "observer.jsonl").read_bytes()
SEALING_TRANSCRIPT: Final = (spec_vectors() / "observer-sealing.jsonl").read_bytes()
VECTORS: Final = json.loads(TEXT)


def test_the_second_implementation_writes_these_files() -> None:
    assert text() == TEXT
    assert reference.transcript("sketch") == TRANSCRIPT
    assert sealing.transcript(sealing.Pass()) == SEALING_TRANSCRIPT


@pytest.mark.parametrize("vector", VECTORS["nibbles"], ids=lambda vector: vector["float32"])
def test_nibbles(vector: dict[str, str]) -> None:
    assert sketch(little_endian(vector["float32"])) == vector["nibble"] + "0" * 63


@pytest.mark.parametrize("vector", VECTORS["sketches"])
def test_sketches(vector: dict[str, Any]) -> None:
    digits = sketch(b"".join(map(little_endian, vector["float32"])))
    assert digits == vector["hex"]
    assert [*map(str, lanes(digits))] == vector["lanes"]


@pytest.mark.parametrize("bits", VECTORS["not_finite"])
def test_values_that_are_not_finite(bits: str) -> None:
    with pytest.raises(RunFailedError, match="not finite"):
        sketch(struct.pack("<f", 1.0) + little_endian(bits))


def test_the_reader_takes_the_transcript() -> None:
    read = read_transcript([TRANSCRIPT])
    assert (read.events, read.gemms, read.routes) == (18, 6, 3)
    assert (read.prefill_steps, read.decode_steps) == (2, 1)
    assert list(read.result.prompt_token_ids) == reference.PROMPT_IDS
    assert bytes(read.result.output_bytes) == reference.OUTPUT


def test_the_reader_takes_the_transcript_of_a_pass() -> None:
    read = read_transcript([SEALING_TRANSCRIPT])
    assert (read.events, read.gemms, read.routes) == (21, 8, 9 + 3)
    assert (read.prefill_steps, read.decode_steps, read.sealing_steps) == (0, 0, 3)
    assert read.result.generated_token_ids == sealing.Pass().generated
