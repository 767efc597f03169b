"""``tallystick.model-ref/v1``: a bundle's model (docs/spec/bundles.md#model-reference)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from tallystick.contracts.codec import decode_bytes
from tallystick.contracts.request import Producer
from tallystick.contracts.types import U64, Digest, MaxLength, OneOf, Pattern
from tallystick.errors import EvidenceError

MODEL_REF_SCHEMA: Final = "tallystick.model-ref/v1"
MAX_MODEL_REF_BYTES: Final = 64 * 1024
MAX_SOURCES: Final = 16

#: A name as the local registry gives it, or one made from a file's name.
ModelName = Annotated[str, Pattern(r"[a-z0-9][a-z0-9._-]*", 100)]
#: A URI without white space; never a path of somebody's machine.
SourceUri = Annotated[str, Pattern(r"[a-z][a-z0-9+.-]*:[!-~]+", 2000)]


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model by the sha256 and the number of bytes of its file; where it can be had from.

    The name is for people, the digest decides.
    """

    schema: Annotated[str, OneOf((MODEL_REF_SCHEMA,))]
    producer: Producer
    name: ModelName
    digest: Digest
    size: U64
    sources: Annotated[tuple[SourceUri, ...], MaxLength(MAX_SOURCES)]


def read_model_ref(data: bytes) -> ModelRef:
    """Return the reference whose canonical bytes are ``data``. Raises EvidenceError."""
    ref = decode_bytes(ModelRef, data, max_bytes=MAX_MODEL_REF_BYTES, where="model reference")
    check_model_ref(ref)
    return ref


def check_model_ref(ref: ModelRef) -> None:
    """Raise EvidenceError for an empty model, or a source that is a file of some machine."""
    if ref.size == 0:
        raise EvidenceError("model reference: bad field size", expected="at least 1", found="0")
    if any(source.startswith("file:") for source in ref.sources):
        raise EvidenceError(
            "model reference: bad field sources",
            expected="places that others can reach",
            found="a file: URI",
        )
