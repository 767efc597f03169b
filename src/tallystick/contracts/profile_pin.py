"""A published model, pinned: numbers, base metadata, file (docs/spec/profile-pins.md).

The key names are those of the contract ``misaka.palw.model-profile-pin.v2``; unknown keys are
refused. Digests are 64 hexadecimal digits here, as they are published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from tallystick.canonical.json import parse_strict
from tallystick.contracts.codec import decode
from tallystick.contracts.request import Producer
from tallystick.contracts.types import (
    U32,
    U64,
    Count,
    Hex32,
    IntRange,
    MaxLength,
    OneOf,
    Pattern,
    ShortText,
)
from tallystick.errors import EvidenceError

PROFILE_PIN_SCHEMA: Final = "misaka.palw.model-profile-pin.v2"
BASE_METADATA_SCHEMA: Final = "tallystick.base-metadata/v1"
METADATA_ONLY: Final = "metadata-only"
METADATA_FILES: Final = 7
MAX_PROFILE_PIN: Final = 64 * 1024
MILLION: Final = 1_000_000

FileName = Annotated[str, Pattern(r"[A-Za-z0-9][A-Za-z0-9._-]*", 120)]
RepositoryName = Annotated[
    str, Pattern(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)?", 200)
]
Commit = Annotated[str, Pattern(r"[0-9a-f]{40}", 40)]
FileBytes = Annotated[int, IntRange(1, 2**53 - 1)]


@dataclass(frozen=True, slots=True)
class PinnedModel:
    """The numbers of a model as its publisher's configuration names them; 0: it has no such part.

    ``head_dim`` is independent of ``hidden_size / num_attention_heads``. ``intermediate_size`` is
    the width of a dense layer or of one expert. Where ``full_attention_interval`` is n, each n-th
    layer has softmax attention with ``num_key_value_heads`` heads of keys and values; the others
    are linear and have none. ``parameters`` counts every tensor of the file.
    """

    architecture: ShortText
    model_type: ShortText
    gguf_architecture: ShortText
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count
    head_dim: Count
    intermediate_size: Count
    expert_count: U32
    experts_per_token: U32
    shared_expert_intermediate_size: U32
    full_attention_interval: U32
    linear_conv_kernel_dim: U32
    linear_key_head_dim: U32
    linear_value_head_dim: U32
    linear_num_key_heads: U32
    linear_num_value_heads: U32
    vocab_size: Count
    max_position_embeddings: Count
    rope: ShortText
    rope_theta: Count
    partial_rotary_factor_millionths: Annotated[int, IntRange(1, MILLION)]
    dtype: ShortText
    quantization: ShortText
    parameters: U64


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """One metadata file; ``sha256`` is null where it was not published."""

    path: FileName
    sha256: Hex32 | None


@dataclass(frozen=True, slots=True)
class BaseArtifact:
    """The model that the file was made from: of it only small files that describe it are read."""

    repository: RepositoryName
    revision: Commit
    download_scope: Annotated[str, OneOf((METADATA_ONLY,))]
    files: Annotated[tuple[PinnedFile, ...], MaxLength(METADATA_FILES)]


@dataclass(frozen=True, slots=True)
class InferenceArtifact:
    """The GGUF file: where it is, and that ``revision`` and ``sha256`` are both its content's."""

    registry: ShortText
    repository: RepositoryName
    tag: ShortText
    revision: Hex32
    bytes: FileBytes
    sha256: Hex32


@dataclass(frozen=True, slots=True)
class PinnedRuntime:
    """The engine that the pin was made for."""

    engine: ShortText
    build: ShortText


@dataclass(frozen=True, slots=True)
class ProfilePin:
    """One pinned model."""

    schema: Annotated[str, OneOf((PROFILE_PIN_SCHEMA,))]
    profile_name: ShortText
    model: PinnedModel
    base_artifact: BaseArtifact
    inference_artifact: InferenceArtifact
    runtime: PinnedRuntime


@dataclass(frozen=True, slots=True)
class MetadataRecord:
    """One metadata file as it was found."""

    path: FileName
    sha256: Hex32
    bytes: FileBytes


@dataclass(frozen=True, slots=True)
class BaseMetadata:
    """What a fetch of base metadata found; written beside the files."""

    schema: Annotated[str, OneOf((BASE_METADATA_SCHEMA,))]
    producer: Producer
    profile_name: ShortText
    repository: RepositoryName
    revision: Commit
    files: Annotated[tuple[MetadataRecord, ...], MaxLength(METADATA_FILES)]


def decode_profile_pin(data: bytes) -> ProfilePin:
    """Return the pin that the JSON text ``data`` holds, its rules checked. Raises EvidenceError."""
    value = parse_strict(data, max_bytes=MAX_PROFILE_PIN)
    pin = decode(ProfilePin, value, where="profile pin")
    check_profile_pin(pin)
    return pin


def check_profile_pin(pin: ProfilePin) -> None:
    """Check the rules between the fields. Raises EvidenceError naming the field."""
    _check_model(pin.model)
    files = pin.base_artifact.files
    names = {file.path for file in files}
    if len(files) != METADATA_FILES or len(names) != METADATA_FILES:
        raise _bad(
            "base_artifact.files", f"{METADATA_FILES} different files", f"{len(names)} of them"
        )
    if pin.inference_artifact.revision != pin.inference_artifact.sha256:
        raise _bad(
            "inference_artifact.revision",
            f"{pin.inference_artifact.sha256}, as sha256",
            pin.inference_artifact.revision,
        )


def _check_model(model: PinnedModel) -> None:
    _require_multiple(
        "hidden_size", model.hidden_size, "num_attention_heads", model.num_attention_heads
    )
    _require_multiple(
        "num_attention_heads",
        model.num_attention_heads,
        "num_key_value_heads",
        model.num_key_value_heads,
    )
    if model.expert_count == 0:
        if model.experts_per_token or model.shared_expert_intermediate_size:
            raise _bad("model.expert_count", "experts", "none, but some are used")
    elif not 1 <= model.experts_per_token <= model.expert_count:
        raise _bad(
            "model.experts_per_token", f"1..{model.expert_count}", str(model.experts_per_token)
        )
    _check_linear(model)


def _check_linear(model: PinnedModel) -> None:
    linear = (
        model.linear_conv_kernel_dim,
        model.linear_key_head_dim,
        model.linear_value_head_dim,
        model.linear_num_key_heads,
        model.linear_num_value_heads,
    )
    hybrid = model.full_attention_interval > 1
    if hybrid != all(linear) or hybrid != any(linear):
        raise _bad(
            "model.full_attention_interval",
            "every size of linear layers, or none of them",
            str(model.full_attention_interval),
        )
    if hybrid:
        _require_multiple(
            "linear_num_value_heads",
            model.linear_num_value_heads,
            "linear_num_key_heads",
            model.linear_num_key_heads,
        )
        if model.num_hidden_layers < model.full_attention_interval:
            raise _bad(
                "model.num_hidden_layers",
                f"at least {model.full_attention_interval}",
                str(model.num_hidden_layers),
            )


def _require_multiple(name: str, value: int, of: str, divisor: int) -> None:
    if value % divisor:
        raise _bad(f"model.{name}", f"a multiple of {of} ({divisor})", str(value))


def _bad(name: str, expected: str, found: str) -> EvidenceError:
    return EvidenceError(f"profile pin: bad field {name}", expected=expected, found=found)
