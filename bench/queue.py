"""How many jobs a second one process claims and completes, each call durable when it returns.

    python -m bench.queue [--directory DIR] [--threads N]

Beside it, taking turns on the same disk: a bare SQLite commit of one row at synchronous FULL, which
no queue that commits alone can beat. DIR must be on a real disk. Prints rows of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tallystick.queues.sqlite.adapter import SqliteQueue, open_queue
from tests.support.queues import make_result, make_run

ROUNDS = 7
JOBS_ALONE = 60
JOBS_TOGETHER = 600
COMMITS = 120
GOAL = 400


@dataclass(frozen=True)
class Round:
    """Per second: bare commits, claim+complete by one thread, and by many threads."""

    commits: float
    alone: float
    together: float


def bare_commits(path: Path) -> float:
    """Return how often a second SQLite alone makes one row durable here."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE IF NOT EXISTS rows (value BLOB)")
        start = time.perf_counter()
        for _ in range(COMMITS):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO rows VALUES (zeroblob(400))")
            connection.execute("COMMIT")
        return COMMITS / (time.perf_counter() - start)
    finally:
        connection.close()


def worked_off(queue: SqliteQueue, threads: int, jobs: int, first: int) -> float:
    """Return how many of ``jobs`` queued jobs are claimed and completed a second."""
    # Filling it is not what is measured.
    queue._commits._connection.execute("PRAGMA synchronous = OFF")
    for number in range(first, first + jobs):
        queue.submit(make_run(number))
    queue._commits._connection.execute("PRAGMA synchronous = FULL")

    def work(worker: str) -> None:
        while (lease := queue.claim(worker, lease_seconds=600)) is not None:
            queue.complete(lease, make_result(worker))

    workers = [threading.Thread(target=work, args=(f"worker-{n}",)) for n in range(threads)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return jobs / (time.perf_counter() - start)


def measure(directory: Path, threads: int) -> list[Round]:
    """Return the rounds, each of all three in turn; the first one does not count."""
    rounds = []
    with open_queue(directory / "queue" / "queue.sqlite3") as queue:
        for number in range(ROUNDS + 1):
            first = number * (JOBS_ALONE + JOBS_TOGETHER)
            rounds.append(
                Round(
                    bare_commits(directory / "bare.sqlite3"),
                    worked_off(queue, 1, JOBS_ALONE, first),
                    worked_off(queue, threads, JOBS_TOGETHER, first + JOBS_ALONE),
                )
            )
    return rounds[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    parser.add_argument("--threads", type=int, default=16)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix=".bench-") as directory:
        rounds = measure(Path(directory), arguments.threads)
    command = "`python -m bench.queue`"
    commits = statistics.median(item.commits for item in rounds)
    print("| what | a second | of a bare commit | goal | command |")
    print("|---|---|---|---|---|")
    for name, column, goal in (
        ("one thread", [item.alone for item in rounds], "–"),
        (f"{arguments.threads} threads", [item.together for item in rounds], f"≥ {GOAL}"),
    ):
        rate = statistics.median(column)
        ratio = statistics.median(
            value / item.commits for value, item in zip(column, rounds, strict=True)
        )
        spread = f"{min(column):.0f}–{max(column):.0f}"
        print(
            f"| claim+complete, {name} | {rate:.0f} ({spread}) | {ratio:.2f} | {goal} | {command} |"
        )
    print(f"\nBare commits a second: {commits:.0f}")


if __name__ == "__main__":
    main()
