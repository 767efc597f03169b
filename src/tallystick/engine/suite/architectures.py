"""Models of random weights for the architectures that the product knows, at any width.

A builder returns a whole model but for its vocabulary entries: the caller adds either a
tokenizer or the ``no_vocab`` marker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tallystick.engine import gguf_writer
from tallystick.engine.gguf_writer import Entry, Tensor
from tallystick.engine.suite.weights import FORMATS, near_one, negative, random_rows

# Which ggml type a matrix gets, by its tensor name.
KindOf = Callable[[str], str]

_POST_NORMS: Final = ("gemma2", "gemma3")
_HEAD_NORMS: Final = ("qwen3", "qwen3moe", "gemma3")
FULL_ATTENTION_INTERVAL: Final = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a model; the fields are named as GGUF names them.

    ``experts`` 0: no expert layers. ``sliding_window`` 0: attention is full everywhere.
    ``norm_size``: norm weights are near 4**norm_size. Hybrid models put full attention into
    each fourth layer and a gated delta net into the others.
    """

    architecture: str
    layers: int
    width: int
    heads: int
    heads_kv: int
    head_width: int
    feed_forward: int
    vocabulary: int
    context: int = 4096
    experts: int = 0
    experts_used: int = 0
    sliding_window: int = 0
    rope_base: float = 10000.0
    rope_width: int = 0
    norm_size: int = 0


@dataclass(frozen=True, slots=True)
class RecurrentShape:
    """The size of a gated delta net: head counts of keys and values, state and kernel width."""

    key_heads: int = 4
    value_heads: int = 8
    state: int = 32
    kernel: int = 4


@dataclass(frozen=True, slots=True)
class Model:
    """Metadata and tensors of one model, in file order."""

    architecture: str
    metadata: tuple[Entry, ...]
    tensors: tuple[Tensor, ...]


