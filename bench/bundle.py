"""How fast a bundle is checked, beside nothing but hashing as many bytes on as many cores.

    python -m bench.bundle [--files 10000] [--megabytes 1000] [--folder DIR]

Writes a bundle of files of equal size (100 to a directory) into a temporary folder, and takes
turns: SHA-256 of as many bytes that lie in memory, by one thread for each core; a bare loop that
opens, reads and hashes the same files, likewise; and `check_bundle`. All files are in the page
cache. Prints one row of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tallystick.bundles.check import check_bundle
from tallystick.bundles.hashing import BUFFER_BYTES, usable_threads
from tests.support.bundles import CONTENTS, write_bundle

ROUNDS = 5
GOAL = 0.9
PIECE = 1024 * 1024


def make(folder: Path, files: int, size: int) -> None:
    """Write a bundle of ``files`` files of ``size`` bytes, no two alike."""
    noise = os.urandom(size)
    contents = dict(CONTENTS)
    for number in range(files):
        head = number.to_bytes(8, "little")
        contents[f"data/{number // 100:03}/{number:05}.bin"] = head + noise[8:]
    write_bundle(folder, contents)


def hash_in_memory(total: int) -> None:
    """Hash ``total`` bytes in pieces, shared by one thread for each core."""
    piece = bytes(PIECE)
    threads = usable_threads()

    def work(_: int) -> None:
        digest = hashlib.sha256()
        for _ in range(total // threads // PIECE):
            digest.update(piece)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))


def read_and_hash(paths: list[str]) -> None:
    """Open, read and hash files and nothing else, shared by one thread for each core."""
    threads = usable_threads()

    def work(start: int) -> None:
        buffer = bytearray(BUFFER_BYTES)
        view = memoryview(buffer)
        for path in paths[start::threads]:
            descriptor = os.open(path, os.O_RDONLY)
            digest = hashlib.sha256()
            while count := os.readv(descriptor, (buffer,)):
                digest.update(view[:count])
            os.close(descriptor)
            digest.hexdigest()

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))


def timed(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    total = arguments.megabytes * 1_000_000
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        bundle = Path(name)
        make(bundle, arguments.files, total // arguments.files)
        timed(lambda: check_bundle(bundle))  # reads the files into the page cache
        paths = [str(path) for path in bundle.rglob("*.bin")]
        rounds = [
            (
                timed(lambda: hash_in_memory(total)),
                timed(lambda: read_and_hash(paths)),
                timed(lambda: check_bundle(bundle)),
            )
            for _ in range(ROUNDS)
        ]
    speeds = [total / statistics.median(column) / 1e9 for column in zip(*rounds, strict=True)]
    of_memory = statistics.median(memory / check for memory, _, check in rounds)
    of_files = statistics.median(files / check for _, files, check in rounds)
    what = f"bundle check, {arguments.files} files of {total // arguments.files} bytes"
    print("| what | of hashing in memory | of reading and hashing | GB/s each | goal | command |")
    print("|---|---|---|---|---|---|")
    shown = " / ".join(f"{speed:.2f}" for speed in speeds)
    figures = f"{of_memory:.2f} | {of_files:.2f} | {shown} | {GOAL}"
    print(f"| {what} | {figures} | `python -m bench.bundle` |")


if __name__ == "__main__":
    main()
