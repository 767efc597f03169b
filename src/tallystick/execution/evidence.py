"""What a run's evidence is: which parts, gathered when, and what it commits to.

Under `sequential` everything is gathered live, step by step. Under `row-class` states and chosen
experts are live, and whatever depends on the shape of batches comes from the sealing pass, whose
chunks are canonical (docs/spec/execution.md#evidence).
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from tallystick.canonical.hashing import format_digest
from tallystick.compute.rules import RULES_V3
from tallystick.contracts.generation import Generation
from tallystick.contracts.request import InferenceRun
from tallystick.contracts.runtime import SEQUENTIAL
from tallystick.engine.port import ModelSummary, NodeReading, Watch
from tallystick.errors import EvidenceError, InputError, RunFailedError
from tallystick.evidence.adapter.collector import Collector, StepInfo
from tallystick.evidence.adapter.nodes import ModelFigures
from tallystick.evidence.gemm_trace import gemm_root
from tallystick.evidence.observed import ObservedEvidence, encode_observed
from tallystick.evidence.routes import (
    ROUTE_ID_BYTES,
    ExpertRoutes,
    RouteBuilder,
    encode_routes,
    last_layer_from,
    route_rows,
)
from tallystick.evidence.state_tree import StateTree, leaf_count


@dataclass(frozen=True, slots=True)
class Gathered:
    """The finished evidence of one execution; None is what was not gathered."""

    tree: StateTree | None = None
    routes: ExpertRoutes | None = field(default=None, repr=False)
    observed: ObservedEvidence | None = None


class StepSink(Protocol):
    """Takes the evaluated nodes of each step, to write them down."""

    @property
    def reads(self) -> Literal["nodes", "products"]:
        """What it has to be given."""

    def step(self, info: StepInfo, readings: Sequence[NodeReading]) -> None:
        """Take one evaluation. Raises RunFailedError when it is more than fits."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one execution gathers, filled batch by batch; None is what it does not gather.

    ``experts`` are the model's: there where ``routes`` are. ``reads`` is what ``graph`` is given.
    What goes to ``sink`` is no evidence itself.
    """

    tree: StateTree | None = None
    routes: RouteBuilder | None = None
    experts: ModelFigures | None = None
    graph: Collector | None = None
    reads: Literal["nodes", "products"] = "nodes"
    sink: StepSink | None = None

    @property
    def watch(self) -> Watch:
        """What has to be watched for it."""
        return Watch(
            rows="none" if self.tree is None else "layers",
            routes="none" if self.routes is None else "experts",
            graph=self._graph_watch,
        )

    @property
    def _graph_watch(self) -> Literal["none", "nodes", "products"]:
        asked = set() if self.graph is None else {self.reads}
        if self.sink is not None:
            asked.add(self.sink.reads)
        if not asked:
            return "none"
        return "products" if "products" in asked else "nodes"

    def finish(self) -> Gathered:
        """Return the evidence once every batch was evaluated. Raises RunFailedError for none."""
        with as_failed_run():
            return Gathered(
                self.tree,
                None if self.routes is None else self.routes.finish(),
                None if self.graph is None else self.graph.finish().evidence,
            )


@dataclass(frozen=True, slots=True)
class EvidencePlan:
    """Which evidence a run asked for, of which model.

    ``credential_id`` (32 bytes) is the worker's; with None no root is bound to a worker.
    """

    run: InferenceRun = field(repr=False)
    prompt_tokens: int
    figures: ModelFigures
    credential_id: bytes | None

    @property
    def sealed(self) -> bool:
        """Whether a part of it comes from a sealing pass."""
        return self.graph and not self._sequential

    @property
    def graph(self) -> bool:
        """Whether graphs are part of it."""
        return self._asked("graph", "gemm")

    def unbound(self) -> EvidencePlan:
        """Return the same plan without a root that is bound to the worker."""
        return replace(self, credential_id=None)

    def live(self) -> Evidence:
        """Return what the generation gathers."""
        if not self.sealed:
            return self.whole()
        return Evidence(*self._rows("experts" if self._asked("states") else "none"))

    def whole(self) -> Evidence:
        """Return what a pass over the finished run gathers: every part."""
        rows = self._rows("experts" if self._asked("states", "gemm") else "none")
        if not self.graph:
            return Evidence(*rows)
        if self._asked("gemm"):
            return Evidence(*rows, Collector(self.figures, "products"), "products")
        return Evidence(*rows, Collector(self.figures, "nothing"), "nodes")

    def leaves(self, generated: int) -> int:
        """Return how many rows of states a run with ``generated`` tokens commits to."""
        if not self._asked("states"):
            return 0
        return leaf_count(self.prompt_tokens, generated, self.figures.layers)

    def route_bytes(self, generated: int) -> int:
        """Return how many bytes of chosen experts a run with ``generated`` tokens has."""
        if not (self.figures.experts and self._asked("states", "gemm")):
            return 0
        layers, prompt = self.figures.layers, self.prompt_tokens
        rows = route_rows(layers, prompt, generated, last_from=self._routes_from)
        return rows * self.figures.used * ROUTE_ID_BYTES

    def require_whole(self, gathered: Gathered, generated: int) -> None:
        """Require that ``gathered`` covers a run with ``generated`` tokens, and nothing else.

        Raises RunFailedError for a row, a layer or a position too few or too many.
        """
        layers, prompt = self.figures.layers, self.prompt_tokens
        counts = []
        if gathered.tree is not None:
            expected = leaf_count(prompt, generated, layers)
            counts.append(("rows of states", expected, gathered.tree.count))
        if gathered.routes is not None:
            expected = route_rows(layers, prompt, generated, last_from=self._routes_from)
            counts.append(("expert routes", expected, gathered.routes.rows))
        if gathered.observed is not None:
            found = gathered.observed.schedule.tokens
            counts.append(("observed positions", prompt + generated - 1, found))
        for what, needed, there in counts:
            if needed != there:
                raise RunFailedError(
                    f"this run has another number of {what} than its tokens have",
                    expected=str(needed),
                    found=str(there),
                )

    @property
    def _routes_from(self) -> int:
        """The first position at which the last layer's experts are due."""
        return last_layer_from(self.run.policy, self.prompt_tokens)

    @property
    def _sequential(self) -> bool:
        return self.run.policy == SEQUENTIAL

    def _asked(self, *parts: str) -> bool:
        return not set(parts).isdisjoint(self.run.evidence)

    def _rows(
        self, routes: Literal["none", "experts"]
    ) -> tuple[StateTree | None, RouteBuilder | None, ModelFigures]:
        tree = None
        if "states" in self.run.evidence:
            blind = bytes.fromhex(self.run.blind)
            tree = StateTree(
                blind, self.figures.layers, self.prompt_tokens, credential_id=self.credential_id
            )
        builder = None
        figures = self.figures
        if figures.experts and routes == "experts":
            builder = RouteBuilder(
                figures.layers, figures.experts, figures.used, last_from=self._routes_from
            )
        return tree, builder, figures


