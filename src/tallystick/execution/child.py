"""The engine child: one process, one job, no key."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from tallystick.contracts.codec import decode, encode
from tallystick.errors import RunFailedError
from tallystick.execution.child_engine import Reporter
from tallystick.execution.jobs import (
    JOBS,
    CalibrateJob,
    FingerprintJob,
    GenerateJob,
    ObserveJob,
    ReplayJob,
)
from tallystick.sandbox.channel import Channel, serve

# Far below the supervisor's patience.
_BEAT_SECONDS: Final = 30.0


def settle() -> None:
    """What holds for every process that runs jobs."""
    os.umask(0o077)
    sys.setrecursionlimit(2000)


def handle(request: Any, channel: Channel) -> None:
    """Do the job that ``request`` describes, and tell everything to ``channel``."""
    op = request["op"]
    job = decode(JOBS[op], request["job"], where=op)
    channel.keep_alive(_BEAT_SECONDS)
    reporter = Reporter(channel)
    if isinstance(job, GenerateJob):
        from tallystick.execution.generate_child import run_generate

        generation = run_generate(job, reporter)
        channel.send("result", {"generation": encode(generation), "events_told": reporter.events})
    elif isinstance(job, ReplayJob):
        from tallystick.execution.replay_child import run_replay

        generation = run_replay(job, reporter)
        channel.send("result", {"generation": encode(generation), "events_told": reporter.events})
    elif isinstance(job, CalibrateJob):
        from tallystick.execution.calibrate_child import run_calibrate

        channel.send("result", run_calibrate(job, reporter))
    elif isinstance(job, FingerprintJob):
        from tallystick.execution.fingerprint_child import run_fingerprint

        channel.send("result", run_fingerprint(job, reporter))
    elif isinstance(job, ObserveJob):
        from tallystick.execution.observe_child import run_observe

        channel.send("result", run_observe(job, reporter))
    else:
        raise RunFailedError("unknown job")


if __name__ == "__main__":
    settle()
    serve(handle)
