"""Compute units by ruleset v3: a function of architecture and token counts alone.

How the tokens were batched, padded or re-evaluated does not matter, so no schedule of the engine
can raise or lower the price. Integers throughout, one division at the end
(docs/spec/compute-units.md#ruleset-v3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

from tallystick.compute.architecture import (
    Architecture,
    AttentionMixer,
    DenseFeedForward,
    FeedForward,
    LayerDescription,
    Mixer,
)
from tallystick.errors import InputError

MAX_TOKENS: Final = 2**32 - 1
_OPERATIONS_PER_UNIT: Final = 1_000_000
_U64_MAX: Final = 2**64 - 1
_GATED_MATRICES: Final = 3  # gate, up, down


@dataclass(frozen=True, slots=True)
class MacParts:
    """Multiply-accumulates by what they are for; each already counts all tokens."""

    projections: int
    convolution: int
    recurrent_state: int
    router: int
    feed_forward: int
    head: int
    attention: int

    def total(self) -> int:
        """Return the sum of the parts."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True)
class SemanticUnits:
    """What a model and token counts cost, with the parts of the sum."""

    prefill_tokens: int
    generated_tokens: int
    parts: MacParts
    compute_units: int


def semantic_units(
    architecture: Architecture, prefill_tokens: int, generated_tokens: int
) -> SemanticUnits:
    """Return the compute units ``ceil(2 * MAC / 10^6)`` of ruleset v3.

    ``prefill_tokens`` is at least 1. Raises InputError for counts that do not fit 32 bits, and
    when the result does not fit 64.
    """
    check_counts(prefill_tokens, generated_tokens)
    tokens = prefill_tokens + generated_tokens
    times = Counter(map(id, architecture.layers))
    layers = [(times[id(layer)], layer) for layer in architecture.distinct_layers]

    def over_layers(part: Callable[[LayerDescription], int]) -> int:
        return sum(number * part(layer) for number, layer in layers)

    parts = MacParts(
        projections=tokens * over_layers(lambda x: _projections(architecture, x.mixer)),
        convolution=tokens * over_layers(lambda x: _convolution(x.mixer)),
        recurrent_state=tokens * over_layers(lambda x: _state(x.mixer)),
        router=tokens * over_layers(lambda x: _router(architecture, x.feed_forward)),
        feed_forward=tokens * over_layers(lambda x: _feed_forward(architecture, x.feed_forward)),
        head=tokens * architecture.hidden * architecture.vocabulary,
        attention=over_layers(lambda x: _attention(x.mixer, tokens)),
    )
    units = -(-2 * parts.total() // _OPERATIONS_PER_UNIT)
    if units > _U64_MAX:
        raise InputError(
            "the compute units overflow",
            expected="at most 64 bits",
            found=f"{units.bit_length()} bits",
        )
    return SemanticUnits(prefill_tokens, generated_tokens, parts, units)


def check_counts(prefill_tokens: int, generated_tokens: int) -> None:
    """Raise InputError unless there is a prompt and both counts fit 32 bits."""
    for what, low, value in (
        ("prompt", 1, prefill_tokens),
        ("generated", 0, generated_tokens),
    ):
        if not low <= value <= MAX_TOKENS:
            raise InputError(
                f"the number of {what} tokens is out of range",
                expected=f"{low}..{MAX_TOKENS}",
                found=str(value),
            )


def pairs(tokens: int, window: int) -> int:
    """Return how many (token, position in its reach) pairs causal attention has.

    Token i of 1..``tokens`` sees min(i, ``window``) positions; window 0: all i.
    """
    if window == 0 or tokens <= window:
        return tokens * (tokens + 1) // 2
    return window * (window + 1) // 2 + (tokens - window) * window


def _projections(architecture: Architecture, mixer: Mixer) -> int:
    """Return the weights of one layer's mixer matrices."""
    if isinstance(mixer, AttentionMixer):
        queries = mixer.heads * mixer.key_width * (2 if mixer.gated else 1)
        keys = mixer.heads_kv * mixer.key_width
        values = mixer.heads_kv * mixer.value_width
        return architecture.hidden * (queries + keys + values + mixer.heads * mixer.value_width)
    gate, rates = mixer.values, 2 * mixer.value_heads  # z; b and a
    return architecture.hidden * (mixer.channels + gate + rates + mixer.values)


def _convolution(mixer: Mixer) -> int:
    return 0 if isinstance(mixer, AttentionMixer) else mixer.kernel * mixer.channels


def _state(mixer: Mixer) -> int:
    if isinstance(mixer, AttentionMixer):
        return 0
    return 2 * mixer.value_heads * mixer.key_width * mixer.value_width


def _attention(mixer: Mixer, tokens: int) -> int:
    if not isinstance(mixer, AttentionMixer):
        return 0
    return pairs(tokens, mixer.window) * mixer.heads * (mixer.key_width + mixer.value_width)


def _router(architecture: Architecture, feed_forward: FeedForward) -> int:
    if isinstance(feed_forward, DenseFeedForward):
        return 0
    return architecture.hidden * feed_forward.experts


def _feed_forward(architecture: Architecture, feed_forward: FeedForward) -> int:
    """Return the weights that one token meets; the shared expert's gate is not counted."""
    width = feed_forward.width
    if not isinstance(feed_forward, DenseFeedForward):
        width = feed_forward.used * width + feed_forward.shared_width
    return _GATED_MATRICES * architecture.hidden * width
