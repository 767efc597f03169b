"""From options to a declared run: limits and their exit codes, one spelling for each value."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.contracts import digests
from tallystick.contracts.codec import decode, encode
from tallystick.contracts.request import Chat, InferenceRun
from tallystick.contracts.types import Pattern, Temperature, UuidText
from tallystick.errors import InputError, TallystickError, UsageError
from tallystick.store.ids import uuid7
from tallystick.worker.request import (
    MAX_PROMPT_BYTES,
    RunOptions,
    canonical_temperature,
    check_options,
    declare,
    decode_prompt,
)
from tests.support.documents import digest_of, example_facts

MODEL = digest_of("model")
KEY = bytes(range(32))
FACTS = example_facts()
DATED = replace(FACTS, template_uses_clock=True)


def pattern_of(marked: object) -> re.Pattern[str]:
    marker = get_args(marked)[1]
    assert isinstance(marker, Pattern)
    return re.compile(marker.regex)


def declared(**changes: Any) -> InferenceRun:
    options = RunOptions(**({"prompt": "Hi"} | changes))
    check_options(options)
    return declare(options, MODEL, FACTS, KEY)


@given(st.integers(0, 20_000), st.integers(0, 12), st.integers(-6, 6))
@settings(deadline=None)
def test_every_spelling_of_a_temperature_becomes_the_one(unit: int, zeros: int, shift: int) -> None:
    value = Decimal(unit) / 10_000
    one = canonical_temperature(f"{value:f}")

    assert pattern_of(Temperature).fullmatch(one)
    assert Decimal(one) == value
    assert canonical_temperature(one) == one
    places = f"{value:.4f}" + "0" * zeros
    assert canonical_temperature(places) == one
    assert canonical_temperature("+" + "0" * zeros + places) == one
    assert canonical_temperature(f"{value.scaleb(shift):f}e{-shift}") == one


def test_different_temperatures_have_different_spellings() -> None:
    spelled = {canonical_temperature(f"{Decimal(unit) / 10_000:f}") for unit in range(20_001)}

    assert len(spelled) == 20_001


@pytest.mark.parametrize(
    ("text", "one"),
    [
        ("0", "0"),
        ("-0", "0"),
        ("0.0", "0"),
        (".0", "0"),
        ("0e5", "0"),
        ("0e-200", "0"),
        ("1.5", "1.5"),
        ("2", "2"),
        ("2.0000", "2"),
        ("2.", "2"),
        (".5", "0.5"),
        ("0.0001", "0.0001"),
        ("0.10", "0.1"),
        ("1e-1", "0.1"),
        ("1E-4", "0.0001"),
        ("+1", "1"),
        ("10e-1", "1"),
        ("0.02e2", "2"),
        ("0.5" + "0" * 30, "0.5"),
    ],
)
def test_spellings(text: str, one: str) -> None:
    assert canonical_temperature(text) == one


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "1 ", " 1", "1\n", "x", "-", "+", ".", "e1", "1e", "--1", "0x1", "1,5", "1/2"),
        *("-1", "-0.0001", "2.0001", "3", "1e1", "1e999", "1e1000", "1e999999999", "1" * 41),
        *("nan", "NaN", "sNaN", "inf", "Infinity", "-inf", "1_0", "0_1"),
        *("٣", "٠", "１", "०.५", "0.١"),
        *("0.00001", "0.12345", "1e-5", "1.99999", "0.10000000000000000000000000000000001"),
        *("1e-999", "2.00000000000000000000000000000000001"),
    ],
)
def test_no_temperature(text: str) -> None:
    with pytest.raises(UsageError, match="temperature") as caught:
        canonical_temperature(text)
    assert caught.value.exit_code == 2
    assert len(caught.value.found or "") <= 40


@given(st.text(max_size=50))
@settings(deadline=None)
def test_any_text_is_a_temperature_or_a_usage_error(text: str) -> None:
    try:
        one = canonical_temperature(text)
    except UsageError:
        return
    assert pattern_of(Temperature).fullmatch(one)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"policy": "fast"}, UsageError),
        ({"max_tokens": 0}, UsageError),
        ({"max_tokens": -1}, UsageError),
        ({"max_tokens": 1025}, UsageError),
        ({"temperature": "2.1"}, UsageError),
        ({"temperature": "warm"}, UsageError),
        ({"seed": 1}, UsageError),
        ({"seed": 1, "temperature": "0.0"}, UsageError),
        ({"seed": -1, "temperature": "1"}, UsageError),
        ({"seed": 2**64, "temperature": "1"}, UsageError),
        ({"policy": "sequential", "temperature": "1"}, UsageError),
        ({"policy": "sequential", "temperature": "1", "seed": 1}, UsageError),
        ({"policy": "sequential", "seed": 1}, UsageError),
        ({"system": "Be brief."}, UsageError),
        ({"clock": 1}, UsageError),
        ({"chat": "template", "clock": -1}, UsageError),
        ({"chat": "template", "clock": 253_402_300_800}, UsageError),
        ({"threads": 0}, UsageError),
        ({"threads": -2}, UsageError),
        ({"threads": 513}, UsageError),
        ({"evidence": ("routes",)}, UsageError),
        ({"evidence": ("states", "x" * 100)}, UsageError),
        ({"evidence": ("states", "states")}, UsageError),
        ({"prompt": ""}, InputError),
        ({"prompt": "a\x00b"}, InputError),
        ({"prompt": "\ud800"}, InputError),
        ({"prompt": "é" * (MAX_PROMPT_BYTES // 2) + "x"}, InputError),
        ({"chat": "template", "system": "a\x00b"}, InputError),
        ({"chat": "template", "system": "\udfff"}, InputError),
        ({"chat": "template", "system": "s" * (MAX_PROMPT_BYTES + 1)}, InputError),
    ],
)
def test_limits(changes: dict[str, Any], error: type[TallystickError]) -> None:
    with pytest.raises(error) as caught:
        check_options(RunOptions(**({"prompt": "Hi"} | changes)))
    assert type(caught.value) is error
    assert caught.value.exit_code == {UsageError: 2, InputError: 4}[error]
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "changes",
    [
        {"max_tokens": 1},
        {"max_tokens": 1024},
        {"temperature": "2", "seed": 2**64 - 1},
        {"temperature": "0.0001", "seed": 0},
        {"policy": "sequential"},
        {"prompt": " "},
        {"prompt": "x" * MAX_PROMPT_BYTES},
        {"chat": "template", "system": "", "clock": 0},
        {"chat": "template", "clock": 253_402_300_799},
        {"evidence": ()},
        {"threads": 512},
        {"disclosure": "public"},
    ],
)
def test_a_declared_run_is_a_document(changes: dict[str, Any]) -> None:
    run = declared(**changes)

    assert decode(InferenceRun, encode(run)) == run


@pytest.mark.parametrize(("policy", "count"), [("row-class", 256), ("sequential", 2)])
def test_the_default_number_of_tokens_is_the_policy_s(policy: str, count: int) -> None:
    assert declared(policy=policy).max_tokens == count
    assert declared(policy=policy, max_tokens=7).max_tokens == 7


@pytest.mark.parametrize(
    ("chat", "policy", "parses"),
    [
        ("raw", "row-class", False),
        ("template", "row-class", True),
        ("raw", "sequential", True),
        ("template", "sequential", True),
    ],
)
def test_tokenisation_flags(chat: str, policy: str, parses: bool) -> None:
    run = declared(chat=chat, policy=policy)

    assert (run.add_special, run.parse_special) == (True, parses)


def test_decoding_a_prompt() -> None:
    assert decode_prompt("sólo \U0001f30a".encode()) == "sólo \U0001f30a"
    with pytest.raises(InputError, match="UTF-8") as caught:
        decode_prompt(b"secret\xff")
    assert caught.value.found == "an invalid byte at offset 6"
    assert "secret" not in str(caught.value)
    with pytest.raises(InputError, match="too long"):
        decode_prompt(b"x" * (MAX_PROMPT_BYTES + 1))


def test_a_seed_is_drawn_exactly_when_one_is_needed() -> None:
    drawn = {declared(temperature="1").seed for _ in range(4)}

    assert len(drawn) == 4
    assert all(seed is not None and 0 <= seed < 2**64 for seed in drawn)
    assert declared().seed is None
    assert declared(temperature="1", seed=0).seed == 0


def test_equal_options_give_an_equal_request() -> None:
    """Another run id, another spelling of the temperature: no other request."""
    first = declared(temperature="0.50", seed=3)
    again = declared(temperature="5e-1", seed=3)

    assert first.run_id != again.run_id
    assert first.blind == again.blind
    assert digests.request_digest(first) == digests.request_digest(again)
    assert digests.run_digest(first) != digests.run_digest(again)


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": "Hi "},
        {"prompt": "hi"},
        {"max_tokens": 255},
        {"temperature": "1", "seed": 1},
        {"temperature": "1", "seed": 2},
        {"temperature": "0.9", "seed": 1},
        {"policy": "sequential", "max_tokens": 256},
        {"chat": "template"},
        {"chat": "template", "system": ""},
        {"evidence": ()},
        {"disclosure": "public"},
    ],
)
def test_every_option_is_part_of_the_request(changes: dict[str, Any]) -> None:
    plain, other = declared(), declared(**changes)

    assert plain.blind != other.blind
    assert digests.request_digest(plain) != digests.request_digest(other)


def test_the_blind_needs_the_key_and_the_model() -> None:
    options = RunOptions(prompt="Hi")
    runs = [
        declare(options, MODEL, FACTS, KEY),
        declare(options, MODEL, FACTS, bytes(32)),
        declare(options, digest_of("another model"), FACTS, KEY),
    ]

    assert len({run.blind for run in runs}) == 3


def test_what_changes_no_bit_is_no_part_of_the_request() -> None:
    plain = declared()
    for changes in ({"threads": 1}, {"self_check": "yes"}):
        assert declared(**changes).blind == plain.blind


def test_a_dated_template_takes_the_clock_of_the_request_or_of_now() -> None:
    options = RunOptions(prompt="Hi", chat="template", clock=1_700_000_000)
    assert declare(options, MODEL, DATED, KEY).chat == Chat(None, 1_700_000_000)

    before = int(time.time())
    now = declare(replace(options, clock=None), MODEL, DATED, KEY).chat
    assert now is not None
    assert now.clock is not None
    assert before <= now.clock <= int(time.time())


def test_an_undated_template_leaves_every_clock_out() -> None:
    """So that the same question gives the same core for ever."""
    options = RunOptions(prompt="Hi", chat="template", system="Be brief.")
    for clock in (None, 1_700_000_000):
        run = declare(replace(options, clock=clock), MODEL, FACTS, KEY)
        assert run.chat == Chat("Be brief.", None)


def test_a_raw_prompt_has_no_chat() -> None:
    assert declare(RunOptions(prompt="Hi"), MODEL, DATED, KEY).chat is None


def milliseconds(text: str) -> int:
    return int(text.replace("-", "")[:12], 16)


def test_run_ids_are_uuids_of_version_7() -> None:
    before = time.time_ns() // 1_000_000
    made = [uuid7() for _ in range(200)]
    after = time.time_ns() // 1_000_000

    assert all(pattern_of(UuidText).fullmatch(text) for text in made)
    assert len(set(made)) == 200
    stamps = [milliseconds(text) for text in made]
    assert stamps == sorted(stamps)
    assert before <= stamps[0]
    assert stamps[-1] <= after


@pytest.mark.parametrize(
    ("random", "text"),
    [
        (bytes(10), "018bcfe5-6800-7000-8000-000000000000"),
        (b"\xff" * 10, "018bcfe5-6800-7fff-bfff-ffffffffffff"),
    ],
)
def test_the_bits_of_a_run_id(monkeypatch: pytest.MonkeyPatch, random: bytes, text: str) -> None:
    take: Callable[[int], bytes] = lambda count: random[:count]  # noqa: E731
    monkeypatch.setattr("os.urandom", take)
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_000_999_999)

    assert uuid7() == text
