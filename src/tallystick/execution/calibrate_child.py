"""Find, on the model itself, the row class within which every bit is equal (child side).

The child's environment fixes one knob setting. Two questions are asked (docs/spec/calibration.md):

1. *Boundaries*: do n rows, evaluated as one batch behind a prefix, have the bits they have in a
   batch of the largest size? The floor is the smallest n from which on all sizes do. (Without the
   prefix the first row attends to itself alone, and one row would look like any number.)
2. *Schedule*: does a generation with that floor, scratch rows and all, give the state root that
   batched passes of two different splits give?
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tallystick.canonical.json import JSONValue
from tallystick.contracts.runtime import ROW_CLASS, RowClass
from tallystick.engine.port import ContextSpec, Model, ObservedContext, Rows, Watch
from tallystick.evidence.state_tree import StateTree, row_digests
from tallystick.execution.child_engine import Engine, Reporter
from tallystick.execution.evidence import Evidence
from tallystick.execution.gather import layer_blocks
from tallystick.execution.jobs import CalibrateJob
from tallystick.execution.schedule import MAX_FLOOR, context_cells
from tallystick.execution.session import Execution, Plan, Sampler, generate, re_execute

SIZES: Final = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 32, 64, 65, 127, 256, 511, 512)
_TEXT_SIZES: Final = (1, 2, 3, 4, 7, 8, 9, 16, 17, 65)
_PREFIX: Final = 40
_TEXT: Final = (
    "A tally stick is split in two, and only the true halves fit together. 割符は二つに割る。 "
    "def fit(a, b):\n    return a.notches == b.notches  # 🪵\n"
)
_BLIND: Final = bytes(32)


@dataclass(frozen=True, slots=True)
class _Trial:
    prompt: tuple[int, ...]
    generated: int


def random_ids(label: str, count: int, vocabulary: int) -> tuple[int, ...]:
    """Return ``count`` ids spread over the vocabulary, the same on every machine."""
    raw = hashlib.shake_256(f"tallystick.calibration/{label}".encode()).digest(8 * count)
    return tuple(int.from_bytes(raw[i : i + 8], "big") % vocabulary for i in range(0, 8 * count, 8))


def text_ids(model: Model, count: int) -> tuple[int, ...]:
    """Return ``count`` ids of ordinary text (repeated as often as needed)."""
    ids = model.tokenize(_TEXT.encode(), add_special=True, parse_special=False)
    return tuple((ids * (count // max(1, len(ids)) + 1))[:count]) if ids else ()


class _Rows:
    """Evaluates whole batches in one context and returns every row's digest."""

    def __init__(self, model: Model, threads: int, top: int) -> None:
        self._model = model
        spec = ContextSpec(cells=max(256, top), max_rows=top, sequences=1, threads=threads)
        self._context: ObservedContext = model.open_observed(spec, Watch(rows="layers"))

    def digests(self, ids: Sequence[int], prefix: int = 0) -> list[list[bytes]]:
        """Return, for each layer and then the logits, one digest a row behind the prefix.

        The first ``prefix`` ids are a batch of their own, whose rows are not looked at.
        """
        if prefix:
            self._evaluate(ids[:prefix], 0)
            self._context.observation()
        n = len(ids) - prefix
        self._evaluate(ids[prefix:], prefix)
        blocks = layer_blocks(self._context.observation().layers, self._model.layers, n)
        columns = [row_digests(block.data, len(block.data) // block.rows) for block in blocks]
        size = 4 * self._model.vocabulary
        columns.append([row_digests(self._context.logits(i), size)[0] for i in range(n)])
        self._context.forget(0)
        return columns

    def _evaluate(self, ids: Sequence[int], first: int) -> None:
        n = len(ids)
        self._context.evaluate(Rows(ids, range(first, first + n), (0,) * n, (True,) * n))

    def close(self) -> None:
        self._context.close()


def _floors(
    model: Model, threads: int, top: int, min_floor: int, on_rows: Callable[[int], None]
) -> list[int]:
    """Return the tested sizes, ascending, from which on all rows equal the largest batch's."""
    # A batch of the largest size is the reference itself.
    sizes = [n for n in SIZES if n < top]
    exact = dict.fromkeys(sizes, True)
    rows = _Rows(model, threads, top)
    for ids, tried in (
        (random_ids("boundary", top, model.vocabulary), sizes),
        (text_ids(model, min(128, top)), [n for n in sizes if n in _TEXT_SIZES]),
    ):
        if not ids:
            continue
        reference = rows.digests(ids)
        on_rows(len(ids))
        for n in tried:
            prefix = _PREFIX if _PREFIX + n <= len(ids) else 0
            found = rows.digests(ids[: prefix + n], prefix)
            on_rows(prefix + n)
            exact[n] = exact[n] and all(
                a == b[prefix : prefix + n] for a, b in zip(found, reference, strict=True)
            )
    rows.close()
    floors: list[int] = []
    for n in reversed(sizes):
        if not exact[n]:
            break
        floors.insert(0, n)
    return [n for n in floors if min_floor <= n <= min(MAX_FLOOR, top // 4)]


def _never(_token: int) -> bool:
    """No end of generation: a model that stops at once would leave nothing to compare."""
    return False


def _root(
    model: Model,
    plan: Plan,
    trial: _Trial,
    claimed: Sequence[int] | None,
    on_rows: Callable[[int], None],
) -> tuple[bytes, tuple[int, ...], int]:
    """Return (state root, ids, nanoseconds of decode or pass) of a generation or of a pass."""
    tree = StateTree(_BLIND, model.layers, len(trial.prompt))
    execution = Execution(model, plan, len(trial.prompt), Evidence(tree))
    sampler = Sampler(0, None)
    marks = [time.monotonic_ns()]
    done = [0]

    def report(rows: int, _total: int) -> None:
        on_rows(rows - done[0])
        done[0] = rows

    if claimed is None:

        def on_token(index: int, _token: int) -> None:
            on_rows(1)
            if index == 0:
                marks[0] = time.monotonic_ns()

        ids = generate(
            execution, _never, plan, trial.prompt, trial.generated, sampler, on_token, report
        )
    else:
        ids = re_execute(execution, plan, trial.prompt, claimed, sampler, report)
    spent = time.monotonic_ns() - marks[0]
    execution.close()
    return tree.root(), ids, max(1, spent)


def _trials(model: Model, top: int) -> list[_Trial]:
    # A bare token, ordinary text, and a prompt whose generation crosses 256 cells.
    long = max(0, min(250, top - 16))
    trials = [
        _Trial(random_ids("bare", 1, model.vocabulary), 8),
        _Trial(text_ids(model, min(37, top // 2)), 24),
        _Trial(random_ids("long", long, model.vocabulary), 16),
    ]
    return [trial for trial in trials if trial.prompt]


def _schedule_holds(
    model: Model, threads: int, row_class: RowClass, on_rows: Callable[[int], None]
) -> tuple[bool, int, int]:
    """Return (holds, decode speed, pass speed), speeds in tokens per 1000 seconds."""
    decode = batched = 0
    for trial in _trials(model, row_class.max_rows):
        cells = context_cells(len(trial.prompt), trial.generated, row_class)
        plan = Plan(ROW_CLASS, row_class, cells, threads)
        root, ids, spent = _root(model, plan, trial, None, on_rows)
        if len(ids) > 1:
            decode = (len(ids) - 1) * 10**12 // spent
        narrow = RowClass(row_class.floor, max(37, 2 * row_class.floor))
        for other in (plan, Plan(ROW_CLASS, narrow, cells, threads)):
            passed, derived, spent = _root(model, other, trial, ids, on_rows)
            if passed != root or derived != ids:
                return False, 0, 0
            if other is plan:
                batched = (len(trial.prompt) + len(ids) - 1) * 10**12 // spent
    return True, decode, batched


def run_calibrate(job: CalibrateJob, reporter: Reporter) -> dict[str, JSONValue]:
    """Return {"floor", "max_rows", "layers", "decode_speed", "prefill_speed", "reason"}.

    ``floor`` is 0 when no class is exact under this knob setting, and ``reason`` says why.
    """
    engine = Engine(job.setup, job.model_fd, reporter)
    model = engine.model
    top = min(SIZES[-1], model.context_train)
    expected = (
        sum(n for n in SIZES if n < top) + _PREFIX * 26 + top + sum(_TEXT_SIZES) + 128 + 3 * 380
    )
    done = [0]
    progress = reporter.progress("calibrating")

    def on_rows(rows: int) -> None:
        done[0] += rows
        progress(min(done[0], expected - 1), expected)

    result: dict[str, JSONValue] = {
        "floor": 0,
        "max_rows": top,
        "layers": model.layers,
        "decode_speed": 0,
        "prefill_speed": 0,
        "reason": "the bits of a row depend on how many rows its batch has, at every size",
    }
    for floor in _floors(model, engine.threads, top, job.min_floor, on_rows):
        row_class = RowClass(floor, top)
        holds, decode, batched = _schedule_holds(model, engine.threads, row_class, on_rows)
        if holds:
            speeds = {"decode_speed": decode, "prefill_speed": batched}
            return result | {"floor": floor, "reason": ""} | speeds
        result["reason"] = "a padded generation and a batched pass differ"
    return result
