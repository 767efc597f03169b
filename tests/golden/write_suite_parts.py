"""Write the digests of the conformance suite's parts into suite_parts.json.

``python -m tests.golden.write_suite_parts``

Only a new SUITE_VERSION may add digests. An entry of a released version is never changed: its
machines' fingerprints would silently mean something else.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final

from tallystick.engine.suite.parts import SUITE_VERSION, SuitePart, suite

GOLDEN: Final = Path(__file__).with_name("suite_parts.json")


def identity(part: SuitePart) -> str:
    """Return a digest of everything that a part feeds to the engine."""
    digest = hashlib.sha256(part.build())
    feed = [list(part.tokens), part.first_position, list(part.batches)]
    digest.update(json.dumps(feed).encode())
    return digest.hexdigest()


def main() -> None:
    versions = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if SUITE_VERSION in versions:
        raise SystemExit(f"suite version {SUITE_VERSION} has its digests")
    versions[SUITE_VERSION] = {part.name: identity(part) for part in suite()}
    GOLDEN.write_text(json.dumps(versions, indent=1) + "\n")


if __name__ == "__main__":
    main()
