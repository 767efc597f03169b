"""The two sizes of the benchmark's model: as published, and with toy widths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from tallystick.compute.architecture import Architecture
from tallystick.compute.families import describe
from tallystick.compute.profiles import PROFILES, PublishedNumbers
from tallystick.engine import gguf_writer
from tallystick.engine.gguf_writer import Entry
from tallystick.engine.suite.architectures import RecurrentShape, Shape
from tests.support.tokenizer import tokenizer_entries, tokens

PROFILE: Final = "qwen3.6-35b-a3b"
_UNUSED: Final = 5  # ggml's type of a token that no text becomes
_REPLACED: Final = ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type")
_BOS: Final = "tokenizer.ggml.add_bos_token"


@dataclass(frozen=True, slots=True)
class Scale:
    """One size. ``kind_of`` gives a matrix its ggml type; needs are in bytes.

    ``rope_sections`` are the rotary pairs of time, height, width and none of the three.
    """

    name: str
    numbers: PublishedNumbers
    context: int
    rope_width: int
    rope_sections: tuple[int, int, int, int]
    kind_of: Callable[[str], str]
    disk: int
    memory: int

    @property
    def architecture(self) -> Architecture:
        """What the model is priced by."""
        return describe(self.numbers)

    def shape(self, layers: int, vocabulary: int) -> Shape:
        """Return the widths as the builder of models takes them."""
        numbers, shape = self.numbers, self.numbers.shape
        return Shape(
            architecture=numbers.architecture,
            layers=layers,
            width=numbers.embedding,
            heads=shape.heads,
            heads_kv=shape.heads_kv,
            head_width=shape.key_length,
            feed_forward=shape.expert_feed_forward,
            vocabulary=vocabulary,
            context=self.context,
            experts=numbers.experts,
            experts_used=numbers.experts_used,
            rope_base=1e7,
            rope_width=self.rope_width,
        )

    def recurrent(self) -> RecurrentShape:
        """Return the widths of the gated delta nets."""
        shape = self.numbers.shape
        return RecurrentShape(
            key_heads=shape.ssm_groups,
            value_heads=shape.ssm_rank,
            state=shape.ssm_state,
            kernel=shape.ssm_kernel,
        )


def _q4_k_m(name: str) -> str:
    """Q4_K, with Q6_K where the published quantisation mostly has it."""
    finer = name == "output.weight" or "ffn_down" in name or "attn_v" in name
    return "Q6_K" if finer else "Q4_K"


def _q8(_name: str) -> str:
    return "Q8_0"


_FULL: Final = Scale(
    name="full",
    numbers=PROFILES[PROFILE],
    context=262144,
    rope_width=64,
    rope_sections=(11, 11, 10, 0),
    kind_of=_q4_k_m,
    disk=30 * 10**9,
    memory=24 * 10**9,
)
_TOY_WIDTHS: Final = replace(
    _FULL.numbers.shape,
    heads=4,
    key_length=64,
    value_length=64,
    feed_forward=32,
    expert_feed_forward=32,
    shared_feed_forward=32,
    ssm_inner=256,
    ssm_state=32,
    ssm_rank=8,
    ssm_groups=4,
)
_TOY: Final = Scale(
    name="toy",
    numbers=replace(_FULL.numbers, embedding=64, vocabulary=1024, shape=_TOY_WIDTHS),
    context=4096,
    rope_width=8,
    rope_sections=(2, 1, 1, 0),
    kind_of=_q8,
    disk=10**9,
    memory=2 * 10**9,
)
SCALES: Final[Mapping[str, Scale]] = MappingProxyType({"full": _FULL, "toy": _TOY})


def vocabulary_entries(size: int) -> tuple[Entry, ...]:
    """Return the tests' small vocabulary, filled up to ``size`` with tokens that no text becomes.

    No BOS is added, so that a prompt has the tokens of its words and no more.
    """
    known = tokens()
    types = next(e for e in tokenizer_entries() if e.key == _REPLACED[1])
    kept = [e for e in tokenizer_entries() if e.key not in (*_REPLACED, _BOS)]
    names = (*known, *(f"<unused {number}>" for number in range(size - len(known))))
    return (
        *kept,
        gguf_writer.text_array(_REPLACED[0], names),
        _filled(types, size),
        gguf_writer.boolean(_BOS, value=False),
    )


def _filled(types: Entry, size: int) -> Entry:
    # A length of four bytes and a count of eight come before the items.
    known = memoryview(types.payload)[12:].cast("i").tolist()
    return gguf_writer.i32_array(types.key, (*known, *(_UNUSED,) * (size - len(known))))
