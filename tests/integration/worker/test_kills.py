"""Kill -9 of worker and child, at moments that a seed chooses, in every phase of a run.

50 moments take about a minute; ``TALLYSTICK_KILLS`` and ``TALLYSTICK_KILL_SEED`` ask, by hand, for
more of them and for others.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tallystick.queues.port import JobState, LeaseEnd
from tallystick.queues.sqlite.adapter import SqliteQueue, open_queue
from tallystick.worker.order import declare_run
from tallystick.worker.request import RunOptions
from tallystick.worker.settings import DEFAULTS
from tests.support.kills import PHASES, Massacre, left_over
from tests.support.runs import EngineHome

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")

MOMENTS = int(os.environ.get("TALLYSTICK_KILLS", "50"))
SEED = int(os.environ.get("TALLYSTICK_KILL_SEED", "4"))
PROMPT = "A tally stick is split in two."
TOKENS = 24


@pytest.fixture
def killer(
    engine_home: EngineHome, endless_model: Callable[[str], Path], tmp_path: Path
) -> Massacre:
    model = endless_model("llama-q8_0")
    engine_home.run(model, PROMPT, 2)  # calibrated, and not in the middle of what is looked at
    settings = replace(
        DEFAULTS,
        queue=str(tmp_path / "queue" / "queue.sqlite3"),
        receipts=str(tmp_path / "receipts"),
        models=(str(model),),
        threads=1,
        lease_seconds=1,
        idle_milliseconds=10,
    )

    def submit(queue: SqliteQueue) -> str:
        number = sum(count for _, count in queue.counts())
        options = RunOptions(prompt=PROMPT, max_tokens=TOKENS)
        file = tmp_path / f"run-{number}.json"
        run = declare_run(str(model), options, output=file, home=engine_home.path)
        return queue.submit(run, max_attempts=100).job_id

    return Massacre(Path(str(settings.queue)), settings, engine_home.path, submit, SEED)


def test_kills_at_any_moment_lose_nothing(
    killer: Massacre, engine_home: EngineHome, record_property: Callable[[str, Any], None]
) -> None:
    record_property("seed", SEED)
    with open_queue(killer.queue) as queue:
        killer.measure(queue)
        killer.kill(MOMENTS, queue)
    killer.finish()
    by_phase = Counter[str]()
    for (phase, _), count in killer.kills.items():
        by_phase[phase] += count
    assert sum(by_phase.values()) == MOMENTS, SEED
    assert min(by_phase[phase] for phase in PHASES) >= MOMENTS // len(PHASES)
    assert {whom for _, whom in killer.kills} == {"worker", "child"}
    sets, places = killer.sets(), []
    with open_queue(killer.queue) as queue:
        assert len(queue.jobs(limit=10**6)) == len(killer.jobs) == len({*killer.jobs})
        for job_id in killer.jobs:
            job, past = queue.get(job_id), queue.leases(job_id)
            assert job.state is JobState.DONE, (SEED, job)
            assert job.result is not None
            places.append(Path(job.result.place or ""))
            # Completed once, by its last lease, and each lease has an epoch of its own.
            ends = [lease.ended for lease in past]
            assert ends.count(LeaseEnd.COMPLETED) == 1, (SEED, ends)
            assert ends[-1] is LeaseEnd.COMPLETED
            assert [lease.lease_epoch for lease in past] == list(range(1, len(past) + 1))
            assert job.lease_epoch == len(past)
    # One set for each run, none for none: whatever was named before a kill was taken up.
    assert sorted(path.name for path in places) == sorted(sets), SEED
    assert left_over(killer.receipts) == []
    key = engine_home.path / "keys" / "default.pub.pem"
    verified = engine_home.cli("verify", *places, "--key", key)
    assert verified.returncode == 0, verified.stderr
