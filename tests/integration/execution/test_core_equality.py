"""Two honest runs of one request give the same core, whatever the threads and the observer are."""

from __future__ import annotations

import base64
import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import blake3
import pytest

from tallystick.canonical.hashing import domain_hash, ids_bytes
from tallystick.canonical.json import jcs
from tallystick.contracts.codec import encode_bytes
from tallystick.errors import UsageError
from tallystick.worker.run import RunResult
from tests.support.runs import EngineHome, HonestRun, output_of

Endless = Callable[[str], Path]

PROMPT = "A tally stick 割符 is split in two."
MODELS = ("llama-q8_0", "hybrid-q4k")


def core_bytes(result: RunResult) -> bytes:
    return encode_bytes(result.receipt.core)


@pytest.mark.parametrize("name", MODELS)
def test_threads_change_nothing(name: str, engine_home: EngineHome, endless_model: Endless) -> None:
    model = endless_model(name)
    first = engine_home.run(model, PROMPT, 12, temperature="0.8", seed=5, threads=1)
    second = engine_home.run(model, PROMPT, 12, temperature="0.8", seed=5, threads=2)
    assert core_bytes(first) == core_bytes(second)
    assert first.core_digest == second.core_digest
    assert first.receipt_digest != second.receipt_digest
    assert [r.receipt.observed.host.threads for r in (first, second)] == [1, 2]


@pytest.mark.parametrize("name", MODELS)
def test_the_live_states_are_the_sealed_ones(
    name: str, engine_home: EngineHome, endless_model: Endless
) -> None:
    # The self-check recomputes the root in one batched pass and compares it with the live one.
    model = endless_model(name)
    live = engine_home.run(model, PROMPT, 12)
    sealed = engine_home.run(model, PROMPT, 12, self_check="yes")
    assert core_bytes(live) == core_bytes(sealed)
    assert live.receipt.observed.self_check == "not_run"
    assert sealed.receipt.observed.self_check == "passed"


