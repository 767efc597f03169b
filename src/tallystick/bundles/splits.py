"""Which tiles are in a split: tile lists, and GeoJSON geometries (docs/spec/bundles.md#splits)."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from typing import Final, cast

from tallystick.bundles.template import decode_text
from tallystick.canonical.json import JSONValue, parse_strict
from tallystick.contracts.dataset import MAX_TILES, MAX_ZOOM, TILE_FIELDS, tile_numbers
from tallystick.errors import EvidenceError, InputError

MAX_GEOMETRY_BYTES: Final = 16 * 1024 * 1024
MAX_LIST_BYTES: Final = 16 * 1024 * 1024
MAX_POINTS: Final = 100_000
MAX_TESTS: Final = 50_000_000
_TILE: Final = re.compile(r"(0|[1-9][0-9]?)/(0|[1-9][0-9]{0,9})/(0|[1-9][0-9]{0,9})")
_FIELD: Final = re.compile(r"\{([^{}]*)\}")

Point = tuple[float, float]
Ring = tuple[Point, ...]


def tile_list(data: bytes, *, where: str) -> tuple[str, ...]:
    """Return the tiles of a list: one ``z/x/y`` a line; blank lines and ``#`` comments are skipped.

    They come back in ascending order. Raises InputError that begins with ``where``.
    """
    tiles: set[str] = set()
    text = decode_text(data, what=where, max_bytes=MAX_LIST_BYTES)
    for number, line in enumerate(text.splitlines(), start=1):
        tile = line.strip()
        if not tile or tile.startswith("#"):
            continue
        if not _is_tile(tile) or tile in tiles:
            raise InputError(
                f"{where}: line {number} is no tile, or one that was listed before",
                expected="z/x/y without leading zeros, x and y below 2^z, each once",
                found=ascii(tile[:40]),
            )
        tiles.add(tile)
    return _in_order(tiles, where)


def _is_tile(text: str) -> bool:
    if _TILE.fullmatch(text) is None:
        return False
    zoom, column, row = tile_numbers(text)
    return zoom <= MAX_ZOOM and max(column, row) < 2**zoom


def _in_order(tiles: Iterable[str], where: str) -> tuple[str, ...]:
    ordered = tuple(sorted(tiles, key=tile_numbers))
    if not 1 <= len(ordered) <= MAX_TILES:
        raise InputError(
            f"{where}: so many tiles make no split",
            expected=f"1 to {MAX_TILES}",
            found=str(len(ordered)),
        )
    return ordered


def tiles_on_disk(template: str, paths: Iterable[str]) -> tuple[str, ...]:
    """Return the tiles whose file, by the ``template`` of a tile's path, is among ``paths``."""
    names = _FIELD.findall(template)
    if sorted(names) != sorted(TILE_FIELDS):
        raise InputError(
            "imagery.tiles is no path of a tile",
            expected="{z}, {x} and {y} in it, each once",
            found=ascii(template[:200]),
        )
    pattern = re.escape(template)
    for name in names:
        pattern = pattern.replace(re.escape(f"{{{name}}}"), f"(?P<{name}>[0-9]+)")
    match = re.compile(pattern).fullmatch
    found = (match(path) for path in paths)
    tiles = ("/".join(hit[name] for name in TILE_FIELDS) for hit in found if hit is not None)
    return tuple(sorted((tile for tile in tiles if _is_tile(tile)), key=tile_numbers))


def geometry_tiles(
    data: bytes, *, zoom: int | None, candidates: tuple[str, ...] | None, where: str
) -> tuple[str, ...]:
    """Return the tiles whose centre lies in a GeoJSON geometry (RFC 7946), in ascending order.

    ``candidates`` are the tiles to choose from, None for all there are at ``zoom``; with a ``zoom``
    only tiles of that zoom are taken. Raises InputError that begins with ``where``.
    """
    try:
        document = parse_strict(data, max_bytes=MAX_GEOMETRY_BYTES)
        polygons = list(_polygons(document))
    except EvidenceError as error:
        raise InputError(
            f"{where}: {error.message}", expected=error.expected, found=error.found
        ) from None
    except _NoGeometryError as problem:
        raise InputError(
            f"{where} is no GeoJSON area",
            expected="Polygon or MultiPolygon (or features of these), degrees, closed rings",
            found=str(problem),
        ) from None
    rings = [ring for polygon in polygons for ring in polygon]
    if candidates is None:
        candidates = _covering(rings, zoom, where)
    chosen = [tile for tile in candidates if zoom is None or tile_numbers(tile)[0] == zoom]
    points = sum(map(len, rings))
    if points > MAX_POINTS or points * len(chosen) > MAX_TESTS:
        raise InputError(f"{where}: too many points for so many tiles", found=str(points))
    inside = [tile for tile in chosen if _covers(polygons, _centre(tile))]
    return _in_order(inside, where)


