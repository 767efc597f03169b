"""Architecture descriptions come back from their encoding, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.compute.architecture import (
    Architecture,
    AttentionMixer,
    DeltaNetMixer,
    DenseFeedForward,
    ExpertFeedForward,
    LayerDescription,
    decode_architecture,
    encode_architecture,
)
from tallystick.compute.families import describe
from tallystick.compute.profiles import profile_architecture
from tallystick.errors import EvidenceError
from tests.unit.compute.descriptions import FAMILY_NUMBERS

WIDTHS = st.integers(1, 2**32 - 1)
ACTIVATIONS = st.sampled_from(("silu", "gelu"))
PAIRS = st.tuples(st.integers(1, 1000), st.integers(1, 1000))
MIXERS = st.one_of(
    st.builds(
        lambda pair, key, value, window, flags: AttentionMixer(
            pair[0] * pair[1], pair[1], key, value, window, *flags
        ),
        PAIRS,
        WIDTHS,
        WIDTHS,
        st.integers(0, 2**32 - 1),
        st.tuples(st.booleans(), st.booleans(), st.booleans()),
    ),
    st.builds(
        lambda pair, key, value, kernel: DeltaNetMixer(
            pair[1], pair[0] * pair[1], key, value, kernel
        ),
        PAIRS,
        WIDTHS,
        WIDTHS,
        WIDTHS,
    ),
)
FORWARDS = st.one_of(
    st.builds(DenseFeedForward, WIDTHS, ACTIVATIONS),
    st.builds(
        lambda pair, width, shared, gate, activation: ExpertFeedForward(
            pair[0] + pair[1], pair[1], width, shared, gate, activation
        ),
        PAIRS,
        WIDTHS,
        st.integers(0, 2**32 - 1),
        st.booleans(),
        ACTIVATIONS,
    ),
)
LAYERS = st.builds(LayerDescription, MIXERS, FORWARDS, st.booleans())
ARCHITECTURES = st.builds(
    Architecture,
    st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=64),
    WIDTHS,
    WIDTHS,
    st.lists(LAYERS, min_size=1, max_size=4).map(tuple),
)


@given(ARCHITECTURES)
def test_every_description_comes_back(architecture: Architecture) -> None:
    data = encode_architecture(architecture)

    assert decode_architecture(data) == architecture
    assert encode_architecture(decode_architecture(data)) == data


@pytest.mark.parametrize("family", FAMILY_NUMBERS)
def test_the_families_come_back(family: str) -> None:
    architecture = describe(FAMILY_NUMBERS[family])

    assert decode_architecture(encode_architecture(architecture)) == architecture


@given(ARCHITECTURES, st.data())
def test_whatever_decodes_has_no_other_encoding(
    architecture: Architecture, draw: st.DataObject
) -> None:
    data = bytearray(encode_architecture(architecture))
    data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    try:
        found = decode_architecture(bytes(data))
    except EvidenceError:
        return
    assert encode_architecture(found) == data


def test_other_lengths_are_refused() -> None:
    data = encode_architecture(profile_architecture("qwen3.6-35b-a3b"))
    for wrong in (b"", data[:-1], data[: len(data) // 2], data + b"\0"):
        with pytest.raises(EvidenceError, match="architecture"):
            decode_architecture(wrong)


LAYER = bytes(1) + b"".join(n.to_bytes(4, "little") for n in (4, 2, 16, 16, 0)) + bytes(3)
TAIL = bytes(1) + (96).to_bytes(4, "little") + bytes(2)


def described(layer: bytes, *, hidden: int = 64, layers: int = 1, name: bytes = b"llama") -> bytes:
    numbers = (hidden, 1000, layers)
    head = len(name).to_bytes(4, "little") + name
    return head + b"".join(n.to_bytes(4, "little") for n in numbers) + layer


def test_the_least_description() -> None:
    assert decode_architecture(described(LAYER + TAIL)).layers == (
        LayerDescription(AttentionMixer(4, 2, 16, 16), DenseFeedForward(96)),
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (described(b"\2" + LAYER[1:] + TAIL), "not one of the kinds"),
        (described(LAYER[:-1] + b"\2" + TAIL), "not one of the kinds"),
        (described(LAYER + b"\2" + TAIL[1:]), "not one of the kinds"),
        (described(LAYER + TAIL[:-2] + b"\2\0"), "not one of the kinds"),
        (described(LAYER + TAIL[:-1] + b"\2"), "not one of the kinds"),
        (described(LAYER + TAIL, hidden=0), "no usable hidden width"),
        (described(b"", layers=0), "no usable number of layers"),
        (described(LAYER + TAIL, layers=1025), "too many items"),
        (described(LAYER + TAIL, layers=1000), "more items announced"),
        (described(LAYER + TAIL, name=b"\xff"), "printable ASCII"),
        (described(LAYER + TAIL, name=b"a\nb"), "printable ASCII"),
        (described(LAYER + TAIL, name=b"a" * 65), "too many bytes"),
        (described(LAYER.replace(b"\2", b"\3", 1) + TAIL), "no usable number of heads"),
    ],
)
def test_refusals(data: bytes, words: str) -> None:
    with pytest.raises(EvidenceError, match=words):
        decode_architecture(data)
