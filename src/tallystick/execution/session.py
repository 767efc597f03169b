"""Generation and re-execution in an engine child: the same loop, fed by samples or by claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tallystick.contracts.runtime import SEQUENTIAL, RowClass
from tallystick.engine.port import Context, ContextSpec, Model, ObservedContext, Watch
from tallystick.execution import sampling
from tallystick.execution.evidence import Evidence
from tallystick.execution.gather import Gatherer
from tallystick.execution.schedule import Chunk, batch, chunks

OnToken = Callable[[int, int], None]  # (index, token id)
OnRows = Callable[[int, int], None]  # (rows done, rows in all)


@dataclass(frozen=True, slots=True)
class Sampler:
    """How a token follows from a row of logits. ``temperature`` in 1/10000; 0 is greedy."""

    temperature: int
    seed: int | None

    def choose(self, logits: memoryview, position: int) -> int:
        """Return the token for the logits row at ``position`` of the sequence."""
        if self.temperature == 0:
            return sampling.greedy(logits)
        assert self.seed is not None
        return sampling.seeded(logits, self.temperature, self.seed, position)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that fixes a schedule."""

    policy: str
    row_class: RowClass
    cells: int
    threads: int

    def context_spec(self) -> ContextSpec:
        """Return the context that this plan opens."""
        return ContextSpec(
            cells=self.cells,
            # The engine makes no batch larger than its context.
            max_rows=min(self.row_class.max_rows, self.cells),
            sequences=self.row_class.floor,
            threads=1 if self.policy == SEQUENTIAL else self.threads,
        )


class Execution:
    """One fresh sequence in one context, and the evidence that is gathered of it."""

    def __init__(self, model: Model, plan: Plan, prompt_tokens: int, evidence: Evidence) -> None:
        self._plan = plan
        self._outputs_from = prompt_tokens - 1
        self._gatherer = Gatherer(evidence, model, self._outputs_from, plan.policy)
        self._observed: ObservedContext | None = None
        self._context: Context
        spec, watch = plan.context_spec(), evidence.watch
        # A sequential run is observed in any case: that flash attention is off and the cache is
        # F16 can be seen in its graphs only.
        if watch == Watch() and plan.policy != SEQUENTIAL:
            self._context = model.open_context(spec)
        else:
            self._context = self._observed = model.open_observed(spec, watch)

    def evaluate(self, tokens: Sequence[int], chunk: Chunk) -> None:
        """Evaluate ``chunk``; ``tokens`` are its own."""
        plan = self._plan
        # Sequential runs ask for every row's logits, as the seed's runner does.
        outputs_from = 0 if plan.policy == SEQUENTIAL else self._outputs_from
        rows = batch(tokens, chunk, outputs_from, plan.row_class)
        self._context.evaluate(rows)
        if self._observed is not None:
            seen = self._observed.observation()
            self._gatherer.gather(seen, self._observed.logits, chunk, rows)
        for sequence in range(1, len(rows.tokens) - chunk.rows + 1):
            self._context.forget(sequence)

    def logits(self, row: int) -> memoryview:
        """Return the logits of row ``row`` of the last chunk."""
        return self._context.logits(row)

    def close(self) -> None:
        """Free the context."""
        self._context.close()


def generate(
    execution: Execution,
    is_end: Callable[[int], bool],
    plan: Plan,
    prompt: Sequence[int],
    limit: int,
    sampler: Sampler,
    on_token: OnToken,
    on_rows: OnRows,
) -> tuple[int, ...]:
    """Return the 1..``limit`` sampled ids; one for which ``is_end`` holds is the last."""
    total = len(prompt)
    row = 0
    for chunk in chunks(total, plan.row_class):
        execution.evaluate(prompt[chunk.first : chunk.end], chunk)
        on_rows(chunk.end, total)
        row = chunk.rows - 1
    sampled: list[int] = []
    while True:
        position = total - 1 + len(sampled)
        token = sampler.choose(execution.logits(row), position)
        sampled.append(token)
        on_token(len(sampled) - 1, token)
        if len(sampled) == limit or is_end(token):
            return tuple(sampled)
        execution.evaluate((token,), Chunk(position + 1, position + 2))
        row = 0


def re_execute(
    execution: Execution,
    plan: Plan,
    prompt: Sequence[int],
    claimed: Sequence[int],
    sampler: Sampler,
    on_rows: OnRows,
) -> tuple[int, ...]:
    """Feed prompt and claimed ids in the fewest batches; return what each logits row samples.

    ``result[i] != claimed[i]`` means that claim i does not follow from what was before it.
    """
    tokens = (*prompt, *claimed[:-1])
    first = len(prompt) - 1
    derived: list[int] = []
    for chunk in chunks(len(tokens), plan.row_class):
        execution.evaluate(tokens[chunk.first : chunk.end], chunk)
        derived += [
            sampler.choose(execution.logits(position - chunk.first), position)
            for position in range(max(first, chunk.first), chunk.end)
        ]
        on_rows(chunk.end, len(tokens))
    return tuple(derived)
