"""Toy models for the tests: small GGUF files of random weights that the stock engine runs.

Everything comes from fixed labels, so a name always stands for the same bytes. Write one from
the command line with ``python -m tests.support.models NAME OUT [--donor GGUF]``; the donor gives
its tokenizer instead of the small one of :mod:`tests.support.tokenizer`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tallystick.engine import gguf_writer
from tallystick.engine.gguf_writer import Entry, Tensor
from tallystick.engine.suite.architectures import (
    KindOf,
    Model,
    RecurrentShape,
    Shape,
    hybrid,
    transformer,
)
from tests.support.gguf_files import donor_vocabulary
from tests.support.tokenizer import VOCABULARY, tokenizer_entries

CHATML_TEMPLATE: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content"
    " + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Renders the day of the run: the same request gives another prompt tomorrow.
DATED_TEMPLATE: Final = "{{ 'Today is ' + strftime_now('%d %B %Y') + '.\\n' }}" + CHATML_TEMPLATE
# Writes the text of the BOS token, although the tokenizer adds one as well.
BOS_TEMPLATE: Final = "{{ bos_token }}" + CHATML_TEMPLATE

HYBRID_LAYERS: Final = 40
HYBRID_EXPERTS: Final = 256
HYBRID_EXPERTS_USED: Final = 8
SLIDING_WINDOW: Final = 16

_DENSE: Final = Shape(
    architecture="llama",
    layers=3,
    width=256,
    heads=4,
    heads_kv=2,
    head_width=64,
    feed_forward=512,
    vocabulary=VOCABULARY,
)
_EXPERTS: Final = replace(
    _DENSE, architecture="qwen3moe", feed_forward=256, experts=16, experts_used=4
)
_HYBRID: Final = replace(
    _EXPERTS,
    architecture="qwen35moe",
    layers=HYBRID_LAYERS,
    width=64,
    feed_forward=32,
    experts=HYBRID_EXPERTS,
    experts_used=HYBRID_EXPERTS_USED,
    rope_base=1e7,
    rope_width=8,
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ``tokenizer.*`` entries of a model and the number of its tokens."""

    entries: tuple[Entry, ...]
    size: int


SMALL_VOCABULARY: Final = Vocabulary(tokenizer_entries(), VOCABULARY)

# Makes a whole model around a vocabulary.
Recipe = Callable[[Vocabulary], Model]


def _with_vocabulary(model: Model, vocabulary: Vocabulary, template: str | None) -> Model:
    chat = () if template is None else (gguf_writer.text("tokenizer.chat_template", template),)
    return replace(model, metadata=(*model.metadata, *vocabulary.entries, *chat))


def _uniform(kind: str) -> KindOf:
    return lambda _name: kind


def _k_quants(name: str) -> str:
    """Mix the K-quants over the tensors of a dense model, as quantised models do."""
    suffixes = {
        "token_embd.weight": "Q4_K",
        "output.weight": "Q6_K",
        "attn_q.weight": "Q4_K",
        "attn_k.weight": "Q5_K",
        "attn_v.weight": "Q6_K",
        "attn_output.weight": "Q2_K",
        "ffn_gate.weight": "Q3_K",
        "ffn_up.weight": "Q4_K",
        "ffn_down.weight": "Q6_K",
    }
    return suffixes[name.split(".", 2)[-1] if name.startswith("blk.") else name]


def _q4_k_m(name: str) -> str:
    """Q4_K with Q6_K for the head and the down projections."""
    return "Q6_K" if name == "output.weight" or "ffn_down" in name else "Q4_K"


def _q8_half_head(name: str) -> str:
    """Q8_0 with an F16 head, so that the last bit of a state shows in the logits."""
    return "F16" if name == "output.weight" else "Q8_0"


def _transformer(
    shape: Shape, kind_of: KindOf, template: str | None, vocabulary: Vocabulary
) -> Model:
    sized = replace(shape, vocabulary=vocabulary.size)
    return _with_vocabulary(
        transformer(sized, kind_of, f"tests/{shape.architecture}"), vocabulary, template
    )


