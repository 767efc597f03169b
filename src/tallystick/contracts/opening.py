"""The private opening of a receipt, and the completion marker of an artifact set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from tallystick.canonical.json import Bounds
from tallystick.contracts.request import InferenceRun, Producer
from tallystick.contracts.types import Base64, Digest, MaxLength, OneOf, Pattern, TokenId

OPENING_SCHEMA: Final = "tallystick.opening/v1"
# Only the token ids are many, and no engine has contexts of more than a million.
OPENING_BOUNDS: Final = Bounds(values=2**20, containers=256)
SET_SCHEMA: Final = "misaka.palw.receipt-set.v2"


@dataclass(frozen=True, slots=True)
class Opening:
    """What a replay needs, and what must never be published.

    ``output`` is base64 of the output bytes. ``leaf_checks`` is base64 of the first 4 bytes of
    every state leaf in tree order: it lets a replay name the first position and layer that
    differ. It is not itself evidence, only the root is.
    """

    schema: Annotated[str, OneOf((OPENING_SCHEMA,))]
    producer: Producer
    receipt_digest: Digest
    request: InferenceRun
    rendered_prompt: Annotated[str, MaxLength(4 * 1024 * 1024)] = field(repr=False)
    prompt_ids: tuple[TokenId, ...] = field(repr=False)
    sampled_ids: tuple[TokenId, ...] = field(repr=False)
    output: Base64 = field(repr=False)
    leaf_checks: Base64 = field(repr=False)


@dataclass(frozen=True, slots=True)
class SetMember:
    """One file of a set: name, sha256, and whether it is private to the holder."""

    name: Annotated[str, Pattern(r"[0-9a-z][0-9a-z._-]*", 120)]
    digest: Digest
    visibility: Annotated[str, OneOf(("public", "private"))]


@dataclass(frozen=True, slots=True)
class ReceiptSet:
    """The completion marker: it marks completeness, not authenticity."""

    schema: Annotated[str, OneOf((SET_SCHEMA,))]
    producer: Producer
    receipt_digest: Digest
    members: tuple[SetMember, ...]
