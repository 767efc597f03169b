"""From what a user asks for to a declared run: limits, defaults, one spelling per value."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Final, Literal

from tallystick.contracts import digests
from tallystick.contracts.model import ModelFacts
from tallystick.contracts.request import PRODUCER, RUN_SCHEMA, Chat, ExpectedDigest, InferenceRun
from tallystick.contracts.runtime import ROW_CLASS, SEQUENTIAL
from tallystick.contracts.sandbox_profile import NONE, SandboxProfile
from tallystick.errors import InputError, UsageError
from tallystick.execution.rings import check_depth
from tallystick.store.ids import uuid7

MAX_PROMPT_BYTES: Final = 1024 * 1024
MAX_TOKENS: Final = 1024
DEFAULT_TOKENS: Final = {ROW_CLASS: 256, SEQUENTIAL: 2}
EVIDENCE_PARTS: Final = ("states", "graph", "gemm")
DEFAULT_EVIDENCE: Final = {ROW_CLASS: ("states",), SEQUENTIAL: ("gemm",)}
MAX_THREADS: Final = 512
_MAX_CLOCK: Final = 253_402_300_799  # the last second of the year 9999, UTC
_PLACES: Final = 4
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a user may choose about one run.

    ``prompt`` is the text itself; ``chat`` asks for the model's chat template around it, with
    ``system`` as system message. ``max_tokens`` None is the policy's default (256, or 2 under
    `sequential`). ``evidence`` has any of the parts "states", "graph" and "gemm"; None is the
    policy's default ("states", or "gemm" under `sequential`). ``temperature`` is a decimal text
    from 0 to 2 with at most 4 places; a ``seed`` is drawn when it is above 0 and none is given.
    ``self_check`` re-executes before signing. ``ring_depth`` is how many layers of the model are in
    memory at a time, 0 for all of them. ``sandbox`` is a profile's name, or the path of a YAML file
    with one.
    """

    prompt: str = field(repr=False)
    chat: Literal["raw", "template"] = "raw"
    system: str | None = field(default=None, repr=False)
    clock: int | None = None
    max_tokens: int | None = None
    temperature: str = "0"
    seed: int | None = None
    policy: str = ROW_CLASS
    evidence: tuple[str, ...] | None = None
    disclosure: Literal["private", "public"] = "private"
    self_check: Literal["no", "yes"] = "no"
    threads: int | None = None
    ring_depth: int = 0
    sandbox: str = "none"


def check_options(options: RunOptions) -> None:
    """Raise UsageError or InputError for anything that no model could make good."""
    if options.policy not in DEFAULT_TOKENS:
        raise UsageError(
            "unknown policy", expected=" or ".join(DEFAULT_TOKENS), found=options.policy[:40]
        )
    count = DEFAULT_TOKENS[options.policy] if options.max_tokens is None else options.max_tokens
    if not 1 <= count <= MAX_TOKENS:
        raise UsageError(
            "the number of tokens to generate is out of range",
            expected=f"1 to {MAX_TOKENS}",
            found=str(count),
        )
    _check_sampling(options)
    if options.chat == "raw" and (options.system is not None or options.clock is not None):
        raise UsageError(
            "a system message or a clock needs --chat",
            hint="add --chat, or leave the system message and the clock out",
        )
    if options.clock is not None and not 0 <= options.clock <= _MAX_CLOCK:
        raise UsageError(
            "the clock is out of range", expected=f"0 to {_MAX_CLOCK} seconds since 1970"
        )
    if options.threads is not None and not 1 <= options.threads <= MAX_THREADS:
        raise UsageError(
            "the number of threads is out of range",
            expected=f"1 to {MAX_THREADS}",
            found=str(options.threads),
        )
    check_depth(options.ring_depth)
    _check_evidence(options.evidence or ())
    if options.chat not in ("raw", "template"):
        raise UsageError("unknown chat mode", expected="raw or template")
    check_text("prompt", options.prompt)
    if not options.prompt:
        raise InputError("the prompt is empty", hint="give at least one character")
    if options.system is not None:
        check_text("system message", options.system)


def _check_sampling(options: RunOptions) -> None:
    temperature = canonical_temperature(options.temperature)
    if temperature == "0" and options.seed is not None:
        raise UsageError(
            "a seed has no meaning at temperature 0",
            expected="no seed, or a temperature above 0",
        )
    if options.seed is not None and not 0 <= options.seed < 2**64:
        raise UsageError("the seed is out of range", expected="0 to 2^64 - 1")
    if options.policy == SEQUENTIAL and (temperature != "0" or options.seed is not None):
        raise UsageError(
            "the sequential policy is greedy", expected="no --temperature and no --seed"
        )


