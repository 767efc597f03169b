"""What the facts say about a file, and which files are no models."""

from __future__ import annotations

import hashlib
import os
from dataclasses import fields, replace

import pytest

from tallystick.canonical.hashing import domain_hash
from tallystick.contracts.codec import decode, encode
from tallystick.contracts.model import ModelFacts, ModelShape, WeightType
from tallystick.errors import IncomparableError, InputError
from tallystick.models.facts import facts_of, tokenizer_digest
from tallystick.models.gguf import read_header
from tests.support.gguf_bytes import (
    I32,
    STRING,
    U32,
    U64,
    GgufBytes,
    TensorBytes,
    array,
    as_file,
    scalar,
    tiny,
)

NO_WIDTHS = ModelShape(**dict.fromkeys((field.name for field in fields(ModelShape)), 0))


def facts(built: GgufBytes) -> ModelFacts:
    with as_file(built.build()) as descriptor:
        return facts_of(descriptor)


def test_every_fact_of_a_small_file() -> None:
    built = tiny().with_entries(
        ("llama.expert_count", scalar(U32, 8)), ("llama.expert_used_count", scalar(U64, 2))
    )
    found = facts(built)
    template = hashlib.sha256(b"{{ messages }}").hexdigest()
    assert found == ModelFacts(
        schema="tallystick.model-facts/v2",
        gguf_version=3,
        architecture="llama",
        name="Tiny",
        layers=2,
        embedding=32,
        context_train=128,
        vocabulary=4,
        experts=8,
        experts_used=2,
        shape=NO_WIDTHS,
        parameters=128 + 32 + 3,
        tensors=3,
        weight_types=(WeightType("F32", 2, 140), WeightType("Q8_0", 1, 136)),
        tokenizer_model="gpt2",
        tokenizer_digest=found.tokenizer_digest,
        chat_template_digest=f"sha256:{template}",
        template_uses_clock=False,
        needs_normalising=(),
    )
    assert decode(ModelFacts, encode(found)) == found


def test_the_tokenizer_digest_is_the_framed_hash_over_sorted_entries() -> None:
    built = tiny()
    parts: list[bytes] = []
    for key, value in sorted(built.entries, key=lambda pair: str(pair[0]).encode()):
        if str(key).startswith("tokenizer.") and key != "tokenizer.chat_template":
            parts += [str(key).encode(), value]
    assert len(parts) == 8
    expected = domain_hash("tallystick.tokenizer", 1, parts).hex()
    assert facts(built).tokenizer_digest == f"sha256:{expected}"


def test_the_tokenizer_digest_ignores_order_template_and_the_rest_of_the_file() -> None:
    built = tiny()
    other = replace(built, entries=tuple(reversed(built.entries)), version=2)
    other = other.with_entries(
        ("tokenizer.chat_template", scalar(STRING, "another")),
        ("tokenizer.chat_template.tool_use", scalar(STRING, "third")),
        ("tokenizer.chat_templates", array(STRING, ["tool_use"])),
        ("llama.block_count", scalar(U32, 9)),
    )
    assert facts(other).tokenizer_digest == facts(built).tokenizer_digest
    assert facts(other).chat_template_digest != facts(built).chat_template_digest


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer.ggml.bos_token_id", scalar(U32, 2)),
        ("tokenizer.ggml.bos_token_id", scalar(I32, 1)),
        ("tokenizer.ggml.tokens", array(STRING, ["a", "b", "", "日"])),
        ("tokenizer.ggml.add_bos_token", scalar(U32, 1)),
    ],
)
def test_the_tokenizer_digest_changes_with_every_entry(key: str, value: bytes) -> None:
    assert (
        facts(tiny().with_entries((key, value))).tokenizer_digest != facts(tiny()).tokenizer_digest
    )


def test_a_large_vocabulary_is_hashed_in_pieces() -> None:
    tokens = array(STRING, [f"token-{i}" for i in range(120_000)])
    built = tiny().with_entries(("tokenizer.ggml.tokens", tokens))
    assert len(tokens) > 2 * 1024 * 1024
    with as_file(built.build()) as descriptor:
        found = tokenizer_digest(descriptor, read_header(descriptor))
    parts: list[bytes] = []
    for key, value in sorted(built.entries, key=lambda pair: str(pair[0])):
        if str(key).startswith("tokenizer.ggml"):
            parts += [str(key).encode(), value]
    assert found == domain_hash("tallystick.tokenizer", 1, parts)


def test_the_template_clock_is_seen_and_its_absence_too() -> None:
    dated = tiny().with_entries(
        ("tokenizer.chat_template", scalar(STRING, "{{ strftime_now('%d %b') }}"))
    )
    assert facts(dated).template_uses_clock
    entries = tuple(pair for pair in tiny().entries if pair[0] != "tokenizer.chat_template")
    bare = facts(replace(tiny(), entries=entries))
    assert bare.chat_template_digest is None
    assert not bare.template_uses_clock


def test_a_missing_vocabulary_list_falls_back_to_the_count() -> None:
    entries = tuple(pair for pair in tiny().entries if pair[0] != "tokenizer.ggml.tokens")
    built = replace(tiny(), entries=entries)
    assert facts(built).vocabulary == 0
    assert facts(built.with_entries(("llama.vocab_size", scalar(U32, 99)))).vocabulary == 99


