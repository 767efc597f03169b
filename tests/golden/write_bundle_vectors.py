"""Write docs/spec/vectors/bundles.json anew, from the text of docs/spec/bundles.md alone.

``python -m tests.golden.write_bundle_vectors``; after a release vectors are added, never changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from tallystick.contracts.codec import encode
from tests.golden.reference import framed, named, plain_jcs
from tests.support.documents import example_manifest
from tests.support.vectors import spec_vectors

PATHS = {
    "accepted": ["data/a", "data/.git/config", "data/\u00e4 b.png", "task/" + "n" * 255],
    "refused": [
        "/a",
        "data//a",
        "data/../a",
        "./a",
        "data\\a",
        "C:/a",
        "data/a\nb",
        "data/a\u202eb",
        "data/a\u0308",
        "data/a ",
        "data/a.",
        "data/" + "n" * 256,
        "/".join(["d"] * 17),
    ],
    "refused_together": [
        ["data/a", "data/A"],
        ["data/stra\u00dfe", "data/STRASSE"],
        ["data/a/b", "data/A/c"],
        ["data/a", "data/a/b"],
    ],
}
PROMPTS = [
    {
        "template": "{dataset}/{split}: {tile} = {z}, {x}, {y}. {description} {{{tile}}}",
        "values": {
            "dataset": "d",
            "split": "s",
            "tile": "3/1/2",
            "z": "3",
            "x": "1",
            "y": "2",
            "description": "{tile} is not read again",
        },
        "prompt": "d/s: 3/1/2 = 3, 1, 2. {tile} is not read again {3/1/2}",
    },
]
BAD_TEMPLATES = ["{", "}", "{tile", "{}", "{0}", "{tile!r}", "{tile:9}", "{tile.x}", "{ tile }"]
AREA = {
    "type": "Polygon",
    "coordinates": [
        [[-135, 0], [-90, 0], [-90, 66.51326044311186], [-135, 66.51326044311186], [-135, 0]],
        [[-130, 42], [-115, 42], [-115, 60], [-130, 60], [-130, 42]],
    ],
}


def parts(files: Mapping[str, Any]) -> list[bytes]:
    """Path, size and sha256 of each file in the order of the paths' bytes."""
    done = []
    for path in sorted(files, key=lambda text: text.encode()):
        file = files[path]
        done += [path.encode(), int(file["size"]).to_bytes(8, "little")]
        done.append(bytes.fromhex(file["sha256"]))
    return done


def digests(manifest: Any) -> dict[str, str]:
    data = plain_jcs(manifest)
    task = manifest["task"]["files"]
    whole = parts({**manifest["files"], **task})
    first = sha256(data).digest()
    return {
        "manifest_digest": "sha256:" + first.hex(),
        "bundle_digest": named("tallystick.bundle", first, *whole),
        "task_digest": named("tallystick.task", *parts(task)),
        "task_framing": framed("tallystick.task", 1, parts(task)).hex(),
    }


def vector() -> dict[str, Any]:
    """Return the content of the file."""
    manifest: Any = encode(example_manifest())
    return {
        "spec": "bundles.md",
        "about": "a manifest and its digests; paths; prompt templates; tiles inside an area",
        "manifest": manifest,
        "expected": digests(manifest),
        "paths": PATHS,
        "prompts": PROMPTS,
        "bad_templates": BAD_TEMPLATES,
        "area": {"geometry": AREA, "zoom": 4, "tiles": inside_area()},
    }


def inside_area() -> list[str]:
    """Columns 2 and 3, rows 4 to 7 at zoom 4, but 4/2/5, whose centre is in the hole.

    Centres: longitude -123.75 and -101.25; latitude 61.6, 48.9, 31.9, 11.2.
    """
    tiles = [f"4/{column}/{row}" for column in (2, 3) for row in range(4, 8)]
    return [tile for tile in tiles if tile != "4/2/5"]


if __name__ == "__main__":
    text = json.dumps(vector(), indent=2) + "\n"
    (spec_vectors() / "bundles.json").write_text(text, encoding="ascii")