def _check_evidence(evidence: tuple[str, ...]) -> None:
    if unknown := set(evidence) - set(EVIDENCE_PARTS):
        raise UsageError(
            "unknown evidence part",
            expected=f"any of {', '.join(EVIDENCE_PARTS)}, or none",
            found=min(unknown)[:40],
        )
    if len(set(evidence)) != len(evidence):
        raise UsageError("an evidence part is named twice", expected="each part once")


def check_text(what: str, text: str) -> None:
    """Raise InputError for a text that no prompt may be; ``what`` names it, it is not shown."""
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise InputError(f"the {what} is not valid Unicode", expected="UTF-8 text") from None
    if size > MAX_PROMPT_BYTES:
        raise InputError(
            f"the {what} is too long", expected=f"at most {MAX_PROMPT_BYTES} bytes", found=f"{size}"
        )
    if "\x00" in text:
        raise InputError(f"the {what} contains a NUL character", expected="text without NUL")


def decode_prompt(data: bytes) -> str:
    """Return prompt bytes as text. Raises InputError when they are not UTF-8 or too many."""
    if len(data) > MAX_PROMPT_BYTES:
        raise InputError("the prompt is too long", expected=f"at most {MAX_PROMPT_BYTES} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            "the prompt is not UTF-8",
            expected="UTF-8 text",
            found=f"an invalid byte at offset {error.start}",
        ) from None


def canonical_temperature(text: str) -> str:
    """Return the one spelling of a temperature. Raises UsageError when it is out of range.

    Any plain spelling is read: a sign, leading and trailing zeros, an exponent.
    """
    # Decimal reads more than that: blanks, underscores, the digits of every script, NaN.
    value = Decimal(text) if len(text) <= 40 and _DECIMAL.fullmatch(text) else Decimal(-1)
    if not 0 <= value <= 2:
        raise UsageError(
            "the temperature is out of range",
            expected=f"a decimal number from 0 to 2 with at most {_PLACES} places",
            found=text[:40],
        )
    exact = Fraction(value) * 10**_PLACES
    if exact.denominator != 1:
        raise UsageError(
            "the temperature has too many places", expected=f"at most {_PLACES}", found=text[:40]
        )
    whole, places = divmod(exact.numerator, 10**_PLACES)
    return f"{whole}.{places:0{_PLACES}}".rstrip("0").rstrip(".")


def declare(
    options: RunOptions,
    model_digest: str,
    facts: ModelFacts,
    commit_key: bytes,
    sandbox: SandboxProfile = NONE,
) -> InferenceRun:
    """Return the declared run. Equal options and commit key give an equal request and blind.

    ``sandbox`` is the profile of the options: its lowest acceptable level is what the run demands.
    """
    temperature = canonical_temperature(options.temperature)
    seed = options.seed
    if temperature != "0" and seed is None:
        seed = secrets.randbits(64)
    expected = ExpectedDigest(digests.no_bundle_digest())
    run = InferenceRun(
        schema=RUN_SCHEMA,
        producer=PRODUCER,
        run_id=uuid7(),
        model_path=None,
        model_digest=model_digest,
        dataset=expected,
        task=expected,
        model=ExpectedDigest(model_digest),
        prompt=options.prompt,
        prompt_path=None,
        split=None,
        tile=None,
        chat=_chat(options, facts),
        add_special=True,
        parse_special=options.chat == "template" or options.policy == SEQUENTIAL,
        max_tokens=options.max_tokens or DEFAULT_TOKENS[options.policy],
        temperature=temperature,
        seed=seed,
        policy=options.policy,
        evidence=_evidence(options),
        disclosure=options.disclosure,
        sandbox_profile=sandbox.name,
        enforcement=sandbox.levels()[-1],
        network_id=None,
        replica_slot=None,
        expires_at=None,
        blind="00" * 32,
    )
    return replace(run, blind=digests.derive_blind(commit_key, digests.request_body(run)).hex())


def _evidence(options: RunOptions) -> tuple[str, ...]:
    """Return the parts in one order, so that equal wishes make equal requests."""
    wanted = DEFAULT_EVIDENCE[options.policy] if options.evidence is None else options.evidence
    return tuple(part for part in EVIDENCE_PARTS if part in wanted)


def _chat(options: RunOptions, facts: ModelFacts) -> Chat | None:
    if options.chat == "raw":
        return None
    clock = options.clock
    if facts.template_uses_clock and clock is None:
        clock = int(time.time())
    return Chat(system=options.system, clock=clock if facts.template_uses_clock else None)
