"""Many runs in a row by one worker, some of them failing on purpose: what is left behind?

    python -m bench.soak [--runs N] [--every K]

Three models of different architecture. Of every K runs, in turn, one has its child killed, one has
a model file that was cut off, and one declares a digest that is not its model's. Prints resident
memory of the supervisor over time, and fails when it grows by more than 10 MB, when a process, a
descriptor, a mapping or a temporary file is left, or when a run is not accounted for once.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from tallystick.contracts.layout import MARKER
from tallystick.contracts.request import ExpectedDigest, InferenceRun
from tallystick.execution.launch import no_progress
from tallystick.models.add import hash_file
from tallystick.queues.port import JobState
from tallystick.queues.sqlite.adapter import SqliteQueue, open_queue
from tallystick.store.announced import FOLDER
from tallystick.telemetry.rss import resident_bytes
from tallystick.worker.loop import Worker
from tallystick.worker.order import declare_run
from tallystick.worker.request import RunOptions
from tallystick.worker.settings import DEFAULTS
from tallystick.worker.stopping import StopSwitch
from tallystick.worker.turns import Listener, Turn
from tests.support.documents import digest_of
from tests.support.kills import engine_children
from tests.support.models import write_model
from tests.support.runs import children_of, give_keys, make_endless

NAMES = ("llama-q8_0", "gemma3", "moe")
WARM = 10
ALLOWED = 10 * 1024 * 1024
KINDS = ("killed", "cut off", "wrong digest")
PROMPT = "A tally stick is split in two."


def prepared_models(home: Path) -> tuple[Path, ...]:
    """Write three models that never end, and one that is cut off."""
    paths = tuple(home / f"{name}.gguf" for name in (*NAMES, "cut"))
    for name, path in zip(NAMES, paths, strict=False):
        write_model(name, path)
        make_endless(path)
    paths[-1].write_bytes(paths[0].read_bytes()[:-4096])
    return paths


def declared(home: Path, models: tuple[Path, ...], number: int, kind: str) -> InferenceRun:
    """Declare a run: a good one, or one that is bound to fail as ``kind`` says."""
    options = RunOptions(prompt=PROMPT, max_tokens=512 if kind == "killed" else 4)
    run = declare_run(
        str(models[number % len(NAMES)]), options, output=home / f"{number}.json", home=home
    )
    if kind == "cut off":
        digest = hash_file(models[-1], home, no_progress).digest
        return replace(run, model_digest=digest, model=ExpectedDigest(digest))
    if kind == "wrong digest":
        return replace(run, model=ExpectedDigest(digest_of("another")))
    return run


class Killer:
    """Kills the engine's child of each run that is in ``victims``."""

    def __init__(self, queue: SqliteQueue, victims: set[str]) -> None:
        self._queue = queue
        self._victims = victims
        self._over = threading.Event()

    def _kill(self) -> None:
        while not self._over.wait(0.01):
            held = self._queue.jobs([JobState.LEASED], limit=1)
            if not held or held[0].job_id not in self._victims:
                continue
            for pid in engine_children(os.getpid()):
                with suppress(ProcessLookupError):  # it has ended by itself
                    os.kill(pid, signal.SIGKILL)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        thread = threading.Thread(target=self._kill)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()


class Soak:
    """The worker under watch."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.memory: list[int] = []
        self.descriptors: list[int] = []

    def tell(self, turn: Turn) -> None:
        self.turns.append(turn)
        self.memory.append(resident_bytes())
        self.descriptors.append(len(os.listdir("/proc/self/fd")))
        if len(self.turns) % 20 == 0:
            print(f"{len(self.turns):4d} turns, {self.memory[-1] / 1e6:6.1f} MB", flush=True)

    def faults(self, kinds: dict[str, str], home: Path, queue: SqliteQueue) -> Iterator[str]:
        """Say what is not as it should be."""
        # After all kinds of runs came by once: what is imported late is no leak.
        grown = max(self.memory[WARM:]) - max(self.memory[:WARM])
        if grown > ALLOWED:
            yield f"resident memory grew by {grown} bytes"
        if max(self.descriptors[WARM:]) > max(self.descriptors[:WARM]):
            yield f"descriptors: {self.descriptors[WARM - 1]}, later {max(self.descriptors)}"
        if ".gguf" in Path("/proc/self/maps").read_text():
            yield "a model is mapped"
        if children_of(os.getpid()):
            yield "a process is left"
        outcomes: Counter[tuple[str, str]] = Counter(
            (kinds[turn.job_id], turn.outcome) for turn in self.turns
        )
        for kind in ("good", *KINDS):
            wanted = {"good": "done", "killed": "dead"}.get(kind, "failed")
            if outcomes[kind, wanted] != sum(known == kind for known in kinds.values()):
                yield f"{kind}: {outcomes}"
        if len(self.turns) != len(kinds):
            yield f"{len(self.turns)} turns of {len(kinds)} runs"
        receipts = home / "receipts"
        places = {
            job.result.place for job in queue.jobs([JobState.DONE], limit=10**6) if job.result
        }
        if os.listdir(receipts / FOLDER):
            yield "a note of a set is left"
        if places != {str(path) for path in receipts.iterdir() if path.name != FOLDER}:
            yield "what is in the folder of receipts is not what the queue names"
        if len(list(receipts.glob(f"*/*{MARKER.suffix}"))) != len(places):
            yield "a set is not complete"


def main() -> int:
    parser = argparse.ArgumentParser(
        "bench.soak", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--every", type=int, default=8)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tallystick-soak-") as folder:
        home = Path(folder)
        home.chmod(0o700)
        give_keys(home)
        models = prepared_models(home)
        with open_queue(home / "queue.sqlite3") as queue:
            kinds: dict[str, str] = {}
            for number in range(arguments.runs):
                fails = number % arguments.every == arguments.every - 1
                kind = KINDS[number // arguments.every % len(KINDS)] if fails else "good"
                run = declared(home, models, number, kind)
                kinds[queue.submit(run, max_attempts=1).job_id] = kind
            soak = Soak()
            settings = replace(DEFAULTS, models=tuple(map(str, models)), threads=1)
            victims = {job_id for job_id, kind in kinds.items() if kind == "killed"}
            start = time.monotonic()
            with Killer(queue, victims).at_work(), StopSwitch(60) as stop:
                listener = Listener(on_turn=soak.tell)
                Worker(queue, settings, home, stop, listener=listener).work(until="empty")
            spent = time.monotonic() - start
            faults = list(soak.faults(kinds, home, queue))
    first, last = max(soak.memory[:WARM]), soak.memory[-1]
    print(f"| {len(soak.turns)} runs in {spent:.0f} s | {first / 1e6:.1f} to {last / 1e6:.1f} MB |")
    for fault in faults:
        print(f"not held: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
