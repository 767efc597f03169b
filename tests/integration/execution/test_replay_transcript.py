"""The transcript of a pass: a strict reader takes it, and it shows what the sealed bundle holds."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tallystick.audit import replay as replaying
from tallystick.audit.replay import TranscriptRequest
from tallystick.audit.transcript import check_transcript
from tallystick.contracts.generation import Generation
from tallystick.contracts.runtime import RowClass
from tallystick.errors import InputError, UsageError
from tallystick.evidence.adapter.gates import gate_of
from tallystick.evidence.adapter.transcript import AdaptedTranscript, adapt_transcript
from tallystick.evidence.chunks import chunk_sizes
from tallystick.evidence.observed import decode_observed, encode_observed
from tallystick.evidence.observer.records import MAX_EVENTS, MAX_TRANSCRIPT
from tallystick.evidence.observer.sealing import SealingHeader
from tallystick.evidence.routes import encode_routes
from tallystick.execution.jobs import ReplayJob
from tallystick.execution.launch import find_engine, run_job
from tallystick.execution.observe import ObserveOptions, observe
from tallystick.models.registry import open_model, resolve
from tests.support.documents import example_run
from tests.support.runs import EngineHome, HonestRun

Endless = Callable[[str], Path]

PROMPT: Final = "the quick brown fox quick"
BLIND: Final = "5b" * 32
CLAIMED: Final = (7, 9, 11, 7, 9, 11, 7, 9)


def executed(
    home: EngineHome,
    model: Path,
    row_class: RowClass,
    *parts: str,
    observer: str = "sketch",
    prompt: str = PROMPT,
) -> tuple[Generation, list[bytes]]:
    """Execute claimed ids in a child, and return what it found and the pieces that it sent."""
    engine = find_engine(home.path)
    run = replace(
        example_run(),
        policy="row-class",
        evidence=parts,
        prompt=prompt,
        chat=None,
        add_special=True,
        parse_special=True,
        temperature="0",
        seed=None,
        max_tokens=len(CLAIMED),
        blind=BLIND,
    )
    pieces: list[bytes] = []
    with open_model(resolve(str(model), home.path)) as opened:
        job = ReplayJob(
            engine.setup(2), opened.fd, run, row_class, CLAIMED, "11" * 32, "none", observer, "m"
        )
        outcome = run_job(job, (), on_text=pieces.append, model_fd=opened.fd)
    return outcome.generation(), pieces


def adapted_of(home: EngineHome, model: Path | str, pieces: list[bytes]) -> AdaptedTranscript:
    facts = resolve(str(model), home.path).facts
    return adapt_transcript(pieces, gate_of(facts), bytes.fromhex(BLIND))


@pytest.mark.parametrize(
    ("name", "row_class"),
    [
        ("llama-q8_0", RowClass(2, 512)),  # one chunk
        ("llama-q8_0", RowClass(2, 5)),  # 5, 5, 2
        ("hybrid-q8", RowClass(2, 512)),
        ("hybrid-q8", RowClass(2, 5)),
        ("hybrid-q4k", RowClass(3, 4)),  # too narrow for chunks: one row and two of padding each
        ("moe-q8", RowClass(2, 4)),
    ],
)
def test_a_transcript_shows_the_evidence_of_its_pass(
    name: str, row_class: RowClass, engine_home: EngineHome, endless_model: Endless
) -> None:
    model = endless_model(name)
    found, pieces = executed(engine_home, model, row_class, "states", "gemm")
    adapted = adapted_of(engine_home, model, pieces)
    assert encode_observed(adapted.evidence) == base64.b64decode(found.observed_evidence)
    routes = b"" if adapted.routes is None else encode_routes(adapted.routes)
    assert routes == base64.b64decode(found.routes)
    assert (routes == b"") == (name == "llama-q8_0")
    assert f"sha256:{(adapted.gemm_root or b'').hex()}" == found.gemm_trace_root
    read = adapted.transcript
    positions = len(found.prompt_ids) + len(CLAIMED) - 1
    assert read.sealing_steps == len([*chunk_sizes(positions, row_class)])
    assert (read.prefill_steps, read.decode_steps) == (0, 0)
    assert (read.result.prompt_token_ids, read.result.generated_token_ids) == (
        found.prompt_ids,
        CLAIMED,  # which do not follow: what a pass was fed is what it computed with
    )


@pytest.mark.parametrize("parts", [(), ("states",), ("graph",), ("gemm",), ("states", "gemm")])
@pytest.mark.parametrize("observer", ["graph", "sketch"])
def test_a_transcript_needs_no_evidence_and_changes_none(
    parts: tuple[str, ...], observer: str, engine_home: EngineHome, endless_model: Endless
) -> None:
    model, row_class = endless_model("moe-q8"), RowClass(2, 8)
    found, pieces = executed(engine_home, model, row_class, *parts, observer=observer)
    silent, nothing = executed(engine_home, model, row_class, *parts, observer="none")
    assert nothing == []
    same = replace(
        found, timings=silent.timings, rss_before=silent.rss_before, platform=silent.platform
    )
    assert replace(same, host=silent.host) == silent
    adapted = adapted_of(engine_home, model, pieces)
    whole, _ = executed(engine_home, model, row_class, "gemm", observer="none")
    if observer == "sketch":
        assert encode_observed(adapted.evidence) == base64.b64decode(whole.observed_evidence)
    else:
        assert adapted.evidence.trace is None
        assert adapted.routes is None
        assert adapted.transcript.routes == 0
        observed = decode_observed(base64.b64decode(whole.observed_evidence))
        assert adapted.evidence.schedule == observed.schedule


def replayed(
    home: EngineHome, place: Path, model: Path | str, observer: str = "sketch"
) -> list[bytes]:
    lines: list[bytes] = []
    report = home.replay(place, model, transcript=TranscriptRequest(observer, lines.append))
    assert report.verified, report.difference
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    return lines


def require_the_bundles(home: EngineHome, place: Path, model: Path | str) -> AdaptedTranscript:
    """Hold a transcript to what the sealed bundle of the run holds, byte by byte."""
    honest = HonestRun.load(place)
    lines = replayed(home, place, model)
    facts = resolve(str(model), home.path).facts
    blind = bytes.fromhex(honest.opening.request.blind)
    adapted = adapt_transcript(lines, gate_of(facts), blind)
    assert honest.observed is not None
    assert encode_observed(adapted.evidence) == encode_observed(honest.observed)
    routes = None if adapted.routes is None else encode_routes(adapted.routes)
    assert routes == honest.private.expert_routes
    assert adapted.transcript.result.generated_token_ids == honest.opening.sampled_ids
    return adapted


@pytest.mark.parametrize("name", ["llama-q8_0", "hybrid-q8"])
def test_the_sealed_bundle_of_a_toy_holds_the_same(
    name: str, engine_home: EngineHome, endless_model: Endless
) -> None:
    model = endless_model(name)
    place = engine_home.run(model, PROMPT, 6, evidence=("states", "gemm")).directory
    adapted = require_the_bundles(engine_home, place, model)
    header = adapted.transcript.header
    assert isinstance(header, SealingHeader)
    core = HonestRun.load(place).receipt.core
    policy = header.execution_policy
    assert (policy.row_floor, policy.row_max) == (
        core.runtime_class.decode_class.floor,
        core.runtime_class.decode_class.max_rows,
    )
    assert (policy.n_ctx, policy.sampler) == (core.context_tokens, "greedy")


def test_the_sealed_bundle_of_a_real_model_holds_the_same(
    engine_home: EngineHome, smollm2: str
) -> None:
    place = engine_home.run(
        smollm2, "The capital of France is", 5, evidence=("states", "gemm")
    ).directory
    require_the_bundles(engine_home, place, smollm2)


def test_a_sequential_replay_writes_what_observe_writes(
    engine_home: EngineHome, endless_model: Endless
) -> None:
    model = endless_model("hybrid-q8")
    place = engine_home.run(model, PROMPT, 2, policy="sequential").directory
    require_the_bundles(engine_home, place, model)
    for observer in ("graph", "sketch"):
        seen: list[bytes] = []
        options = ObserveOptions(prompt=PROMPT, observer=observer, max_tokens=2)
        observe(str(model), options, on_line=seen.append, home=engine_home.path)
        assert replayed(engine_home, place, model, observer) == seen


def test_a_transcript_is_held_against_the_model_again(
    engine_home: EngineHome, endless_model: Endless, tmp_path: Path
) -> None:
    model = endless_model("hybrid-q8")
    place = engine_home.run(model, PROMPT, 6).directory
    file = tmp_path / "pass.jsonl"
    file.write_bytes(b"".join(replayed(engine_home, place, model)))
    report = check_transcript(file, str(model), home=engine_home.path)
    assert (report.prefill_tokens, report.generated_tokens) == (5, 6)
    assert report.products == 411
    assert report.routes == 39 * 10 + 6


def test_what_no_transcript_is_written_of(
    engine_home: EngineHome, endless_model: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = endless_model("llama-q8_0")
    place = engine_home.run(model, PROMPT, 3).directory
    lines: list[bytes] = []
    with pytest.raises(UsageError, match="unknown observer"):
        engine_home.replay(place, model, transcript=TranscriptRequest("off", lines.append))
    monkeypatch.setattr(replaying, "CONTEXT_TOKENS", 7)
    with pytest.raises(InputError, match="more tokens than a transcript") as caught:
        engine_home.replay(place, model, transcript=TranscriptRequest("graph", lines.append))
    assert caught.value.found == "8"
    assert lines == []


def test_a_transcript_that_would_be_too_large_is_not_begun(
    engine_home: EngineHome, endless_model: Endless
) -> None:
    model, narrow = endless_model("hybrid-q8"), RowClass(3, 4)
    prompt = " ".join(["quick"] * 80)
    with pytest.raises(UsageError, match="transcript of this pass would be larger") as caught:
        executed(engine_home, model, narrow, observer="graph", prompt=prompt)
    assert caught.value.expected == f"at most {MAX_EVENTS} events and {MAX_TRANSCRIPT} bytes"
    assert caught.value.hint == "replay this run without a transcript"
