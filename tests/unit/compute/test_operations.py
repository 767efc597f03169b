"""Canonical operations: their numbers, their bytes, and nothing else that decodes."""

from __future__ import annotations

import struct
from dataclasses import FrozenInstanceError, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.compute import operations
from tallystick.compute.operations import (
    KINDS,
    LAYOUTS,
    MAX_OPERATION,
    NAMES,
    Gemm,
    Generic,
    KvCacheRead,
    Operation,
    Silu,
    encode_operation,
)
from tallystick.errors import EvidenceError, InputError
from tests.support.decoding import decode_operation

# Kind, name, and the struct format of the fields, written out once more.
WIRE = [
    (0, "Gemm", "<4I"), (1, "Attention", "<5I"), (2, "LayerNorm", "<2I"), (3, "RmsNorm", "<2I"),
    (4, "Rotary", "<3I"), (5, "ExpertRoute", "<3I"), (6, "KvCacheRead", "<Q"),
    (7, "KvCacheWrite", "<Q"), (8, "Silu", "<Q"), (9, "ElementwiseMultiply", "<Q"),
    (10, "Softmax", "<Q"), (11, "ElementwiseAdd", "<Q"), (12, "TensorCopy", "<Q"),
    (13, "EmbeddingLookup", "<Q"), (14, "Generic", "<IQ"), (15, "ExpertGemm", "<5I"),
    (16, "SsmConv", "<3I"), (17, "GatedDeltaNet", "<4I"), (18, "L2Norm", "<2I"),
    (19, "Reduction", "<2I"), (20, "Elementwise", "<Q"),
]  # fmt: skip


@st.composite
def any_operation(draw: st.DrawFn) -> Operation:
    layout = draw(st.sampled_from(LAYOUTS))
    return layout.kind(*(draw(st.integers(0, 2**bits - 1)) for bits in layout.bits))


@pytest.mark.parametrize(("tag", "name", "layout"), WIRE)
def test_each_kind_has_its_number_and_its_bytes(tag: int, name: str, layout: str) -> None:
    kind = getattr(operations, name)
    values = tuple(range(1, len(fields(kind)) + 1))
    assert KINDS[tag] is kind
    assert encode_operation(kind(*values)) == bytes([tag]) + struct.pack(layout, *values)


def test_there_are_no_other_kinds() -> None:
    assert [kind.tag for kind in KINDS] == list(range(len(WIRE))) == list(range(21))
    assert len(NAMES) == len(KINDS)


@given(any_operation())
def test_an_operation_comes_back(operation: Operation) -> None:
    encoding = encode_operation(operation)
    assert len(encoding) <= MAX_OPERATION
    assert decode_operation(encoding) == operation


@given(st.binary(max_size=24))
def test_whatever_decodes_is_the_only_encoding(data: bytes) -> None:
    try:
        operation = decode_operation(data)
    except EvidenceError:
        return
    assert encode_operation(operation) == data


@given(any_operation(), st.data())
def test_shorter_and_longer_data_is_refused(operation: Operation, data: st.DataObject) -> None:
    encoding = encode_operation(operation)
    with pytest.raises(EvidenceError):
        decode_operation(encoding[: data.draw(st.integers(0, len(encoding) - 1))])
    with pytest.raises(EvidenceError):
        decode_operation(encoding + b"\0")


@pytest.mark.parametrize("tag", [21, 22, 127, 255])
def test_an_unknown_kind_is_refused(tag: int) -> None:
    with pytest.raises(EvidenceError, match="not a canonical operation") as caught:
        decode_operation(bytes([tag]) + bytes(8))
    assert caught.value.found == str(tag)


def test_a_number_that_does_not_fit_makes_no_operation() -> None:
    with pytest.raises(InputError, match="the k of a gemm operation"):
        Gemm(1, 1, 2**32, 1)
    with pytest.raises(InputError, match="the elements of a silu operation") as caught:
        Silu(2**64)
    assert caught.value.found == "65 bits"
    with pytest.raises(InputError) as caught:
        KvCacheRead(-1)
    assert caught.value.found == "below 0"
    with pytest.raises(InputError, match="the op_class"):
        Generic(2**32, 0)
    assert Generic(2**32 - 1, 2**64 - 1).elements == 2**64 - 1


def test_operations_are_values() -> None:
    assert Gemm(1, 2, 3, 4) == Gemm(1, 2, 3, 4) != Gemm(1, 2, 3, 5)
    assert hash(Silu(1)) == hash(Silu(1))
    with pytest.raises(FrozenInstanceError):
        Silu(1).elements = 2  # type: ignore[misc]
