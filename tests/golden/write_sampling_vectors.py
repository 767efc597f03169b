"""Write docs/spec/vectors/sampling.json, by the second implementation only.

``python -m tests.golden.write_sampling_vectors``. Vectors are added and never changed.
"""

from __future__ import annotations

import json
import struct
from itertools import product
from typing import Any

from tests.golden import reference_sampling as reference
from tests.support.vectors import spec_vectors

INFINITY, NAN = 0x7F800000, 0x7FC00000
LARGEST = 0x7F7FFFFF
SMALLEST = 1  # subnormal
FIXED = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 3.14159274, -3.14159274),
    *(2.0**-16, -(2.0**-16), 2.0**-17, -(2.0**-17), 3 * 2.0**-17, -3 * 2.0**-17),
    *(2.0**-126, -(2.0**-126), 1.0e-40, -1.0e-40, 16383.9990234375, -16383.9990234375),
    *(32767.998046875, -32767.998046875, -32768.0, 255.00390625, -255.00390625),
)
DISTANCES = (
    *(0, 1, 177, 178, 45425, 45426, 65536, 655360),
    *(1362782, 1362783, 1362784, 1362785, 1400000, 64 * 65536 - 1, 64 * 65536, 2**31),
)
ROWS = (
    (0.0,),
    (1.0, 1.0, 1.0, 1.0),
    (-0.0, 0.0, -0.0),
    (1.0e-40, -1.0e-40, 0.0),
    (2.5, -1.25, 0.0, 2.4375, 7.75, 7.5),
    (10.0, 9.0, 8.0, 7.0, 6.0, 5.0, -20.0, -50.0),
    (-300.0, -301.5, -300.25, -340.0),
    (16383.5, 16383.0, 0.0, -3.0e38),
    (-16383.5, -3.0e38, -16384.0, -40000.0),
)
TEMPERATURES = ("0.0001", "0.1", "0.75", "1", "2")
SEEDS = (0, 1, 2**64 - 1)
POSITIONS = (0, 7, 4095)
REFUSED = (
    ("both", (0x3F800000, NAN)),
    ("both", (NAN, 0x3F800000)),
    ("both", (0xFFC00001, 0x3F800000)),
    ("both", (0x3F800000, INFINITY, 0)),
    ("both", (0x3F800000, 0xFF800000)),
    ("both", (INFINITY,)),
    ("seeded", (0x46800000, 0)),  # 2^14
    ("seeded", (0xC6800000, 0xC6800001)),  # -2^14 the largest
    ("seeded", (LARGEST, 0)),
)


def bits_of(value: float) -> int:
    return int.from_bytes(struct.pack(">f", value), "big")


def text(bits: tuple[int, ...]) -> list[str]:
    return [f"{value:08x}" for value in bits]


def fixed_vectors() -> list[Any]:
    patterns = (*map(bits_of, FIXED), SMALLEST, SMALLEST | 1 << 31, 0x007FFFFF, 0x807FFFFF)
    found = []
    for bits in patterns:
        value = reference.real(bits)
        assert value is not None
        found.append({"float32": f"{bits:08x}", "fixed": reference.fixed(value)})
    return found


def draw_vectors() -> list[Any]:
    found = []
    for values, temperature in product(ROWS, TEMPERATURES):
        row = tuple(map(bits_of, values))
        masses = reference.weights(reference.row(row) or [], temperature)
        for seed, position in product(SEEDS, POSITIONS):
            if (seed, position) in ((1, 0), (2**64 - 1, 0), (0, 4095), (1, 4095)):
                continue
            found.append(
                {
                    "logits": text(row),
                    "temperature": temperature,
                    "seed": str(seed),
                    "position": position,
                    "weights": masses,
                    "threshold": reference.threshold(sum(masses), seed, position),
                    "token": reference.seeded(row, temperature, seed, position),
                }
            )
    return found


def document() -> Any:
    return {
        "log2_e": reference.LOG2_E,
        "coarse": reference.COARSE,
        "fine": reference.FINE,
        "fixed_point": fixed_vectors(),
        "weights": [
            {"distance": distance, "weight": reference.weight(distance)} for distance in DISTANCES
        ],
        "greedy": [
            {"logits": text(row), "token": reference.greedy(row)}
            for row in (tuple(map(bits_of, values)) for values in ROWS)
        ],
        "draws": draw_vectors(),
        "refused": [{"sampling": how, "logits": text(row)} for how, row in REFUSED],
    }


def lines(value: Any) -> str:
    """JSON with one vector a line: small, and small differences when a vector is added."""
    members = []
    for name, content in value.items():
        if isinstance(content, list) and isinstance(content[0], dict):
            rows = ",\n".join("    " + json.dumps(entry) for entry in content)
            members.append(f'  "{name}": [\n{rows}\n  ]')
        else:
            members.append(f'  "{name}": {json.dumps(content)}')
    return "{\n" + ",\n".join(members) + "\n}\n"


if __name__ == "__main__":
    (spec_vectors() / "sampling.json").write_text(lines(document()), encoding="utf-8")
