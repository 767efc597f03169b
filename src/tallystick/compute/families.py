"""From the numbers of a model file to its architecture description, by family.

The entries read and the defaults of absent ones are in
docs/spec/compute-units.md#from-a-model-file. A family that is not here has no price.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Protocol

from tallystick.compute.architecture import (
    MAX_LAYERS,
    Activation,
    Architecture,
    AttentionMixer,
    DeltaNetMixer,
    DenseFeedForward,
    ExpertFeedForward,
    FeedForward,
    LayerDescription,
    Mixer,
)
from tallystick.contracts.model import ModelShape
from tallystick.errors import IncomparableError, InputError

_HYBRID_INTERVAL: Final = 4  # where the file does not say: each fourth layer is full attention
_GEMMA2_WINDOW: Final = 4096
_GEMMA2_PERIOD: Final = 2
_GEMMA3_PERIOD: Final = 6


class ModelNumbers(Protocol):
    """What a description needs of a model's facts; numbers that are absent are 0."""

    @property
    def architecture(self) -> str:
        """Name of the family."""

    @property
    def layers(self) -> int:
        """Number of blocks in the file."""

    @property
    def embedding(self) -> int:
        """Hidden width."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""

    @property
    def experts(self) -> int:
        """Number of experts of a layer; 0: none."""

    @property
    def experts_used(self) -> int:
        """Experts that each token goes through."""

    @property
    def shape(self) -> ModelShape | None:
        """The other widths; None when one differs from layer to layer."""


Family = Callable[[ModelNumbers, ModelShape], tuple[LayerDescription, ...]]


def describe(numbers: ModelNumbers) -> Architecture:
    """Return the description of a model.

    Raises IncomparableError for a family without a rule and for a model whose widths differ from
    layer to layer, InputError for numbers that are missing or contradict each other.
    """
    family = FAMILIES.get(numbers.architecture)
    if family is None:
        raise IncomparableError(
            "compute units are not defined for this architecture",
            expected=" or ".join(FAMILIES),
            found=numbers.architecture,
        )
    if numbers.shape is None:
        raise IncomparableError(
            "compute units are not defined for models whose widths differ from layer to layer",
            expected="one value for all layers",
            found="a list of different values in the model's metadata",
        )
    if numbers.layers > MAX_LAYERS:  # before a tuple of that length is made
        raise InputError(
            "the model has too many layers",
            expected=f"at most {MAX_LAYERS}",
            found=str(numbers.layers),
        )
    layers = family(numbers, numbers.shape)
    return Architecture(numbers.architecture, numbers.embedding, numbers.vocabulary, layers)


def _attention(
    numbers: ModelNumbers,
    shape: ModelShape,
    *,
    window: int = 0,
    gated: bool = False,
    head_norms: bool = False,
    biased: bool = False,
) -> AttentionMixer:
    per_head = numbers.embedding // shape.heads if shape.heads else 0
    return AttentionMixer(
        heads=shape.heads,
        heads_kv=shape.heads_kv or shape.heads,
        key_width=shape.key_length or per_head,
        value_width=shape.value_length or per_head,
        window=window,
        gated=gated,
        head_norms=head_norms,
        biased=biased,
    )


def _llama(numbers: ModelNumbers, shape: ModelShape) -> tuple[LayerDescription, ...]:
    feed_forward: FeedForward = DenseFeedForward(shape.feed_forward)
    if numbers.experts:
        feed_forward = ExpertFeedForward(numbers.experts, numbers.experts_used, shape.feed_forward)
    return (LayerDescription(_attention(numbers, shape), feed_forward),) * numbers.layers


def _qwen2(numbers: ModelNumbers, shape: ModelShape) -> tuple[LayerDescription, ...]:
    mixer = _attention(numbers, shape, biased=True)
    return (LayerDescription(mixer, DenseFeedForward(shape.feed_forward)),) * numbers.layers


def _qwen3(numbers: ModelNumbers, shape: ModelShape) -> tuple[LayerDescription, ...]:
    mixer = _attention(numbers, shape, head_norms=True)
    return (LayerDescription(mixer, DenseFeedForward(shape.feed_forward)),) * numbers.layers


def _expert_width(numbers: ModelNumbers, shape: ModelShape) -> int:
    return shape.expert_feed_forward or shape.feed_forward // max(1, numbers.experts_used)


def _qwen3moe(numbers: ModelNumbers, shape: ModelShape) -> tuple[LayerDescription, ...]:
    mixer = _attention(numbers, shape, head_norms=True)
    width = _expert_width(numbers, shape)
    experts = ExpertFeedForward(numbers.experts, numbers.experts_used, width)
    return (LayerDescription(mixer, experts),) * numbers.layers


def _qwen35moe(numbers: ModelNumbers, shape: ModelShape) -> tuple[LayerDescription, ...]:
    if shape.ssm_inner != shape.ssm_rank * shape.ssm_state:
        raise InputError(
            "the model's delta net has contradicting sizes",
            expected=f"ssm.inner_size {shape.ssm_rank * shape.ssm_state}",
            found=str(shape.ssm_inner),
        )
    full: Mixer = _attention(numbers, shape, gated=True, head_norms=True)
    linear: Mixer = DeltaNetMixer(
        key_heads=shape.ssm_groups,
        value_heads=shape.ssm_rank,
        key_width=shape.ssm_state,
        value_width=shape.ssm_state,
        kernel=shape.ssm_kernel,
    )
    experts = ExpertFeedForward(
        experts=numbers.experts,
        used=numbers.experts_used,
        width=_expert_width(numbers, shape),
        shared_width=shape.shared_feed_forward or shape.feed_forward,
        shared_gate=True,
    )
    interval = shape.full_attention_interval or _HYBRID_INTERVAL
    trunk = numbers.layers - shape.draft_layers  # a draft head's blocks do not run
    return tuple(
        LayerDescription(linear if (layer + 1) % interval else full, experts)
        for layer in range(trunk)
    )


def _gemma(
    numbers: ModelNumbers, shape: ModelShape, window: int, period: int, *, head_norms: bool
) -> tuple[LayerDescription, ...]:
    activation: Activation = "gelu"
    feed_forward = DenseFeedForward(shape.feed_forward, activation)
    near = _attention(numbers, shape, head_norms=head_norms, window=window)
    far = _attention(numbers, shape, head_norms=head_norms)
    period = shape.sliding_window_period or period
    return tuple(
        LayerDescription(far if (layer + 1) % period == 0 else near, feed_forward, post_norms=True)
        for layer in range(numbers.layers)
    )


def _gemma2(numbers: ModelNumbers, shape: ModelShape) -> tuple[LayerDescription, ...]:
    window = shape.sliding_window or _GEMMA2_WINDOW
    return _gemma(numbers, shape, window, _GEMMA2_PERIOD, head_norms=False)


def _gemma3(numbers: ModelNumbers, shape: ModelShape) -> tuple[LayerDescription, ...]:
    return _gemma(numbers, shape, shape.sliding_window, _GEMMA3_PERIOD, head_norms=True)


FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(
    {
        "llama": _llama,
        "qwen2": _qwen2,
        "qwen3": _qwen3,
        "qwen3moe": _qwen3moe,
        "qwen35moe": _qwen35moe,
        "gemma2": _gemma2,
        "gemma3": _gemma3,
    }
)
