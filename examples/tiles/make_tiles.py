"""Draw the example's imagery anew: ``python examples/tiles/make_tiles.py``.

A made-up village, drawn by arithmetic alone: no photograph, no map, nobody's data. The same pixels
come out everywhere (their compression may differ between builds of zlib). Writes data/ beside this
file: images of 256 x 256 pixels, descriptions counted from the pixels, and the true answers.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ZOOM = 17
COLUMNS = range(65536, 65542)
ROWS = range(65530, 65535)
SIDE = 256
FIELD, TREES, WATER, ROAD, ROOF = range(5)
NAMES = ("field", "trees", "water", "road", "roof")
COLOURS = ((168, 178, 92), (58, 94, 48), (62, 104, 150), (176, 170, 160), (172, 84, 62))


def chance(*numbers: int) -> int:
    """Return a number from 0 to 65535 that follows from ``numbers``."""
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:2], "big")


def draw(column: int, row: int) -> tuple[bytearray, int]:
    """Return the pixels of a tile (one class each), and its number of roofs."""
    pixels = bytearray(SIDE * SIDE)
    left, top = (column - COLUMNS[0]) * SIDE, (row - ROWS[0]) * SIDE
    for y in range(SIDE):
        for x in range(SIDE):
            pixels[y * SIDE + x] = ground(left + x, top + y)
    roofs = 0
    for number in range(10):
        near_road = chance(column, row, number, 1) % 5 < settled(column)
        if not near_road:
            continue
        x, y = (20 + chance(column, row, number, part) % 200 for part in (2, 3))
        width, height = (10 + chance(column, row, number, part) % 14 for part in (4, 5))
        area = [(y + j) * SIDE + x + i for j in range(height) for i in range(width)]
        if all(pixels[place] in (FIELD, TREES) for place in area):
            for place in area:
                pixels[place] = ROOF
            roofs += 1
    return pixels, roofs


def settled(column: int) -> int:
    """Return how densely a column is built up, from 0 (not at all) to 5."""
    return (0, 1, 3, 2, 1, 0)[column - COLUMNS[0]]


def ground(x: int, y: int) -> int:
    """Return what is at a place when nothing is built there."""
    if abs(x - 3 * y // 8 - 420 - chance(y // 32) % 9) < 22:
        return WATER
    if abs(y - 640 - x // 16) < 5 or (abs(x - 700) < 4 and y > 300):
        return ROAD
    return TREES if chance(x // 24, y // 24, 7) % 100 < 22 else FIELD


def png(pixels: bytearray) -> bytes:
    """Return an indexed PNG of the pixels."""
    lines = b"".join(b"\0" + pixels[start : start + SIDE] for start in range(0, SIDE * SIDE, SIDE))
    palette = b"".join(bytes(colour) for colour in COLOURS)
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", header),
        (b"PLTE", palette),
        (b"IDAT", zlib.compress(lines, 9)),
        (b"IEND", b""),
    )
    done = [b"\x89PNG\r\n\x1a\n"]
    for name, data in chunks:
        check = zlib.crc32(name + data)
        done.append(struct.pack(">I", len(data)) + name + data + struct.pack(">I", check))
    return b"".join(done)


def describe(pixels: bytearray, roofs: int) -> str:
    """Return what can be counted in a tile, as a text of one line."""
    shares = [(pixels.count(kind) * 100 / len(pixels), name) for kind, name in enumerate(NAMES)]
    parts = [f"{share:.1f} % {name}" for share, name in sorted(shares, reverse=True) if share]
    return f"{', '.join(parts)}. Separate roofs: {roofs}."


def main() -> None:
    """Write images, descriptions and answers."""
    answers = ["tile,building"]
    for column in COLUMNS:
        for row in ROWS:
            pixels, roofs = draw(column, row)
            name = f"{ZOOM}/{column}/{row}"
            for folder, suffix in (("imagery", ".png"), ("descriptions", ".txt")):
                (HERE / "data" / folder / f"{ZOOM}/{column}").mkdir(parents=True, exist_ok=True)
                path = HERE / "data" / folder / f"{name}{suffix}"
                text = describe(pixels, roofs).encode()
                path.write_bytes(png(pixels) if suffix == ".png" else text)
            answers.append(f"{name},{'yes' if roofs else 'no'}")
    (HERE / "data" / "answers.csv").write_text("\n".join(answers) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
