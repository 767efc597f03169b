"""The profile pins that ship with the program, and how a model file is held to one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tallystick.contracts.model import ModelFacts
from tallystick.contracts.profile_pin import MAX_PROFILE_PIN, ProfilePin, decode_profile_pin
from tallystick.contracts.runtime import EngineBuild
from tallystick.errors import IncomparableError, InputError

_FOLDER: Final = Path(__file__).with_name("profile_pins")
_DIGEST_PREFIX: Final = "sha256:"


def profile_names() -> tuple[str, ...]:
    """Return the names of the pins that ship, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def profile_pin(name: str) -> ProfilePin:
    """Return the pin called ``name``. Raises InputError for another name."""
    if name not in profile_names():
        raise InputError(
            "no such model profile",
            expected=" or ".join(profile_names()),
            found=ascii(name[:120]),
        )
    with (_FOLDER / f"{name}.json").open("rb") as file:
        return decode_profile_pin(file.read(MAX_PROFILE_PIN + 1))


def find_profile(digest: str, derived_from: str | None = None) -> ProfilePin | None:
    """Return the pin for a model file with this digest, or for the file it was derived from.

    None when no pin ships for it. Digests are ``sha256:...`` texts.
    """
    digests = {digest, derived_from}
    for name in profile_names():
        pin = profile_pin(name)
        if _DIGEST_PREFIX + pin.inference_artifact.sha256 in digests:
            return pin
    return None


def require_profile(pin: ProfilePin, facts: ModelFacts, digest: str, size: int) -> None:
    """Compare a model with its pin. Raises IncomparableError naming the first field that differs.

    A file that was derived from the pinned one (docs/spec/models.md#normalising) has another
    digest and size, and fewer tensors; its numbers have to be the pinned ones all the same.
    """
    _require("the model", pin, _pairs(pin, facts, digest, size))


def require_runtime(pin: ProfilePin, engine: EngineBuild) -> None:
    """Compare the engine with a pin. Raises IncomparableError naming what differs."""
    pairs = (
        ("runtime.engine", pin.runtime.engine, engine.name),
        ("runtime.build", pin.runtime.build, engine.version),
    )
    _require("the engine", pin, pairs)


def _require(what: str, pin: ProfilePin, pairs: Iterable[tuple[str, object, object]]) -> None:
    for field, expected, found in pairs:
        if expected != found:
            raise IncomparableError(
                f"{what} is not what the model's profile {pin.profile_name} says",
                expected=f"{field} {expected}",
                found=str(found),
                hint="the profile ships with this program and names these very bytes: reinstall it",
            )


def _pairs(
    pin: ProfilePin, facts: ModelFacts, digest: str, size: int
) -> Iterator[tuple[str, object, object]]:
    """Yield (field, as pinned, as found). What the file may leave out has its family's default."""
    model, shape = pin.model, facts.shape
    yield "gguf_architecture", model.gguf_architecture, facts.architecture
    yield "hidden_size", model.hidden_size, facts.embedding
    draft = 0 if shape is None else shape.draft_layers
    yield "num_hidden_layers", model.num_hidden_layers, facts.layers - draft
    yield "vocab_size", model.vocab_size, facts.vocabulary
    yield "max_position_embeddings", model.max_position_embeddings, facts.context_train
    yield "expert_count", model.expert_count, facts.experts
    yield "experts_per_token", model.experts_per_token, facts.experts_used
    if shape is not None:
        heads = shape.heads or 1
        width = shape.expert_feed_forward if facts.experts else shape.feed_forward
        shared = shape.shared_feed_forward if facts.experts else 0
        yield "num_attention_heads", model.num_attention_heads, shape.heads
        yield "num_key_value_heads", model.num_key_value_heads, shape.heads_kv or shape.heads
        yield "head_dim", model.head_dim, shape.key_length or facts.embedding // heads
        yield "intermediate_size", model.intermediate_size, width or shape.feed_forward
        yield "shared_expert_intermediate_size", model.shared_expert_intermediate_size, shared
        yield "linear_conv_kernel_dim", model.linear_conv_kernel_dim, shape.ssm_kernel
        yield "linear_key_head_dim", model.linear_key_head_dim, shape.ssm_state
        inner = shape.ssm_inner // (shape.ssm_rank or 1)
        yield "linear_value_head_dim", model.linear_value_head_dim, inner
        yield "linear_num_key_heads", model.linear_num_key_heads, shape.ssm_groups
        yield "linear_num_value_heads", model.linear_num_value_heads, shape.ssm_rank
    if digest == _DIGEST_PREFIX + pin.inference_artifact.sha256:
        yield "inference_artifact.bytes", pin.inference_artifact.bytes, size
        yield "parameters", model.parameters, facts.parameters
