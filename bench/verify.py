"""How long one stateless verification takes in a warm process.

    python -m bench.verify [SET --key FILE]

SET is a directory that `tallystick run` left; without it a made-up set of ordinary shape is
verified (30 layers, 64 prompt and 256 sampled tokens). Prints one row of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from tallystick.attest.trust import TrustPolicy
from tallystick.receipts.files import load_trust
from tallystick.receipts.verify import verify_set
from tallystick.store.sets import read_set
from tests.support.sets import TRUST, make_ordinary

ROUNDS = 200
GOAL_MS = 4.0


def measure(files: Mapping[str, bytes], trust: TrustPolicy) -> float:
    """Return the median time of one verification in milliseconds."""
    now = datetime.now(UTC)
    times = []
    for _ in range(ROUNDS + 10):
        start = time.perf_counter()
        verify_set(files, trust, now=now).require()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times[10:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("set", type=Path, nargs="?", metavar="SET")
    parser.add_argument("--key", type=Path, action="append", default=[])
    arguments = parser.parse_args()
    files: Mapping[str, bytes] = make_ordinary().files()
    trust = TRUST
    if arguments.set is not None:
        files, trust = read_set(arguments.set).files, load_trust(arguments.key, None)
    whole = measure(files, trust)
    public = {name: data for name, data in files.items() if not name.endswith(".opening")}
    without = measure(public, trust)
    command = "`python -m bench.verify`"
    print("| what | median | without the opening | goal | command |")
    print("|---|---|---|---|---|")
    print(f"| verify, one set | {whole:.2f} ms | {without:.2f} ms | {GOAL_MS:.0f} ms | {command} |")


if __name__ == "__main__":
    main()
