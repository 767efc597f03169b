"""Write docs/spec/vectors/observer.json and both transcripts with the second implementation."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from tests.golden import reference_observer as reference
from tests.golden import reference_sealing_pass as sealing

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "spec" / "vectors"
# Zero, the smallest and the largest subnormal, both sides of each bound, the largest finite value.
EDGES = [
    *("00000000", "00000001", "007fffff", "00800000", "3b7fffff", "3b800000"),
    *("3d7fffff", "3d800000", "3e7fffff", "3e800000", "3f7fffff", "3f800000"),
    *("407fffff", "40800000", "417fffff", "41800000", "7f7fffff"),
]
REFUSED = ["7f800000", "ff800000", "7f800001", "7fc00000", "ffc00000"]


def little_endian(bits: str) -> bytes:
    return struct.pack("<I", int(bits, 16))


def document() -> dict[str, Any]:
    values = [f"{int(edge, 16) | sign:08x}" for sign in (0, 0x80000000) for edge in EDGES]
    nibbles = []
    for bits in values:
        digits = reference.sketch(little_endian(bits))
        nibbles.append({"float32": bits, "nibble": digits[0]})
    sketches = []
    for row in (values, values + values[:30], ["3f000000"] * 64):
        digits = reference.sketch(b"".join(map(little_endian, row)))
        numbers = list(map(str, reference.lanes(digits)))
        sketches.append({"float32": row, "hex": digits, "lanes": numbers})
    return {"nibbles": nibbles, "sketches": sketches, "not_finite": REFUSED}


def text() -> str:
    return json.dumps(document(), indent=1) + "\n"


if __name__ == "__main__":
    (FOLDER / "observer.json").write_text(text(), encoding="utf-8")
    (FOLDER / "observer.jsonl").write_bytes(reference.transcript("sketch"))
    (FOLDER / "observer-sealing.jsonl").write_bytes(sealing.transcript(sealing.Pass()))
