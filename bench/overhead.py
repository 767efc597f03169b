"""What a run costs above loading its model: the supervisor, the sandbox and its probes.

    python -m bench.overhead [--model MODEL] [--rounds N] [--threads N]

In turn: a bare process that imports numpy and cffi, loads the engine's library and the model, and
ends; then runs of one token without evidence, as `run` starts them (afresh) and as a worker does
(forked by a template), without a sandbox and under `full`. Of each run: the time until its model is
loaded, and what it needed besides computing, that is the same and the time from the last event of
the computation to the outcome in the supervisor's hands. The audits must have passed. Prints rows
of docs/benchmarks.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from bench._engine import arguments
from tallystick.contracts.runtime import SEQUENTIAL, RowClass
from tallystick.engine.libllama.cdef import DECLARATIONS
from tallystick.execution.jobs import GenerateJob
from tallystick.execution.launch import ENGINE_ENVIRONMENT, InstalledEngine, find_engine, run_job
from tallystick.execution.templates import Templates
from tallystick.models.registry import open_model, resolve
from tallystick.sandbox.profiles import SHIPPED
from tallystick.store.home import home
from tallystick.telemetry.events import EventKind
from tallystick.worker.order import declare_run
from tallystick.worker.request import RunOptions

GOAL_MS = 60
GOAL_RATIO = 0.6
_BARE = """
import sys, time
import numpy, cffi
ffi = cffi.FFI()
ffi.cdef(open(sys.argv[1]).read())
lib = ffi.dlopen(sys.argv[2])
quiet = ffi.callback("void(int, const char *, void *)", lambda *_: None)
lib.llama_log_set(quiet, ffi.NULL)
lib.llama_backend_init()
params = lib.llama_model_default_params()
params.n_gpu_layers = 0
params.use_extra_bufts = False
assert lib.llama_model_load_from_file(sys.argv[3].encode(), params) != ffi.NULL
print(time.monotonic_ns(), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Taken:
    """Milliseconds: until the model was loaded, and without the computing."""

    loaded: float
    besides: float


def bare(declarations: Path, library: Path, model: Path) -> Taken:
    """Load in a process that does nothing else."""
    begin = time.monotonic_ns()
    done = subprocess.run(
        [sys.executable, "-c", _BARE, str(declarations), str(library), str(model)],
        env={**ENGINE_ENVIRONMENT, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        check=True,
    )
    loaded = (int(done.stdout) - begin) / 1e6
    return Taken(loaded, loaded)


def run_once(
    engine: InstalledEngine, job: GenerateJob, level: str, templates: Templates | None
) -> Taken:
    """Execute the job once."""
    begin = time.monotonic_ns()
    outcome = run_job(
        job,
        (),
        model_fd=job.model_fd,
        sandbox=None if level == "none" else SHIPPED[level],
        templates=templates,
    )
    end = time.monotonic_ns()
    if level != "none":
        assert outcome.audit is not None
        assert (outcome.audit.level, outcome.audit.result) == (level, "passed")
    at = {event.kind: event.monotonic_ns for event in outcome.events}
    loaded = (at[EventKind.LOAD_COMPLETE] - begin) / 1e6
    return Taken(loaded, loaded + (end - at[EventKind.ARENA_RESET]) / 1e6)


def rows_of(names: Sequence[str], rounds: list[list[Taken]]) -> list[str]:
    """Return the rows of the table; the first column of each round is the bare process."""
    lines = []
    for column, name in enumerate(names):
        loaded = median(row[column].loaded for row in rounds)
        share = median(row[column].loaded / row[0].loaded for row in rounds)
        above = [row[column].besides - row[0].besides for row in rounds]
        lines.append(
            f"| {name} | {loaded:.0f} ms | {share:.2f} | {median(above):+.0f} ms "
            f"({min(above):+.0f} to {max(above):+.0f}) |"
        )
    return lines


def main() -> None:
    parser = arguments(__doc__ or "")
    chosen = parser.parse_args()
    engine = find_engine(home())
    model = resolve(chosen.model, home())
    with (
        tempfile.TemporaryDirectory() as folder,
        open_model(model) as opened,
        Templates() as templates,
    ):
        declarations = Path(folder, "declarations")
        declarations.write_text(DECLARATIONS, encoding="utf-8")
        options = RunOptions(
            prompt="The quick brown fox", max_tokens=1, policy=SEQUENTIAL, evidence=()
        )
        run = declare_run(chosen.model, options, output=Path(folder, "run.json"), home=home())
        job = GenerateJob(
            setup=engine.setup(chosen.threads),
            model_fd=opened.fd,
            run=run,
            row_class=RowClass(1, 1),
            credential_id="00" * 32,
            max_prompt_tokens=4096,
            self_check="no",
        )
        measures: list[tuple[str, Callable[[], Taken]]] = [
            ("bare process", lambda: bare(declarations, engine.library, model.path))
        ]
        for how, given in (("afresh", None), ("forked", templates)):
            measures += [
                (f"{how}, {level}", partial(run_once, engine, job, level, given))
                for level in ("none", "process", "namespaces", "full")
            ]
        for _, measure in measures:
            measure()
        rounds = [[measure() for _, measure in measures] for _ in range(chosen.rounds)]
    print(
        "| run of one token | model loaded after | of the bare load | besides computing, above it |"
    )
    print("|---|---|---|---|")
    print("\n".join(rows_of([name for name, _ in measures], rounds)))
    print(f"\ngoals: at most {GOAL_MS} ms above; forked, at most {GOAL_RATIO} of the bare load")


if __name__ == "__main__":
    main()
