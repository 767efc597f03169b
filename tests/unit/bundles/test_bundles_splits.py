"""Tiles of a split: from a list, and from an area."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tallystick.bundles.splits import geometry_tiles, tile_list, tiles_on_disk
from tallystick.errors import InputError

SQUARE = [[0, 0], [90, 0], [90, 60], [0, 60], [0, 0]]
WHERE = "task/area.geojson"


def area(document: Any, zoom: int | None = 2, candidates: tuple[str, ...] | None = None) -> Any:
    data = json.dumps(document).encode()
    return geometry_tiles(data, zoom=zoom, candidates=candidates, where=WHERE)


def polygon(*rings: Any) -> dict[str, Any]:
    return {"type": "Polygon", "coordinates": list(rings)}


def test_a_list_is_read_in_order() -> None:
    text = b"# a comment\n\n4/10/3\r\n4/9/3\n 4/9/2 \n"
    assert tile_list(text, where="list") == ("4/9/2", "4/9/3", "4/10/3")


@pytest.mark.parametrize("line", ["4/16/0", "31/0/0", "4/01/0", "4/1", "a", "-1/0/0", "2/1/1"])
def test_lines_that_are_no_tile_are_refused(line: str) -> None:
    with pytest.raises(InputError, match="list: line 2 "):
        tile_list(f"2/1/1\n{line}\n".encode(), where="list")


def test_an_empty_list_is_no_split() -> None:
    with pytest.raises(InputError, match="so many tiles make no split"):
        tile_list(b"# nothing\n", where="list")


def test_tiles_are_found_on_disk_by_their_path() -> None:
    paths = ["data/t/2/1/3.png", "data/t/2/1/4.png", "data/t/2/01/3.png", "data/x/2/1/1.png"]
    assert tiles_on_disk("data/t/{z}/{x}/{y}.png", paths) == ("2/1/3",)
    assert tiles_on_disk("data/{y}.{x}+{z}", ["data/1.0+1", "data/1x0+1"]) == ("1/0/1",)
    with pytest.raises(InputError, match=r"imagery\.tiles"):
        tiles_on_disk("data/{z}/{x}.png", paths)


def test_a_tile_belongs_where_its_centre_is() -> None:
    assert area(polygon(SQUARE)) == ("2/2/1",)
    feature = {"type": "Feature", "properties": None, "geometry": polygon(SQUARE)}
    assert area(feature) == ("2/2/1",)
    assert area({"type": "FeatureCollection", "features": [feature, feature]}) == ("2/2/1",)
    other = [[-x, -y] for x, y in SQUARE]
    both = {"type": "MultiPolygon", "coordinates": [[SQUARE], [other]]}
    assert area(both) == ("2/1/2", "2/2/1")
    hole = [[40, 30], [50, 30], [50, 50], [40, 50], [40, 30]]
    with pytest.raises(InputError, match="make no split"):
        area(polygon(SQUARE, hole))


def test_candidates_and_zoom_limit_the_choice() -> None:
    candidates = ("1/1/0", "2/2/1", "2/3/1", "3/4/3")
    assert area(polygon(SQUARE), None, candidates) == ("2/2/1", "3/4/3")
    assert area(polygon(SQUARE), 3, candidates) == ("3/4/3",)


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"type": "Point", "coordinates": [0, 0]},
        polygon(),
        polygon(SQUARE[:-1]),
        polygon(SQUARE[:2] + SQUARE[:1]),
        polygon([[0, 0], [181, 0], [0, 60], [0, 0]]),
        polygon([[0, 0], [0, 91], [60, 0], [0, 0]]),
        polygon([["0", 0], [90, 0], [0, 60], ["0", 0]]),
        polygon([[True, 0], [90, 0], [0, 60], [True, 0]]),
        polygon([[0], [90], [60], [0]]),
        {"type": "FeatureCollection", "features": []},
        {"type": "Feature", "geometry": None},
    ],
)
def test_what_is_no_area_is_refused(document: Any) -> None:
    with pytest.raises(InputError, match="is no GeoJSON area"):
        area(document)


@pytest.mark.parametrize("data", [b"", b'{"type":"Polygon","type":"x"}', b"[NaN]"])
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match=WHERE):
        geometry_tiles(data, zoom=1, candidates=None, where=WHERE)


def test_an_area_needs_a_zoom_or_tiles_and_bounds_the_work() -> None:
    with pytest.raises(InputError, match="no zoom"):
        area(polygon(SQUARE), None)
    with pytest.raises(InputError, match="too large an area"):
        area(polygon(SQUARE), 20)