def test_both_observers_see_the_same(
    engine_home: EngineHome, endless_model: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        pytest.skip("there is no C compiler to build the observer with")
    model = endless_model("hybrid-q4k")
    compiled = engine_home.run(model, PROMPT, 12)
    monkeypatch.setenv("TALLYSTICK_OBSERVER", "python")
    python = engine_home.run(model, PROMPT, 12)
    assert core_bytes(compiled) == core_bytes(python)
    assert [r.receipt.observed.host.observer for r in (compiled, python)] == ["compiled", "python"]
    assert engine_home.replay(compiled.directory, model).verified


def test_a_changed_request_gives_another_core(
    engine_home: EngineHome, endless_model: Endless
) -> None:
    model = endless_model("llama-q8_0")
    digests = {
        engine_home.run(model, prompt, n, temperature=temperature, seed=seed).core_digest
        for prompt, n, temperature, seed in (
            (PROMPT, 6, "0", None),
            (PROMPT + " ", 6, "0", None),
            (PROMPT, 7, "0", None),
            (PROMPT, 6, "0.5", 1),
            (PROMPT, 6, "0.5", 2),
        )
    }
    assert len(digests) == 5


def test_evidence_none(engine_home: EngineHome, endless_model: Endless) -> None:
    model = endless_model("llama-q8_0")
    with_states = engine_home.run(model, PROMPT, 12)
    result = engine_home.run(model, PROMPT, 12, evidence=())
    evidence = result.receipt.core.evidence
    assert (evidence.level, evidence.state_root, evidence.state_leaves) == ("none", None, 0)
    assert result.receipt.observed.host.observer == "none"
    assert result.output == with_states.output
    report = engine_home.replay(result.directory, model)
    assert (report.states, report.exact, report.verified) == ("not_committed", 12, True)


def test_sequential(engine_home: EngineHome, endless_model: Endless) -> None:
    model = endless_model("llama-q8_0")
    result = engine_home.run(model, PROMPT, None, policy="sequential")
    core = result.receipt.core
    assert (core.sampled_tokens, core.context_tokens) == (2, 4096)
    assert (core.runtime_class.policy, core.runtime_class.knobs) == ("sequential", ())
    assert core.runtime_class.decode_class.max_rows == 1
    assert core.evidence.level == "gemm_traced"
    assert result.receipt.observed.host.threads == 1
    again = engine_home.run(model, PROMPT, None, policy="sequential", threads=2)
    assert core_bytes(result) == core_bytes(again)
    report = engine_home.replay(result.directory, model)
    assert (report.exact, report.states, report.verified) == (2, "not_committed", True)
    assert (report.routes, report.schedule, report.products) == ("not_committed", "equal", "equal")


@pytest.mark.parametrize("changes", [{"temperature": "0.5"}, {"temperature": "1", "seed": 3}])
def test_sequential_is_greedy(
    changes: dict[str, object], engine_home: EngineHome, toy_llama: Path
) -> None:
    with pytest.raises(UsageError, match="greedy"):
        engine_home.run(toy_llama, PROMPT, 2, policy="sequential", **changes)


def digests_of(data: bytes) -> Iterator[bytes]:
    """Every plain digest that someone with a guess could compare, as text and as raw bytes."""
    for raw in (
        hashlib.sha256(data).digest(),
        hashlib.blake2b(data).digest(),
        hashlib.sha1(data, usedforsecurity=False).digest(),
        hashlib.md5(data, usedforsecurity=False).digest(),
        blake3.blake3(data).digest(),
        *(domain_hash(f"tallystick.{name}", 1, [data]) for name in ("prompt", "output", "request")),
    ):
        yield raw
        yield raw.hex().encode()
        yield base64.b64encode(raw).rstrip(b"=")


def test_public_files_tell_nothing_to_someone_without_the_blind(
    engine_home: EngineHome, endless_model: Endless
) -> None:
    model = endless_model("llama-q8_0")
    result = engine_home.run(model, PROMPT, 12)
    opening = HonestRun.load(result.directory).opening
    public = {
        path.name: path.read_bytes()
        for path in result.directory.iterdir()
        if not path.name.endswith(".bundle")
    }
    assert len(public) == 8
    # The bundle's public part stands in clear: it is as public as the other files are.
    bundle = next(result.directory.glob("*.bundle")).read_bytes()
    public["sealed bundle"] = bundle
    output = output_of(opening)
    private = [
        PROMPT.encode(),
        output,
        base64.b64encode(PROMPT.encode()),
        base64.b64encode(output),
        jcs(PROMPT),
        *(ids_bytes(ids) for ids in (opening.prompt_ids, opening.sampled_ids)),
        *(jcs(list(ids)) for ids in (opening.prompt_ids, opening.sampled_ids)),
        opening.request.blind.encode(),
        bytes.fromhex(opening.request.blind),
        opening.leaf_checks.encode(),
    ]
    for value in private:
        for needle in (value, *digests_of(value)):
            assert [name for name, data in public.items() if needle in data] == []
    # What does stand there would not be found by accident: the same search finds it in the opening.
    whole = encode_bytes(opening)
    assert jcs(PROMPT) in whole
    assert jcs(list(opening.sampled_ids)) in whole


def test_a_public_run_discloses_two_digests(
    engine_home: EngineHome, endless_model: Endless
) -> None:
    result = engine_home.run(endless_model("llama-q8_0"), PROMPT, 4, disclosure="public")
    disclosed = result.receipt.core.disclosed
    assert disclosed is not None
    assert disclosed.prompt_digest == f"sha256:{hashlib.sha256(PROMPT.encode()).hexdigest()}"
    assert disclosed.output_digest == f"sha256:{hashlib.sha256(result.output).hexdigest()}"


def test_another_holder_gets_another_core(
    engine_home: EngineHome, endless_model: Endless, tmp_path: Path
) -> None:
    # The commit key makes the blind: without it the same prompt does not give the same core.
    model = endless_model("llama-q8_0")
    first = engine_home.run(model, PROMPT, 4)
    other = engine_home.copied_to(tmp_path / "other")
    second = other.run(model, PROMPT, 4)
    assert first.output == second.output
    assert first.core_digest != second.core_digest
    for name in ("request_digest", "prompt_commitment", "output_commitment"):
        assert getattr(first.receipt.core, name) != getattr(second.receipt.core, name)
