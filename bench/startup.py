"""How long a user waits for ``tallystick --help``, beside an interpreter that does nothing.

    python -m bench.startup

Both are started in turn, so that a busy machine slows both. Prints one row of docs/benchmarks.md.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 21
GOAL_MS = 300


def start(*arguments: str) -> float:
    """Return the milliseconds from starting a process to its end."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - begin) * 1000


def main() -> None:
    start("-m", "tallystick", "--help")  # byte-compiles what was not yet
    pairs = [(start("-c", "pass"), start("-m", "tallystick", "--help")) for _ in range(ROUNDS)]
    bare, shown = (statistics.median(column) for column in zip(*pairs, strict=True))
    command = "`python -m bench.startup`"
    print("| what | median | an idle interpreter | goal | command |")
    print("|---|---|---|---|---|")
    print(f"| tallystick --help | {shown:.0f} ms | {bare:.0f} ms | {GOAL_MS} ms | {command} |")


if __name__ == "__main__":
    main()