@dataclass(slots=True)
class _Assembly:
    """Collects the tensors of one model; every tensor's bytes follow from label and name."""

    label: str
    kind_of: KindOf
    norm_size: int
    tensors: list[Tensor] = field(default_factory=list)

    def _add(self, name: str, kind: str, shape: tuple[int, ...], data: bytes) -> None:
        self.tensors.append(Tensor(name, FORMATS[kind].number, shape, data))

    def matrix(self, name: str, *shape: int) -> None:
        """Add a product's weights, sized so that a product keeps the size of its input."""
        self.sized(name, self.kind_of(name), shape, -(shape[-1].bit_length() // 2))

    def plain(self, name: str, *shape: int) -> None:
        """Add weights that every real model keeps in F32 (routers, convolutions, biases)."""
        self.sized(name, "F32", shape, -2 if len(shape) == 1 else -(shape[-1].bit_length() // 2))

    def sized(self, name: str, kind: str, shape: tuple[int, ...], size: int) -> None:
        self._add(name, kind, shape, random_rows(self.label + name, kind, shape, size))

    def norm(self, name: str, width: int, louder: int = 0) -> None:
        """Add norm weights, 4**louder times as large as the model's other ones."""
        data = near_one(self.label + name, (width,), self.norm_size + louder)
        self._add(name, "F32", (width,), data)

    def decay(self, name: str, width: int) -> None:
        self._add(name, "F32", (width,), negative(self.label + name, (width,)))


def _metadata(shape: Shape) -> list[Entry]:
    u32, name = gguf_writer.u32, shape.architecture
    entries = [
        gguf_writer.text("general.architecture", name),
        u32("general.quantization_version", 2),
        u32(f"{name}.context_length", shape.context),
        u32(f"{name}.embedding_length", shape.width),
        u32(f"{name}.block_count", shape.layers),
        u32(f"{name}.feed_forward_length", shape.feed_forward),
        u32(f"{name}.attention.head_count", shape.heads),
        u32(f"{name}.attention.head_count_kv", shape.heads_kv),
        u32(f"{name}.attention.key_length", shape.head_width),
        u32(f"{name}.attention.value_length", shape.head_width),
        gguf_writer.f32(f"{name}.attention.layer_norm_rms_epsilon", 1e-6),
        gguf_writer.f32(f"{name}.rope.freq_base", shape.rope_base),
        u32(f"{name}.rope.dimension_count", shape.rope_width or shape.head_width),
    ]
    if shape.experts:
        entries += [
            u32(f"{name}.expert_count", shape.experts),
            u32(f"{name}.expert_used_count", shape.experts_used),
            u32(f"{name}.expert_feed_forward_length", shape.feed_forward),
        ]
    if shape.sliding_window:
        entries.append(u32(f"{name}.attention.sliding_window", shape.sliding_window))
    if name == "gemma2":
        entries.append(gguf_writer.f32("gemma2.attn_logit_softcapping", 50.0))
        entries.append(gguf_writer.f32("gemma2.final_logit_softcapping", 30.0))
    return entries


def _ends(make: _Assembly, shape: Shape) -> None:
    # A head tied to the embedding sees the input token in its own output: a small embedding and
    # a loud last norm keep such models from repeating one token for ever.
    tied = shape.architecture.startswith("gemma")
    table = "token_embd.weight"
    rows = (shape.vocabulary, shape.width)
    make.sized(table, make.kind_of(table), rows, -8 if tied else 0)
    make.norm("output_norm.weight", shape.width, louder=2 if tied else 0)
    if not tied:
        make.matrix("output.weight", *rows)


def _attention(make: _Assembly, shape: Shape, block: str, gate: int = 1) -> None:
    queries, keys = shape.heads * shape.head_width, shape.heads_kv * shape.head_width
    make.matrix(block + "attn_q.weight", queries * gate, shape.width)
    make.matrix(block + "attn_k.weight", keys, shape.width)
    make.matrix(block + "attn_v.weight", keys, shape.width)
    make.matrix(block + "attn_output.weight", shape.width, queries)
    if shape.architecture == "qwen2":
        make.plain(block + "attn_q.bias", queries)
        make.plain(block + "attn_k.bias", keys)
        make.plain(block + "attn_v.bias", keys)
    if shape.architecture in _HEAD_NORMS or gate > 1:
        make.norm(block + "attn_q_norm.weight", shape.head_width)
        make.norm(block + "attn_k_norm.weight", shape.head_width)


def _feed_forward(make: _Assembly, shape: Shape, block: str) -> None:
    wide, narrow = (shape.feed_forward, shape.width), (shape.width, shape.feed_forward)
    if shape.experts:
        make.plain(block + "ffn_gate_inp.weight", shape.experts, shape.width)
        make.matrix(block + "ffn_gate_exps.weight", shape.experts, *wide)
        make.matrix(block + "ffn_up_exps.weight", shape.experts, *wide)
        make.matrix(block + "ffn_down_exps.weight", shape.experts, *narrow)
    else:
        make.matrix(block + "ffn_gate.weight", *wide)
        make.matrix(block + "ffn_up.weight", *wide)
        make.matrix(block + "ffn_down.weight", *narrow)


def transformer(shape: Shape, kind_of: KindOf, label: str) -> Model:
    """Build a llama, qwen2, qwen3, qwen3moe, gemma2 or gemma3 model; ``label`` seeds it."""
    make = _Assembly(label, kind_of, shape.norm_size)
    _ends(make, shape)
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        make.norm(block + "attn_norm.weight", shape.width)
        _attention(make, shape, block)
        make.norm(block + "ffn_norm.weight", shape.width)
        _feed_forward(make, shape, block)
        if shape.architecture in _POST_NORMS:
            make.norm(block + "post_attention_norm.weight", shape.width)
            make.norm(block + "post_ffw_norm.weight", shape.width)
    return Model(shape.architecture, tuple(_metadata(shape)), tuple(make.tensors))


def _delta_net(make: _Assembly, width: int, recurrent: RecurrentShape, block: str) -> None:
    values = recurrent.value_heads * recurrent.state
    channels = 2 * recurrent.key_heads * recurrent.state + values
    make.matrix(block + "attn_qkv.weight", channels, width)
    make.matrix(block + "attn_gate.weight", values, width)
    make.plain(block + "ssm_conv1d.weight", channels, recurrent.kernel)
    make.plain(block + "ssm_dt.bias", recurrent.value_heads)
    make.decay(block + "ssm_a", recurrent.value_heads)
    make.matrix(block + "ssm_beta.weight", recurrent.value_heads, width)
    make.matrix(block + "ssm_alpha.weight", recurrent.value_heads, width)
    make.norm(block + "ssm_norm.weight", recurrent.state)
    make.matrix(block + "ssm_out.weight", width, values)


def _shared_expert(make: _Assembly, shape: Shape, block: str) -> None:
    make.plain(block + "ffn_gate_inp_shexp.weight", shape.width)
    make.matrix(block + "ffn_gate_shexp.weight", shape.feed_forward, shape.width)
    make.matrix(block + "ffn_up_shexp.weight", shape.feed_forward, shape.width)
    make.matrix(block + "ffn_down_shexp.weight", shape.width, shape.feed_forward)


def hybrid(shape: Shape, recurrent: RecurrentShape, kind_of: KindOf, label: str) -> Model:
    """Build a qwen35moe model: gated delta nets, each fourth layer attention, shared expert."""
    u32, name = gguf_writer.u32, shape.architecture
    pairs = shape.rope_width // 2
    sections = (pairs - 2 * (pairs // 4), pairs // 4, pairs // 4, 0)
    metadata = (
        *_metadata(shape),
        gguf_writer.i32_array(f"{name}.rope.dimension_sections", sections),
        u32(f"{name}.expert_shared_feed_forward_length", shape.feed_forward),
        u32(f"{name}.ssm.conv_kernel", recurrent.kernel),
        u32(f"{name}.ssm.inner_size", recurrent.value_heads * recurrent.state),
        u32(f"{name}.ssm.state_size", recurrent.state),
        u32(f"{name}.ssm.time_step_rank", recurrent.value_heads),
        u32(f"{name}.ssm.group_count", recurrent.key_heads),
        u32(f"{name}.full_attention_interval", FULL_ATTENTION_INTERVAL),
    )
    make = _Assembly(label, kind_of, shape.norm_size)
    _ends(make, shape)
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        make.norm(block + "attn_norm.weight", shape.width)
        if (layer + 1) % FULL_ATTENTION_INTERVAL == 0:
            _attention(make, shape, block, gate=2)
        else:
            _delta_net(make, shape.width, recurrent, block)
        make.norm(block + "post_attention_norm.weight", shape.width)
        _feed_forward(make, shape, block)
        _shared_expert(make, shape, block)
    return Model(name, metadata, tuple(make.tensors))
