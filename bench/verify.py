"""How long a stateless verification takes in a warm process, and how many two cores do.

    python -m bench.verify [SET --key FILE --audit-key-file FILE]

SET is a directory that `tallystick run` left; without it made-up sets are verified: of ordinary
size (30 layers, 64 prompt and 256 sampled tokens or a few more or less: runs of one model that
differ in texts, counts and secrets), and one whose evidence is at its bound of 250000 operations.
Three ways: all files and the bundle's key; the bundle locked; the bundle withheld. Prints rows of
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import base64
import multiprocessing
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tallystick.attest.auditkeys import read_audit_key
from tallystick.attest.bundlekeys import AuditKey
from tallystick.attest.trust import TrustPolicy
from tallystick.canonical.hashing import sha256
from tallystick.compute.operations import Elementwise, Gemm
from tallystick.compute.schedule import ScheduledOperation
from tallystick.contracts.runtime import RowClass
from tallystick.evidence.gemm_trace import make_trace
from tallystick.evidence.observed import ObservedEvidence, encode_observed
from tallystick.evidence.schedule import ScheduleBuilder, SchedulePhase, pack_indexes
from tallystick.receipts.files import load_trust
from tallystick.receipts.verify import verify_set
from tallystick.store.sets import read_set
from tests.support.sets import (
    AUDIT_KEY,
    TRUST,
    make_class,
    make_manifest,
    make_ordinary,
    make_run,
    make_set,
    stateless,
)

ROUNDS = 120
SETS = 8
GOAL_MS = 6.5
GOAL_RATE = 300
GOAL_BOUND_S = 2.0
STEPS, PER_STEP, PROMPT = 125, 2000, 25
COMMAND = "`python -m bench.verify`"
Files = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Subject:
    """Sets by their files, whom to trust, and the key of their bundles."""

    sets: tuple[Files, ...]
    trust: TrustPolicy
    key: AuditKey | None


def without_bundle(files: Files) -> Files:
    """Return what a publisher hands out: no bundle, no state store."""
    return {n: d for n, d in files.items() if not n.endswith((".palw.bundle", ".sqlite3"))}


def median_ms(sets: Sequence[Files], trust: TrustPolicy, key: AuditKey | None) -> float:
    """Return the median time of one verification in milliseconds, taking the sets in turn."""
    now = datetime.now(UTC)
    times = []
    for turn in range(ROUNDS + 10):
        files = sets[turn % len(sets)]
        start = time.perf_counter()
        verify_set(files, trust, now=now, key=key).require()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times[10:])


def _verify_for(seconds: float) -> int:
    subject = ordinary()
    now = datetime.now(UTC)
    for files in subject.sets:
        verify_set(files, subject.trust, now=now, key=subject.key).require()
    done, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        files = subject.sets[done % len(subject.sets)]
        verify_set(files, subject.trust, now=now, key=subject.key).require()
        done += 1
    return done


def rate(processes: int, seconds: float = 5.0) -> float:
    """Return how many sets a second ``processes`` processes verify together."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        return sum(pool.map(_verify_for, [seconds] * processes)) / seconds


def ordinary() -> Subject:
    """Return sets of ordinary size."""
    sets = tuple(make_ordinary(number).files() for number in range(SETS))
    return Subject(sets, TRUST, AUDIT_KEY)


def at_the_bound() -> Files:
    """Return the set of a sequential run whose schedule has 250000 operations, 62500 products."""
    builder = ScheduleBuilder()
    operations = [
        ScheduledOperation(1 + at % 3, Gemm(64 + at, 1, 64, 1) if at % 4 == 0 else Elementwise(at))
        for at in range(PER_STEP)
    ]
    for step in range(STEPS):
        entries = pack_indexes([builder.place(item) for item in operations])
        phase = SchedulePhase.PREFILL if step < PROMPT else SchedulePhase.DECODE
        builder.add(phase, step if step < PROMPT else step - PROMPT, step, 1, entries)
    schedule = builder.finish()
    lanes = [sha256(number.to_bytes(4, "little")) for number in range(schedule.gemms)]
    observed = ObservedEvidence(schedule, make_trace(schedule, lanes))
    result = stateless(
        prompt_ids=tuple(range(PROMPT)),
        sampled_ids=tuple(range(STEPS - PROMPT + 1)),
        context_tokens=4096,
        observed_evidence=base64.b64encode(encode_observed(observed)).decode(),
    )
    one = RowClass(1, 1)
    runtime = make_class(policy="sequential", prompt_class=one, decode_class=one, knobs=())
    run = make_run(evidence=("gemm",), policy="sequential", parse_special=True, max_tokens=1024)
    manifest = make_manifest(runtime, result)
    return make_set(run, result, runtime_class=runtime, manifest=manifest).files()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("set", type=Path, nargs="?", metavar="SET")
    parser.add_argument("--key", type=Path, action="append", default=[])
    parser.add_argument("--audit-key-file", type=Path)
    given = parser.parse_args()
    subject = ordinary()
    if given.set is not None:
        key = None if given.audit_key_file is None else read_audit_key(given.audit_key_file)
        subject = Subject((read_set(given.set).files,), load_trust(given.key, None), key)
    whole = median_ms(subject.sets, subject.trust, subject.key)
    locked = median_ms(subject.sets, subject.trust, None)
    bare = median_ms([*map(without_bundle, subject.sets)], subject.trust, None)
    print("| what | measured | goal | command |")
    print("|---|---|---|---|")
    print(
        f"| verify, one set with its bundle's key | {whole:.2f} ms | ≤ {GOAL_MS} ms | {COMMAND} |"
    )
    print(f"| the same, bundle locked | {locked:.2f} ms | ≤ {GOAL_MS} ms | {COMMAND} |")
    print(f"| the same, bundle withheld | {bare:.2f} ms | ≤ {GOAL_MS} ms | {COMMAND} |")
    if given.set is None:
        both = rate(2)
        print(f"| sets a second, two processes | {both:.0f} | ≥ {GOAL_RATE} | {COMMAND} |")
        files = at_the_bound()
        start = time.perf_counter()
        verify_set(files, TRUST, now=datetime.now(UTC), key=AUDIT_KEY).require()
        spent = time.perf_counter() - start
        print(f"| one set of 250000 operations | {spent:.2f} s | ≤ {GOAL_BOUND_S} s | {COMMAND} |")


if __name__ == "__main__":
    main()
