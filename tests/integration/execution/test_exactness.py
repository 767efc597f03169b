"""Zero false alarms: whatever was run honestly is replayed bit for bit, on every kind of model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tallystick.attest.trust import TrustPolicy
from tallystick.errors import EvidenceError
from tests.support.runs import EngineHome, HonestRun
from tests.support.sets import STRANGER, TRUST

Endless = Callable[[str], Path]

CODE = 'def fit(a, b):\n\t"""Two halves."""\n\treturn [x for x in a if x in b]  # 🪵\n' * 3
# The toys have one token for each of these bytes, and here no BOS: a length is a count of tokens.
LETTERS = "zyxwvutsrq"


def letters(count: int) -> str:
    return (LETTERS * (count // len(LETTERS) + 1))[:count]


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt, how much to generate, and how to draw (None: greedily)."""

    name: str
    prompt: str
    n: int
    temperature: str = "0"
    seed: int | None = None


VARIED = (
    Case("one space", " ", 16),
    Case("one token", "z", 24),
    Case("two tokens, one generated", "zy", 1),
    Case("japanese", "日本の首都はどこですか。割符とは何か。", 24),
    Case("emoji, seeded", "🪵🧾👩‍👩‍👧 ✂️ 🇯🇵!", 24, "0.7", 1),
    Case("code", CODE, 24),
    Case("control characters", "\x01\x02\x07\b\t\n\r\x1b[31m\x7f\x85\u202e end", 16),
    Case("combining and right to left", "Cafe\u0301 שלום مرحبا ﷺ", 16, "1", 3),
    Case("repeated, crossing 256 cells", "the lazy dog " * 60, 24, "0.3", 4),
    Case("generation crosses 256 cells", letters(250), 20),
    Case("generation crosses 512 cells", letters(505), 20, "0.9", 5),
    Case("511 tokens", letters(511), 3),
    Case("512 tokens", letters(512), 3, "1.5", 6),
    Case("513 tokens", letters(513), 3),
    Case("few words, seeded", "割符 🪵 tally", 24, "1.75", 2**63),
    Case("1500 tokens", letters(1500), 4, "0.8", 7),
    Case("nearly greedy", "A tally stick", 24, "0.0001", 8),
    Case("as hot as it gets", "A tally stick", 24, "2", 2**64 - 1),
    Case("seed 0", "A tally stick", 24, "1.25", 0),
    Case("long generation", "Once upon a time", 96),
)
FEW = (
    Case("one token", "z", 24),
    Case("japanese, seeded", "日本の首都はどこですか。", 24, "0.8", 1),
    Case("several chunks", letters(530), 6),
)


def holds(home: EngineHome, model: Path | str, case: Case) -> HonestRun:
    """Run with two threads, replay with one: every token and every state is equal."""
    result = home.run(
        model, case.prompt, case.n, temperature=case.temperature, seed=case.seed, threads=2
    )
    report = home.replay(result.directory, model, threads=1)
    assert report.difference is None
    assert (report.states, report.exit_code) == ("equal", 0)
    core = result.receipt.core
    assert report.exact == report.sampled == core.sampled_tokens
    assert core.evidence.level == "state_committed"
    return HonestRun.load(result.directory)


@pytest.mark.parametrize("case", VARIED, ids=lambda case: case.name)
@pytest.mark.parametrize("name", ["llama-q8_0", "hybrid-q8", "hybrid-q4k"])
def test_varied_prompts(
    name: str, case: Case, engine_home: EngineHome, endless_model: Endless
) -> None:
    honest = holds(engine_home, endless_model(name), case)
    if case.temperature == "0":
        assert len(honest.opening.sampled_ids) == case.n
    if case.prompt.isascii() and case.prompt.startswith("z"):
        assert len(honest.opening.prompt_ids) == len(case.prompt)


@pytest.mark.parametrize("case", FEW, ids=lambda case: case.name)
@pytest.mark.parametrize("name", ["gemma3", "moe", "kquant", "qwen3"])
def test_other_architectures(
    name: str, case: Case, engine_home: EngineHome, endless_model: Endless
) -> None:
    # 24 tokens and more: the sliding window of the gemma is 16.
    holds(engine_home, endless_model(name), case)


def test_a_remainder_below_the_floor_borrows_a_row(
    engine_home: EngineHome, endless_model: Endless
) -> None:
    # Two chunks of 512, and one row that is left.
    holds(engine_home, endless_model("llama-q8_0"), Case("1025 tokens", letters(1025), 2))


@pytest.mark.parametrize("name", ["llama-q8_0", "hybrid-q8", "hybrid-q4k"])
def test_512_generated_tokens(name: str, engine_home: EngineHome, endless_model: Endless) -> None:
    case = Case("long", "A tally stick", 512)
    honest = holds(engine_home, endless_model(name), case)
    assert honest.receipt.core.sampled_tokens == 512
    assert honest.receipt.core.stop_reason == "length"


def test_a_run_that_ends_by_itself(engine_home: EngineHome, toy_llama: Path) -> None:
    # Drawn nearly uniformly out of 335 tokens of which two end the run.
    case = Case("hot", "A tally stick", 1024, "2", 11)
    honest = holds(engine_home, toy_llama, case)
    assert honest.receipt.core.stop_reason == "end_of_generation"
    assert honest.receipt.core.sampled_tokens < 1024


@pytest.mark.parametrize("system", [None, "Be brief. 短く。"])
def test_chat(system: str | None, engine_home: EngineHome, toy_llama: Path) -> None:
    result = engine_home.run(toy_llama, "What is it?", 12, chat="template", system=system)
    report = engine_home.replay(result.directory, toy_llama)
    assert (report.verified, report.exact) == (True, report.sampled)
    assert result.receipt.core.chat_template_digest is not None
    rendered = HonestRun.load(result.directory).opening.rendered_prompt
    assert rendered.endswith("<|im_start|>assistant\n")
    assert ("Be brief." in rendered) == (system is not None)


def test_a_dated_template_sees_the_clock_of_the_request(
    engine_home: EngineHome, toy_model: Endless
) -> None:
    model = toy_model("llama-dated")
    result = engine_home.run(model, "What day is it?", 4, chat="template", clock=86_400)
    assert HonestRun.load(result.directory).opening.rendered_prompt.startswith(
        "Today is 02 January 1970."
    )
    assert engine_home.replay(result.directory, model).verified


def test_the_signature_is_checked_when_trust_is_given(
    engine_home: EngineHome, toy_llama: Path
) -> None:
    result = engine_home.run(toy_llama, "A tally stick", 4)
    assert engine_home.replay(result.directory, toy_llama).signature == "not_checked"
    assert engine_home.replay(result.directory, toy_llama, trust=TRUST).signature == "passed"
    with pytest.raises(EvidenceError, match="trust"):
        engine_home.replay(
            result.directory, toy_llama, trust=TrustPolicy.for_keys([STRANGER.public])
        )


@pytest.mark.parametrize(
    "case",
    [
        Case("question", "What is a tally stick?", 24),
        Case("japanese, seeded", "割符とは", 16, "0.8", 7),
        Case("several chunks", "The quick brown fox jumps over the lazy dog. " * 60, 4),
    ],
    ids=lambda case: case.name,
)
def test_smollm2(case: Case, engine_home: EngineHome, smollm2: str) -> None:
    holds(engine_home, smollm2, case)