def test_texts_are_one_printable_line() -> None:
    hostile = "a\nb\x1b[2J" + "\N{RIGHT-TO-LEFT OVERRIDE}" + "x" * 400
    name = facts(tiny().with_entries(("general.name", scalar(STRING, hostile)))).name
    assert name.startswith("a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[2J")
    assert name.isprintable()
    assert len(name) == 200


def test_wrongly_typed_numbers_count_as_absent_and_absurd_ones_are_refused() -> None:
    assert facts(tiny().with_entries(("llama.block_count", scalar(STRING, "2")))).layers == 0
    assert facts(tiny().with_entries(("llama.block_count", array(U32, [2])))).layers == 0
    with pytest.raises(InputError, match="out of range"):
        facts(tiny().with_entries(("llama.block_count", scalar(U64, 2**40))))
    with pytest.raises(InputError, match="out of range"):
        facts(tiny().with_entries(("llama.block_count", scalar(I32, -1))))


def test_one_part_of_a_split_model_is_refused_with_the_way_out() -> None:
    split = tiny().with_entries(("split.count", scalar(U32, 3)), ("split.no", scalar(U32, 1)))
    with pytest.raises(IncomparableError) as caught:
        facts(split)
    assert caught.value.found == "part 2 of 3"
    assert "--merge" in (caught.value.hint or "")
    assert facts(tiny().with_entries(("split.count", scalar(U32, 1)))).layers == 2


@pytest.mark.parametrize("kind", ["adapter", "mmproj", "imatrix", "vocab"])
def test_other_kinds_of_gguf_are_not_models(kind: str) -> None:
    with pytest.raises(IncomparableError, match="not a model"):
        facts(tiny().with_entries(("general.type", scalar(STRING, kind))))


@pytest.mark.parametrize("value", [scalar(STRING, ""), scalar(STRING, "../x"), scalar(U32, 1)])
def test_the_architecture_must_be_a_plain_name(value: bytes) -> None:
    with pytest.raises(InputError, match="architecture"):
        facts(tiny().with_entries(("general.architecture", value)))


def test_a_file_without_tensors_is_refused() -> None:
    with pytest.raises(InputError, match="no tensors"):
        facts(replace(tiny(), tensors=()))


def sections(*values: int) -> tuple[str, bytes]:
    return "qwen35moe.rope.dimension_sections", array(I32, values)


DT = TensorBytes("blk.1.ssm_dt", (4,))
VISION = TensorBytes("v.patch_embd.weight", (4,))
MTP = TensorBytes("mtp.fc.weight", (4,))


@pytest.mark.parametrize(
    ("built", "reasons"),
    [
        (tiny("qwen35moe").with_entries(sections(2, 1, 1)), ["rope.dimension_sections has 3"]),
        (tiny("qwen35moe").with_tensors(DT), ["1 ssm_dt tensors have no .bias suffix"]),
        (tiny("qwen35moe").with_tensors(VISION), ["1 tensors of a sibling model (v.*)"]),
        (tiny("qwen35moe").with_tensors(MTP), ["1 tensors of a sibling model (mtp.*)"]),
        (
            tiny("qwen35moe").with_entries(sections(2, 1, 1)).with_tensors(MTP, DT, VISION),
            ["has 3", "ssm_dt", "(v.*)", "(mtp.*)"],
        ),
        (tiny("qwen35moe").with_entries(sections(2, 1, 1, 0)), []),
        (tiny("qwen35moe").with_entries(sections(2, 1)), []),
        (tiny("llama").with_entries(sections(2, 1, 1)), []),
        (tiny("qwen35moe").with_tensors(TensorBytes("blk.1.ssm_dt.bias")), []),
        (tiny("qwen35moe").with_tensors(DT, TensorBytes("blk.1.ssm_dt.bias")), []),
        (tiny("qwen35moe").with_tensors(TensorBytes("blk.1.ssm_dt.weight")), []),
        (tiny("qwen35moe").with_tensors(TensorBytes("vision.x")), []),
        (replace(tiny("clip"), tensors=(VISION,)), []),
    ],
)
def test_reasons_to_normalise(built: GgufBytes, reasons: list[str]) -> None:
    found = facts(built).needs_normalising
    assert len(found) == len(reasons)
    for sentence, words in zip(found, reasons, strict=True):
        assert words in sentence


def test_an_oversized_template_is_refused() -> None:
    with pytest.raises(InputError, match="too long"):
        facts(
            tiny().with_entries(("tokenizer.chat_template", scalar(STRING, "x" * (1 << 20) + "y")))
        )


def test_nothing_is_read_beyond_the_header(monkeypatch: pytest.MonkeyPatch) -> None:
    built = tiny().with_tensors(TensorBytes("big", (1 << 20,), data=bytes(1 << 22)))
    highest = 0
    real = os.pread

    def watched(descriptor: int, length: int, offset: int) -> bytes:
        nonlocal highest
        piece = real(descriptor, length, offset)
        highest = max(highest, offset + len(piece))
        return piece

    monkeypatch.setattr(os, "pread", watched)
    facts(built)
    assert highest <= 1 << 20