class _NoGeometryError(Exception):
    """What a value is that is no area."""


def _polygons(value: JSONValue) -> Iterator[tuple[Ring, ...]]:
    if not isinstance(value, dict):
        raise _NoGeometryError("no object")
    kind = value.get("type")
    if kind == "FeatureCollection":
        for feature in _list(value.get("features")):
            yield from _polygons(feature)
    elif kind == "Feature":
        yield from _polygons(value.get("geometry"))
    elif kind == "Polygon":
        yield _rings(value.get("coordinates"))
    elif kind == "MultiPolygon":
        for rings in _list(value.get("coordinates")):
            yield _rings(rings)
    else:
        raise _NoGeometryError(f"the type {ascii(kind)[:40]}")


def _list(value: JSONValue) -> list[JSONValue]:
    if not isinstance(value, list) or not value:
        raise _NoGeometryError("no list, or an empty one")
    return value


def _rings(value: JSONValue) -> tuple[Ring, ...]:
    return tuple(_ring(ring) for ring in _list(value))


def _ring(value: JSONValue) -> Ring:
    points = tuple(_point(point) for point in _list(value))
    if len(points) < 4 or points[0] != points[-1]:
        raise _NoGeometryError("a ring of fewer than four points, or one that is not closed")
    return points


def _point(value: JSONValue) -> Point:
    numbers = _list(value)
    if len(numbers) not in (2, 3) or any(type(n) not in (int, float) for n in numbers):
        raise _NoGeometryError("a position that is not two or three numbers")
    longitude, latitude = float(cast(float, numbers[0])), float(cast(float, numbers[1]))
    if not (-180 <= longitude <= 180 and -90 <= latitude <= 90):
        raise _NoGeometryError("a position outside of -180..180, -90..90")
    return longitude, latitude


def _centre(tile: str) -> Point:
    """Return longitude and latitude of a tile's centre, in degrees (Web Mercator)."""
    zoom, column, row = tile_numbers(tile)
    side = 2.0**zoom
    longitude = (column + 0.5) / side * 360 - 180
    latitude = math.degrees(math.atan(math.sinh(math.pi * (1 - 2 * (row + 0.5) / side))))
    return longitude, latitude


def _covers(polygons: list[tuple[Ring, ...]], point: Point) -> bool:
    return any(sum(_crossings(ring, point) for ring in rings) % 2 for rings in polygons)


def _crossings(ring: Ring, point: Point) -> int:
    """Count the sides of ``ring`` that a line from ``point`` eastwards meets; ends count once."""
    x, y = point
    count = 0
    for (x1, y1), (x2, y2) in itertools.pairwise(ring):
        if (y1 > y) != (y2 > y) and x < (x2 - x1) * (y - y1) / (y2 - y1) + x1:
            count += 1
    return count


def _covering(rings: list[Ring], zoom: int | None, where: str) -> tuple[str, ...]:
    """Return the tiles of ``zoom`` around everything in ``rings``."""
    if zoom is None:
        raise InputError(
            f"{where}: no zoom is given", expected="zoom, or the path of the tiles under imagery"
        )
    points = [point for ring in rings for point in ring]
    west, north = _column_row(min(p[0] for p in points), max(p[1] for p in points), zoom)
    east, south = _column_row(max(p[0] for p in points), min(p[1] for p in points), zoom)
    if (east - west + 1) * (south - north + 1) > 4 * MAX_TILES:
        raise InputError(f"{where}: too large an area for zoom {zoom}")
    columns, rows = range(west, east + 1), range(north, south + 1)
    return tuple(f"{zoom}/{column}/{row}" for column in columns for row in rows)


def _column_row(longitude: float, latitude: float, zoom: int) -> tuple[int, int]:
    side = 2**zoom
    radians = math.radians(max(-85.06, min(85.06, latitude)))
    column = int((longitude + 180) / 360 * side)
    row = int((1 - math.asinh(math.tan(radians)) / math.pi) / 2 * side)
    return max(0, min(side - 1, column)), max(0, min(side - 1, row))