def figures_of(model: ModelSummary) -> ModelFigures:
    """Return how many layers and experts a model has. Raises InputError for malformed metadata."""
    entries = {entry.key: entry.value for entry in model.metadata}
    family = entries.get("general.architecture", "")
    experts = _number(entries, f"{family}.expert_count")
    used = _number(entries, f"{family}.expert_used_count") if experts else 0
    return ModelFigures(model.layers, experts, used)


def _number(entries: Mapping[str, str], key: str) -> int:
    text = entries.get(key, "0")
    if not (text.isascii() and text.isdigit()):
        raise InputError("the model's metadata has a number that is none", found=key[:100])
    return int(text)


@contextlib.contextmanager
def as_failed_run() -> Iterator[None]:
    """Gather evidence in the body: an EvidenceError there becomes a RunFailedError.

    What an engine shows is no evidence yet: the run has failed, and nothing was found wanting.
    """
    try:
        yield
    except EvidenceError as error:
        raise RunFailedError(
            f"this run's evidence could not be gathered: {error.message}",
            expected=error.expected,
            found=error.found,
            hint=error.hint,
        ) from None


def require_equal(live: Gathered, sealed: Gathered) -> None:
    """Hold what a generation showed to what a pass over it shows.

    Raises RunFailedError for a part of both that differs.
    """
    for what, mine, theirs in (
        ("state root", _root(live), _root(sealed)),
        ("set of expert routes", live.routes, sealed.routes),
        ("schedule or trace", live.observed, sealed.observed),
    ):
        if mine is not None and theirs is not None and mine != theirs:
            raise RunFailedError(
                f"self-check failed: the batched pass gave another {what} than the generation",
                hint="recalibrate the model: tallystick model calibrate",
            )


def _root(gathered: Gathered) -> bytes | None:
    return None if gathered.tree is None else gathered.tree.root()


def merged(live: Gathered, sealed: Gathered) -> Gathered:
    """Return the live evidence, and what only the sealing pass could show."""
    return Gathered(
        live.tree or sealed.tree, live.routes or sealed.routes, live.observed or sealed.observed
    )


def commit(generation: Generation, gathered: Gathered, blind: bytes) -> Generation:
    """Return ``generation`` with the commitments to ``gathered``, and what opens them."""
    tree, routes, observed = gathered.tree, gathered.routes, gathered.observed
    if tree is not None:
        generation = replace(
            generation,
            state_root=format_digest(tree.root()),
            state_leaves=tree.count,
            leaf_checks=base64.b64encode(tree.leaf_checks).decode(),
            worker_state_root=format_digest(tree.worker_root()),
        )
    if routes is not None:
        generation = replace(
            generation,
            expert_route_root=format_digest(routes.root(blind)),
            routes=base64.b64encode(encode_routes(routes)).decode(),
        )
    if observed is not None:
        trace = observed.trace
        generation = replace(
            generation,
            schedule_commitment=format_digest(observed.schedule.commitment(RULES_V3.ruleset_id)),
            schedule_events=observed.schedule.events,
            gemm_trace_root=None if trace is None else format_digest(gemm_root(blind, trace)),
            trace_events=observed.trace_events,
            observed_evidence=base64.b64encode(encode_observed(observed)).decode(),
        )
    return generation