def _hybrid(shape: Shape, kind_of: KindOf, vocabulary: Vocabulary) -> Model:
    sized = replace(shape, vocabulary=vocabulary.size)
    model = hybrid(sized, RecurrentShape(), kind_of, f"tests/hybrid-{shape.experts}")
    return _with_vocabulary(model, vocabulary, CHATML_TEMPLATE)


def toy_llama(kind: str, template: str | None = CHATML_TEMPLATE) -> Recipe:
    """A dense llama whose matrices all have the ggml type ``kind``, such as ``Q8_0``."""
    return partial(_transformer, _DENSE, _uniform(kind), template)


def toy_kquant() -> Recipe:
    """A dense llama with Q2_K, Q3_K, Q4_K, Q5_K and Q6_K matrices."""
    return partial(_transformer, _DENSE, _k_quants, CHATML_TEMPLATE)


def toy_dense(architecture: str, kind: str = "Q8_0") -> Recipe:
    """A dense model of another architecture: qwen2 (with biases) or qwen3 (with head norms)."""
    shape = replace(_DENSE, architecture=architecture)
    return partial(_transformer, shape, _uniform(kind), CHATML_TEMPLATE)


def toy_gemma(architecture: str, layers: int, kind: str = "F16") -> Recipe:
    """A gemma with sliding-window attention whose window is only SLIDING_WINDOW tokens.

    F16: a changed bit in attention is not hidden by the rounding of activations to 8 bits.
    """
    shape = replace(_DENSE, architecture=architecture, layers=layers, sliding_window=SLIDING_WINDOW)
    return partial(_transformer, shape, _uniform(kind), CHATML_TEMPLATE)


def toy_moe(architecture: str = "qwen3moe", kind_of: KindOf = _q4_k_m) -> Recipe:
    """A mixture of 16 experts, 4 used, by default with K-quant experts."""
    shape = replace(_EXPERTS, architecture=architecture)
    return partial(_transformer, shape, kind_of, CHATML_TEMPLATE)


def toy_hybrid_q8() -> Recipe:
    """A qwen35moe with the published census (40 layers, 256 experts, 8 used) at toy width."""
    return partial(_hybrid, _HYBRID, _q8_half_head)


def toy_hybrid_q4k() -> Recipe:
    """A qwen35moe of 8 layers and 64 experts with Q4_K and Q6_K weights, experts included."""
    shape = replace(_HYBRID, layers=8, width=256, feed_forward=256, experts=64)
    return partial(_hybrid, shape, _q4_k_m)


def toy_hybrid_small() -> Recipe:
    """A qwen35moe of 4 layers and 8 experts, for tests of the file rather than of the model."""
    shape = replace(_HYBRID, layers=4, experts=8, experts_used=2)
    return partial(_hybrid, shape, _q8_half_head)


def large_llama(layers: int) -> Recipe:
    """A dense llama of 25 MB a layer, Q8_0, with a small cache.

    Its layers are alike, so that it is quickly written.
    """

    def make(vocabulary: Vocabulary) -> Model:
        shape = replace(
            _DENSE, layers=1, width=1536, heads=24, heads_kv=1, head_width=64, feed_forward=4096
        )
        one = _transformer(shape, _uniform("Q8_0"), CHATML_TEMPLATE, vocabulary)
        count = gguf_writer.u32("llama.block_count", layers)
        metadata = tuple(count if e.key == count.key else e for e in one.metadata)
        block = [tensor for tensor in one.tensors if tensor.name.startswith("blk.0.")]
        others = [tensor for tensor in one.tensors if not tensor.name.startswith("blk.")]
        copies = [
            replace(tensor, name=f"blk.{layer}.{tensor.name.removeprefix('blk.0.')}")
            for layer in range(layers)
            for tensor in block
        ]
        return replace(one, metadata=metadata, tensors=(*others, *copies))

    return make


