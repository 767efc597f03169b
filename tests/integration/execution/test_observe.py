"""Observed runs: the published census, no changed bit, the bounds before a run."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tallystick.errors import InputError, UsageError
from tallystick.evidence.observer.reader import Transcript, TranscriptReader
from tallystick.evidence.observer.records import (
    MAX_EVENTS,
    MAX_TRANSCRIPT,
    Event,
    GemmEvent,
    Result,
    Route,
    SketchEvent,
)
from tallystick.evidence.observer.sealing import Record
from tallystick.execution.observe import ObservedRun, ObserveOptions, observe
from tests.support.runs import EngineHome

FIVE_TOKENS = "the quick brown fox"  # and the BOS before them
THREE_TOKENS = "the quick"
LAYERS, PRODUCTS, USED = 40, 411, 8


@dataclass(frozen=True)
class Observed:
    """A run's own counts, its transcript's, and every record."""

    run: ObservedRun
    transcript: Transcript
    records: tuple[Record, ...]

    @property
    def result(self) -> Result:
        return self.transcript.result


def observed(
    home: EngineHome, model: Path, observer: str, prompt: str, n: int, **changes: Any
) -> Observed:
    reader = TranscriptReader()
    records: list[Record] = []
    options = ObserveOptions(prompt=prompt, observer=observer, max_tokens=n, **changes)
    run = observe(
        str(model),
        options,
        on_line=lambda line: records.extend(reader.feed(line)),
        home=home.path,
    )
    return Observed(run, reader.finish(), tuple(records))


@pytest.fixture(scope="module")
def hybrid(engine_home: EngineHome, toy_hybrid_q8: Path) -> Observed:
    return observed(engine_home, toy_hybrid_q8, "sketch", FIVE_TOKENS, 2)


def test_the_published_census(hybrid: Observed) -> None:
    read = hybrid.transcript
    assert (read.prefill_steps, read.decode_steps) == (5, 1)
    assert (read.gemms, read.routes) == (2466, 240)
    assert hybrid.run == ObservedRun(read.events, 240, 5, 2)
    products = [record for record in hybrid.records if isinstance(record, SketchEvent)]
    per_step = Counter((event.phase, event.phase_step) for event in products)
    assert len(per_step) == 6
    assert {*per_step.values()} == {PRODUCTS}


def test_every_layer_routes_every_token(hybrid: Observed) -> None:
    routes = [record for record in hybrid.records if isinstance(record, Route)]
    places = [(route.position, route.layer) for route in routes]
    assert places == [(p, layer) for p in range(6) for layer in range(LAYERS)]
    assert {(route.expert_count, len(route.expert_ids)) for route in routes} == {(256, USED)}
    assert len({route.expert_ids for route in routes}) > 200


def test_sketches_are_of_what_was_computed(hybrid: Observed) -> None:
    products = [record for record in hybrid.records if isinstance(record, SketchEvent)]
    assert len({event.sketch.hex for event in products}) > 2000
    heads = [event for event in products if event.tensor.name == "result_output"]
    assert len(heads) == 6
    assert {event.sketch.elements for event in heads} == {64}
    # Among the products of a layer are some with fewer elements than a sketch has room for.
    small = [event for event in products if event.tensor.name == "shared_expert_gate-0"]
    assert {event.sketch.elements for event in small} == {1}


def test_expert_products_are_no_products(hybrid: Observed) -> None:
    experts = [
        record
        for record in hybrid.records
        if isinstance(record, Event) and record.tensor.op == "MUL_MAT_ID"
    ]
    assert len(experts) == 6 * 3 * LAYERS
    assert {event.categories for event in experts} == {("expert_gemm",)}


def test_another_length(engine_home: EngineHome, toy_hybrid_q8: Path) -> None:
    read = observed(engine_home, toy_hybrid_q8, "sketch", THREE_TOKENS, 1).transcript
    assert (read.prefill_steps, read.decode_steps) == (3, 0)
    assert (read.gemms, read.routes) == (3 * PRODUCTS, 3 * LAYERS)


def test_graph_mode_sees_the_same_graph_and_reads_nothing(
    hybrid: Observed, engine_home: EngineHome, toy_hybrid_q8: Path
) -> None:
    graph = observed(engine_home, toy_hybrid_q8, "graph", FIVE_TOKENS, 2)
    assert graph.transcript.events == hybrid.transcript.events
    assert graph.transcript.routes == 0
    assert graph.result == hybrid.result
    kinds = Counter(type(record) for record in graph.records)
    assert (kinds[GemmEvent], kinds[SketchEvent]) == (2466, 0)
    seen = [event.tensor for event in graph.records if isinstance(event, Event | GemmEvent)]
    other = [event.tensor for event in hybrid.records if isinstance(event, Event | SketchEvent)]
    assert seen == other


def test_an_unobserved_run_gives_the_same_ids(
    hybrid: Observed, engine_home: EngineHome, toy_hybrid_q8: Path
) -> None:
    off = observed(engine_home, toy_hybrid_q8, "off", FIVE_TOKENS, 2)
    assert len(off.records) == 2
    assert off.result.generated_token_ids == hybrid.result.generated_token_ids
    assert off.result.prompt_token_ids == hybrid.result.prompt_token_ids


def test_the_observer_in_python_writes_the_same(
    hybrid: Observed,
    engine_home: EngineHome,
    toy_hybrid_q8: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TALLYSTICK_OBSERVER", "python")
    assert observed(engine_home, toy_hybrid_q8, "sketch", FIVE_TOKENS, 2) == hybrid


@pytest.mark.parametrize("name", ["hybrid-q8", "kquant"])
def test_observing_changes_no_bit_of_the_logits(name: str, toy_model: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.traced_logits", toy_model(name)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[3],
    )
    digests = dict(line.split() for line in done.stdout.splitlines())
    assert digests.keys() == {"off", "graph", "sketch"}
    assert len({*digests.values()}) == 1


def test_a_sequential_run_gives_the_same_ids(engine_home: EngineHome, toy_llama: Path) -> None:
    seen = observed(engine_home, toy_llama, "sketch", FIVE_TOKENS, 4, output_bytes="emit")
    run = engine_home.run(toy_llama, FIVE_TOKENS, 4, policy="sequential")
    assert bytes(seen.result.output_bytes) == run.output
    assert len(seen.result.generated_token_ids) == run.receipt.core.sampled_tokens
    assert seen.transcript.routes == 0


def test_a_transcript_that_would_be_too_large(engine_home: EngineHome, toy_hybrid_q8: Path) -> None:
    lines: list[bytes] = []
    options = ObserveOptions(prompt=FIVE_TOKENS, observer="graph", max_tokens=1024)
    with pytest.raises(UsageError) as caught:
        observe(str(toy_hybrid_q8), options, on_line=lines.append, home=engine_home.path)
    assert lines == []
    assert caught.value.expected == f"at most {MAX_EVENTS} events and {MAX_TRANSCRIPT} bytes"
    assert caught.value.hint is not None
    largest = int(caught.value.hint.split()[1])
    assert 2 < largest < MAX_EVENTS // 3599 - 4


def test_a_prompt_beyond_the_context(engine_home: EngineHome, toy_llama: Path) -> None:
    def run(n: int) -> None:
        options = ObserveOptions(prompt="x" * 4092, observer="graph", max_tokens=n)
        observe(str(toy_llama), options, on_line=lambda line: None, home=engine_home.path)

    with pytest.raises(InputError, match="do not fit the context"):
        run(4)  # with the BOS one too many
    with pytest.raises(UsageError, match="would be larger"):
        run(3)
