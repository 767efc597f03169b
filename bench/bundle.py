"""How fast a bundle is checked, beside nothing but hashing as many bytes on as many cores.

    python -m bench.bundle [--files 10000] [--megabytes 1000] [--folder DIR]

Writes a bundle of files of equal size (100 to a directory) into a temporary folder, and takes
turns: SHA-256 of as many bytes that lie in memory, by one process for each core; a bare loop that
opens, reads and hashes the same files, likewise; and `check_bundle`. All files are in the page
cache. Prints rows of docs/benchmarks.md: by the clock, and the processor time of all threads and
processes, which neighbours disturb less.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

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


def hash_in_memory(total: int) -> float:
    """Hash ``total`` bytes in pieces; return the processor time."""
    begin = time.process_time()
    piece = bytes(PIECE)
    digest = hashlib.sha256()
    for _ in range(total // PIECE):
        digest.update(piece)
    return time.process_time() - begin


def read_and_hash(paths: list[str]) -> float:
    """Open, read and hash files and nothing else; return the processor time."""
    begin = time.process_time()
    buffer = bytearray(BUFFER_BYTES)
    view = memoryview(buffer)
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        digest = hashlib.sha256()
        while count := os.readv(descriptor, (buffer,)):
            digest.update(view[:count])
        os.close(descriptor)
        digest.hexdigest()
    return time.process_time() - begin


def check(bundle: Path) -> float:
    """Check the bundle; return the processor time."""
    begin = time.process_time()
    check_bundle(bundle)
    return time.process_time() - begin


def shared(pool: ProcessPoolExecutor, work: Callable[[Any], float], parts: list[Any]) -> float:
    """Let each process do its part; return the processor time of all."""
    return sum(pool.map(work, parts))


def timed(action: Callable[[], float]) -> tuple[float, float]:
    """Return how long ``action`` took by the clock, and the processor time that it returns."""
    begin = time.perf_counter()
    spent = action()
    return time.perf_counter() - begin, spent


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
        check(bundle)  # reads the files into the page cache
        paths = [str(path) for path in bundle.rglob("*.bin")]
        cores = usable_threads()
        shares = [paths[start::cores] for start in range(cores)]
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(cores, mp_context=context) as pool:
            shared(pool, read_and_hash, shares)  # the processes have started
            rounds = [
                (
                    timed(lambda: shared(pool, hash_in_memory, [total // cores] * cores)),
                    timed(lambda: shared(pool, read_and_hash, shares)),
                    timed(lambda: check(bundle)),
                )
                for _ in range(ROUNDS)
            ]
    what = f"bundle check, {arguments.files} files of {total // arguments.files} bytes"
    print(
        "| what | counted | of hashing in memory | of reading and hashing | seconds each | goal |"
    )
    print("|---|---|---|---|---|---|")
    for index, counted in enumerate(("by the clock", "processor time")):
        found = [[measure[index] for measure in measures] for measures in rounds]
        of_memory = statistics.median(memory / check for memory, _, check in found)
        of_files = statistics.median(files / check for _, files, check in found)
        each = [statistics.median(column) for column in zip(*found, strict=True)]
        shown = " / ".join(f"{seconds:.2f}" for seconds in each)
        print(f"| {what} | {counted} | {of_memory:.2f} | {of_files:.2f} | {shown} | {GOAL} |")


if __name__ == "__main__":
    main()
