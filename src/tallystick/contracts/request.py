"""``dac.InferenceRun``: the declaration of one run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from tallystick.contracts.runtime import Policy
from tallystick.contracts.types import (
    U8,
    U64,
    Digest,
    Hex32,
    IntRange,
    LongText,
    MaxLength,
    OneOf,
    Pattern,
    ShortText,
    Temperature,
    Timestamp,
    UnixSeconds,
    UuidText,
)

RUN_SCHEMA: Final = "dac.InferenceRun"
PRODUCER: Final = "tallystick"
Producer = Annotated[str, OneOf((PRODUCER,))]
Disclosure = Annotated[str, OneOf(("private", "public"))]
EvidencePart = Annotated[str, OneOf(("states", "graph", "gemm"))]
Enforcement = Annotated[str, OneOf(("none", "process", "namespaces", "full"))]
PathText = Annotated[str, MaxLength(1024)]
SplitName = Annotated[str, Pattern(r"[a-z0-9][a-z0-9_-]*", 64)]
#: ``z/x/y`` in the XYZ scheme (row 0 is the northernmost), without leading zeros.
TileId = Annotated[str, Pattern(r"(0|[1-9][0-9]?)/(0|[1-9][0-9]{0,9})/(0|[1-9][0-9]{0,9})", 24)]


@dataclass(frozen=True, slots=True)
class ExpectedDigest:
    """The digest that the declaration expects (the seed's spelling is kept)."""

    expectedDigest: Digest  # noqa: N815


@dataclass(frozen=True, slots=True)
class Chat:
    """Chat rendering: the model's own template around one user message.

    ``clock`` is what the template sees as the current time (Unix seconds, UTC); it is set only
    when the template asks for a clock, so that an undated template gives equal cores for ever.
    """

    system: LongText | None = field(repr=False)
    clock: UnixSeconds | None


@dataclass(frozen=True, slots=True)
class InferenceRun:
    """One declared run. ``blind`` is private: whoever holds it can test guesses of the prompt.

    A run over a dataset bundle says where its prompt is from: ``prompt_path`` is the template in
    the bundle, ``split`` and ``tile`` what it was rendered for; all are None without a bundle.
    ``max_tokens`` bounds the generated tokens. ``temperature`` is a decimal text with at most four
    places; ``seed`` is None exactly when the temperature is ``"0"`` (greedy).
    """

    schema: Annotated[str, OneOf((RUN_SCHEMA,))]
    producer: Producer
    run_id: UuidText
    model_path: LongText | None
    model_digest: Digest
    dataset: ExpectedDigest
    task: ExpectedDigest
    model: ExpectedDigest
    prompt: LongText = field(repr=False)
    prompt_path: PathText | None
    split: SplitName | None
    tile: TileId | None
    chat: Chat | None
    add_special: bool
    parse_special: bool
    max_tokens: Annotated[int, IntRange(1, 1024)]
    temperature: Temperature
    seed: U64 | None
    policy: Policy
    evidence: tuple[EvidencePart, ...]
    disclosure: Disclosure
    sandbox_profile: ShortText
    enforcement: Enforcement
    network_id: Hex32 | None
    replica_slot: U8 | None
    expires_at: Timestamp | None
    blind: Hex32 = field(repr=False)
