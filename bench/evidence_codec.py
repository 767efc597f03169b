"""What the evidence of a run at the bound costs: 250000 operations, a quarter of them products.

    python -m bench.evidence_codec [--rounds N]

Collects, encodes, decodes, commits to, prices and checks it, in this process and without an engine.
Prints one row of docs/benchmarks.md; all of it together is to stay far below a second.
"""

from __future__ import annotations

import argparse
import random
import statistics
import struct
import time
from collections.abc import Callable
from functools import partial

from tallystick.compute.rules import RULES_V2, RULES_V3
from tallystick.evidence.adapter.collector import Collector, StepInfo
from tallystick.evidence.adapter.nodes import ModelFigures
from tallystick.evidence.gemm_trace import check_trace, gemm_root
from tallystick.evidence.observed import ObservedEvidence, decode_observed, encode_observed
from tallystick.evidence.schedule import SchedulePhase
from tallystick.evidence.schedule_checks import check_schedule, price
from tests.support.evidence import BLIND, HYBRID
from tests.support.graph_nodes import node, product, reading

STEPS, LAYERS, PER_LAYER = 125, 40, 50
PROMPT = 25
GOAL_S = 0.5


def collect() -> tuple[ObservedEvidence, list[float]]:
    """Return evidence at the bound, and how long each step took to take in.

    The nodes change every 32 steps, as they do when caches grow; in between they are the same.
    """
    rng = random.Random(0)
    collector = Collector(ModelFigures(LAYERS, 256, 8), "products")
    nodes = []
    times = []
    for number in range(STEPS):
        if number % 32 == 0:
            width = 64 + number
            nodes = [
                product(f"q-{layer}", width, 1) if at % 4 == 0 else node(f"a-{layer}", "ADD", width)
                for layer in range(LAYERS)
                for at in range(PER_LAYER)
            ]
        data = struct.pack("<64f", *[rng.gauss(0, 3) for _ in range(64)])
        readings = [reading(one, data) for one in nodes]
        phase = SchedulePhase.PREFILL if number < PROMPT else SchedulePhase.DECODE
        info = StepInfo(phase, number if number < PROMPT else number - PROMPT, number, 1)
        start = time.perf_counter()
        collector.step(info, readings)
        times.append(time.perf_counter() - start)
    return collector.finish().evidence, times


def seconds(function: Callable[[], object], rounds: int) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def check(observed: ObservedEvidence) -> None:
    """Hold the evidence against model and counts, and its trace against its schedule."""
    assert observed.trace is not None
    check_schedule(observed.schedule, HYBRID, PROMPT, STEPS - PROMPT + 1)
    check_trace(observed.trace, observed.schedule)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    observed, steps = collect()
    schedule, trace = observed.schedule, observed.trace
    assert trace is not None
    assert schedule.events == STEPS * LAYERS * PER_LAYER == 250_000
    data = encode_observed(observed)
    times = {
        "encode": seconds(lambda: encode_observed(observed), rounds),
        "decode": seconds(lambda: decode_observed(data), rounds),
        "commit": seconds(
            lambda: (schedule.commitment(RULES_V3.ruleset_id), gemm_root(BLIND, trace)), rounds
        ),
        "price": seconds(lambda: price(schedule, RULES_V2), rounds),
        "check": seconds(partial(check, observed), rounds),
    }
    parts = ", ".join(f"{name} {value * 1000:.0f} ms" for name, value in times.items())
    total = sum(times.values())
    print("| what | together | parts | collecting | goal | command |")
    print("|---|---|---|---|---|---|")
    print(
        f"| evidence of {schedule.events} operations, {trace.events} of them products "
        f"({len(data) / 1e6:.1f} MB) | {total * 1000:.0f} ms | {parts} "
        f"| {statistics.median(steps) * 1000:.1f} ms a step | ≤ {GOAL_S * 1000:.0f} ms "
        "| `python -m bench.evidence_codec` |"
    )


if __name__ == "__main__":
    main()
