"""What is known about a model file: facts read in a child, the pin, the calibration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from tallystick.contracts.request import Producer
from tallystick.contracts.runtime import EngineBuild, Knob, RowClass
from tallystick.contracts.types import U32, U64, Digest, LongText, MaxLength, OneOf, ShortText

FACTS_SCHEMA: Final = "tallystick.model-facts/v2"
PIN_SCHEMA: Final = "tallystick.model-pin/v2"
CALIBRATION_SCHEMA: Final = "tallystick.calibration/v1"


@dataclass(frozen=True, slots=True)
class WeightType:
    """How many tensors have this ggml type, and how many bytes they take."""

    name: ShortText
    tensors: U32
    bytes: U64


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The widths that say how much is computed for a token; 0 where the file has no such entry.

    ``ssm_*`` and ``full_attention_interval`` are those of hybrid models. ``draft_layers`` counts
    the blocks at the end that only predict further tokens (docs/spec/models.md).
    """

    heads: U32
    heads_kv: U32
    key_length: U32
    value_length: U32
    feed_forward: U32
    expert_feed_forward: U32
    shared_feed_forward: U32
    sliding_window: U32
    sliding_window_period: U32
    full_attention_interval: U32
    draft_layers: U32
    ssm_kernel: U32
    ssm_inner: U32
    ssm_state: U32
    ssm_rank: U32
    ssm_groups: U32


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A bounded, typed description of a GGUF file, made by a child that parsed it.

    ``shape`` is None when one of its numbers differs from layer to layer.
    ``parameters`` counts elements of all tensors. ``tokenizer_digest`` covers every
    ``tokenizer.*`` entry but the chat template. ``template_uses_clock`` is true when the
    template calls ``strftime_now``. ``needs_normalising`` names the reasons why the engine's
    loader refuses the file as it is (docs/spec/models.md).
    """

    schema: Annotated[str, OneOf((FACTS_SCHEMA,))]
    gguf_version: U32
    architecture: ShortText
    name: ShortText
    layers: U32
    embedding: U32
    context_train: U32
    vocabulary: U32
    experts: U32
    experts_used: U32
    shape: ModelShape | None
    parameters: U64
    tensors: U32
    weight_types: tuple[WeightType, ...]
    tokenizer_model: ShortText
    tokenizer_digest: Digest
    chat_template_digest: Digest | None
    template_uses_clock: bool
    needs_normalising: tuple[ShortText, ...]


@dataclass(frozen=True, slots=True)
class ModelPin:
    """A named model: where the file is, what it must hash to, where it came from.

    ``derived_from`` is the digest of the source file and ``transform`` the versioned transform
    when the file was written by ``model add --normalise``.
    """

    schema: Annotated[str, OneOf((PIN_SCHEMA,))]
    producer: Producer
    name: ShortText
    path: LongText
    digest: Digest
    size: U64
    source: LongText
    derived_from: Digest | None
    transform: ShortText | None
    facts: ModelFacts


@dataclass(frozen=True, slots=True)
class ExactCombination:
    """Knob settings and the row class within which every bit was equal, with measured speeds.

    Speeds are tokens per 1000 seconds, from the calibration run: a guide for choosing, no claim.
    """

    knobs: tuple[Knob, ...]
    row_class: RowClass
    decode_speed: U64
    prefill_speed: U64


@dataclass(frozen=True, slots=True)
class Calibration:
    """Every exact combination found for one model, engine and fingerprint.

    The first combination is the one that runs use. ``suite`` names the calibration procedure's
    version, ``layers`` the number of layers whose output rows the observer saw.
    """

    schema: Annotated[str, OneOf((CALIBRATION_SCHEMA,))]
    producer: Producer
    model_digest: Digest
    engine: EngineBuild
    fingerprint: Digest
    suite: ShortText
    layers: U32
    combinations: Annotated[tuple[ExactCombination, ...], MaxLength(8)]
