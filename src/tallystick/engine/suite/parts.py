"""The numeric conformance suite: which tiny models are run, on which tokens, in which batches.

Machines whose raw outputs over this suite are equal are taken to compute equal bits
(docs/spec/fingerprint.md). Nothing is left to the machine: models, token ids, positions and
batch sizes are constants or come from integers. A released part never changes: another suite
has another SUITE_VERSION.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from tallystick.engine import gguf_writer
from tallystick.engine.gguf_writer import Entry
from tallystick.engine.suite.architectures import (
    KindOf,
    Model,
    RecurrentShape,
    Shape,
    hybrid,
    transformer,
)

SUITE_VERSION: Final = "1"

_VOCABULARY: Final = 96
# Below and above every row count at which the engine is known to change kernels.
_BATCHES: Final = (33, 8, 7, 2, 1)
# More than one block of 256 cache cells.
_LONG_BATCHES: Final = (256, 33, 8, 2, 1)
_FAR_POSITION: Final = 100_000

_LLAMA: Final = Shape(
    architecture="llama",
    layers=1,
    width=256,
    heads=4,
    heads_kv=1,
    head_width=64,
    feed_forward=256,
    vocabulary=_VOCABULARY,
)
# For types without blocks of 256.
_NARROW: Final = replace(_LLAMA, feed_forward=64)
_EXPERTS: Final = replace(_LLAMA, architecture="qwen3moe", experts=4, experts_used=2)
_HYBRID: Final = replace(
    _LLAMA,
    architecture="qwen35moe",
    layers=4,
    experts=4,
    experts_used=2,
    rope_base=10_000_000.0,
    rope_width=32,
)
_RECURRENT: Final = RecurrentShape(key_heads=2, value_heads=4, state=64)


@dataclass(frozen=True, slots=True)
class SuitePart:
    """One model and what it is to be fed; ``recipe`` makes the model from a label.

    Row i of the run is ``tokens[i]`` at position ``first_position + i`` of one fresh sequence;
    the rows are evaluated in batches of the sizes in ``batches``, which sum to ``len(tokens)``.
    """

    name: str
    tokens: tuple[int, ...]
    first_position: int
    batches: tuple[int, ...]
    recipe: Callable[[str], Model]

    def build(self) -> bytes:
        """Return the model's GGUF file: the same bytes on every machine."""
        model = self.recipe(f"tallystick.suite/{SUITE_VERSION}/{self.name}/")
        vocabulary = (
            gguf_writer.text("tokenizer.ggml.model", "no_vocab"),
            gguf_writer.u32(f"{model.architecture}.vocab_size", _VOCABULARY),
        )
        stream = io.BytesIO()
        gguf_writer.write_gguf(stream, (*model.metadata, *vocabulary), model.tensors)
        return stream.getvalue()


def _by_layer(*kinds: str) -> KindOf:
    """Give layer N the N-th kind, the embedding the first and the head the last."""

    def kind_of(name: str) -> str:
        if name.startswith("blk."):
            return kinds[int(name.split(".")[1]) % len(kinds)]
        return kinds[-1] if name == "output.weight" else kinds[0]

    return kind_of


def _part(
    name: str,
    model: Callable[[str], Model],
    first_position: int = 0,
    batches: tuple[int, ...] = _BATCHES,
) -> SuitePart:
    raw = hashlib.shake_256(f"tallystick.suite/tokens/{name}".encode()).digest(sum(batches))
    tokens = tuple(byte % _VOCABULARY for byte in raw)
    return SuitePart(name, tokens, first_position, batches, model)


def _kinds(name: str, *kinds: str) -> SuitePart:
    """A llama with one layer of each weight type."""
    shape = replace(_LLAMA, layers=len(kinds))
    return _part(name, lambda label: transformer(shape, _by_layer(*kinds), label))


def _plain(
    name: str,
    shape: Shape,
    *kinds: str,
    entries: tuple[Entry, ...] = (),
    first_position: int = 0,
    batches: tuple[int, ...] = _BATCHES,
) -> SuitePart:
    def model(label: str) -> Model:
        built = transformer(shape, _by_layer(*kinds), label)
        return replace(built, metadata=(*built.metadata, *entries))

    return _part(name, model, first_position, batches)


def _hybrid(name: str, shape: Shape, *kinds: str) -> SuitePart:
    return _part(name, lambda label: hybrid(shape, _RECURRENT, _by_layer(*kinds), label))


def _weight_types() -> tuple[SuitePart, ...]:
    return (
        _kinds("float", "F32", "F16", "BF16"),
        _kinds("q4-q8", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
        _kinds("k-quants", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
        _kinds("iq1-iq2", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S"),
        _kinds("iq3-iq4", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"),
        _kinds("few-bits", "TQ1_0", "TQ2_0", "Q1_0", "Q2_0"),
        _kinds("fp4", "MXFP4", "NVFP4"),
    )


def _architectures() -> tuple[SuitePart, ...]:
    gemma = replace(_NARROW, sliding_window=16)
    return (
        _plain("qwen2", replace(_NARROW, architecture="qwen2", layers=2), "Q8_0", "F16"),
        _plain("qwen3", replace(_LLAMA, architecture="qwen3", layers=2), "Q4_K", "F16"),
        _plain("gemma2", replace(gemma, architecture="gemma2", layers=2), "F16"),
        # Every sixth layer attends to everything, the others to the window.
        _plain("gemma3", replace(gemma, architecture="gemma3", layers=6), "F16", "Q8_0"),
        _plain("qwen3moe", replace(_EXPERTS, layers=4), "F16", "Q8_0", "Q4_K", "Q6_K"),
        _plain("mixtral", replace(_EXPERTS, architecture="llama", layers=2), "MXFP4", "IQ4_XS"),
        _hybrid("qwen35moe-q8", replace(_HYBRID, feed_forward=64), "Q8_0", "F16"),
        _hybrid("qwen35moe-k", _HYBRID, "Q4_K", "Q6_K"),
    )


def _ranges() -> tuple[SuitePart, ...]:
    yarn = (
        gguf_writer.text("llama.rope.scaling.type", "yarn"),
        gguf_writer.f32("llama.rope.scaling.factor", 4.0),
        gguf_writer.u32("llama.rope.scaling.original_context_length", 1024),
    )
    return (
        _plain("far-positions", _NARROW, "F32", first_position=_FAR_POSITION),
        _plain("far-positions-yarn", _NARROW, "F32", entries=yarn, first_position=_FAR_POSITION),
        _plain("loud", replace(_NARROW, layers=2, norm_size=1), "F16", "F32"),
        _plain("saturated", replace(_NARROW, layers=2, norm_size=3), "F16", "F32"),
        _plain("quiet", replace(_NARROW, layers=2, norm_size=-6), "F16", "F32"),
        _plain("long-cache", _NARROW, "F16", batches=_LONG_BATCHES),
    )


def suite() -> tuple[SuitePart, ...]:
    """Return all parts, in the order in which they enter the fingerprint."""
    return (*_weight_types(), *_architectures(), *_ranges())