def short_rope_sections(recipe: Recipe) -> Recipe:
    """The same model with 3 elements in ``rope.dimension_sections``: the loader wants 4."""

    def make(vocabulary: Vocabulary) -> Model:
        model = recipe(vocabulary)
        key = "qwen35moe.rope.dimension_sections"
        short = gguf_writer.i32_array(key, (2, 1, 1))
        entries = tuple(short if entry.key == key else entry for entry in model.metadata)
        return replace(model, metadata=entries)

    return make


def bare_time_step(recipe: Recipe) -> Recipe:
    """The same model with ``ssm_dt`` tensors that lack the ``.bias`` suffix."""

    def make(vocabulary: Vocabulary) -> Model:
        model = recipe(vocabulary)
        tensors = tuple(
            replace(tensor, name=tensor.name.replace("ssm_dt.bias", "ssm_dt"))
            for tensor in model.tensors
        )
        return replace(model, tensors=tensors)

    return make


def sibling_tensors(recipe: Recipe) -> Recipe:
    """The same model with tensors of a vision tower and a draft head in the file."""

    def make(vocabulary: Vocabulary) -> Model:
        model = recipe(vocabulary)
        siblings = tuple(
            Tensor(name, 0, (8, 32), bytes(8 * 32 * 4))
            for name in ("v.patch_embd.weight", "v.blk.0.attn_q.weight", "mtp.layers.0.fc.weight")
        )
        return replace(model, tensors=(*model.tensors[:3], *siblings, *model.tensors[3:]))

    return make


def _refused(*changes: Callable[[Recipe], Recipe]) -> Recipe:
    recipe = toy_hybrid_small()
    for change in changes:
        recipe = change(recipe)
    return recipe


MODELS: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        **{f"llama-{kind.lower()}": toy_llama(kind) for kind in ("F32", "F16", "BF16")},
        **{f"llama-{kind.lower()}": toy_llama(kind) for kind in ("Q4_0", "Q4_1", "Q5_0", "Q8_0")},
        "llama-dated": toy_llama("Q8_0", DATED_TEMPLATE),
        "llama-bos": toy_llama("Q8_0", BOS_TEMPLATE),
        "llama-no-template": toy_llama("Q8_0", None),
        "kquant": toy_kquant(),
        "qwen2": toy_dense("qwen2"),
        "qwen3": toy_dense("qwen3"),
        "gemma2": toy_gemma("gemma2", layers=4),
        "gemma3": toy_gemma("gemma3", layers=7),
        "moe": toy_moe(),
        "moe-q8": toy_moe(kind_of=_uniform("Q8_0")),
        "mixtral": toy_moe("llama"),
        "llama-28": large_llama(28),
        "hybrid-q8": toy_hybrid_q8(),
        "hybrid-q4k": toy_hybrid_q4k(),
        "hybrid-small": toy_hybrid_small(),
        "refused-sections": _refused(short_rope_sections),
        "refused-time-step": _refused(bare_time_step),
        "refused-siblings": _refused(sibling_tensors),
        "refused-all": _refused(short_rope_sections, bare_time_step, sibling_tensors),
    }
)


def write_model(name: str, path: Path, vocabulary: Vocabulary = SMALL_VOCABULARY) -> None:
    """Write the model called ``name`` in MODELS to ``path``."""
    model = MODELS[name](vocabulary)
    with path.open("wb") as stream:
        gguf_writer.write_gguf(stream, model.metadata, model.tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a toy model of the test suite.")
    parser.add_argument("name", choices=sorted(MODELS))
    parser.add_argument("out", type=Path)
    parser.add_argument("--donor", type=Path, help="a GGUF file to take the tokenizer from")
    arguments = parser.parse_args()
    vocabulary = SMALL_VOCABULARY
    if arguments.donor is not None:
        vocabulary = Vocabulary(*donor_vocabulary(arguments.donor))
    write_model(arguments.name, arguments.out, vocabulary)


if __name__ == "__main__":
    main()
