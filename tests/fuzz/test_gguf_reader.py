"""Whatever the bytes are, the reader answers with a header, facts, or an error of ours."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tallystick.contracts.codec import decode, encode
from tallystick.contracts.model import ModelFacts
from tallystick.errors import IncomparableError, InputError
from tallystick.models.facts import facts_of
from tallystick.models.gguf import encoded_value, read_header
from tallystick.models.normalise import transform
from tests.support.gguf_bytes import I32, TensorBytes, array, as_file, tiny

SEED = (
    tiny("qwen35moe")
    .with_entries(("qwen35moe.rope.dimension_sections", array(I32, [2, 1, 1])))
    .with_tensors(TensorBytes("v.x"), TensorBytes("blk.0.ssm_dt"))
    .build()
)
INTERESTING = [0, 1, 3, 9, 255, 2**31 - 1, 2**32 - 1, 2**60, 2**63, 2**64 - 1]

Edit = tuple[int, bytes]
edits = st.tuples(
    st.integers(0, len(SEED)),
    st.one_of(
        st.binary(min_size=1, max_size=9),
        st.sampled_from(INTERESTING).map(lambda n: n.to_bytes(8, "little")),
        st.sampled_from(INTERESTING[:7]).map(lambda n: n.to_bytes(4, "little")),
    ),
)


def examine(data: bytes) -> None:
    with as_file(data) as descriptor:
        try:
            header = read_header(descriptor)
        except InputError:
            return
        assert header.data_offset <= len(data) + header.alignment
        for entry in header.entries:
            assert 0 < entry.start < entry.value_start < entry.end <= len(data)
            size = sum(len(piece) for piece in encoded_value(descriptor, entry))
            assert size == entry.end - entry.value_start
        for tensor in header.tensors:
            assert header.data_offset + tensor.offset + tensor.size <= len(data)
        try:
            facts = facts_of(descriptor)
        except (InputError, IncomparableError):
            return
        assert decode(ModelFacts, encode(facts)) == facts
        if facts.needs_normalising:
            with as_file(b"") as target:
                transform(descriptor, target, lambda *_: None)
                assert facts_of(target).needs_normalising == ()


@settings(max_examples=300, deadline=None)
@given(st.lists(edits, min_size=1, max_size=4))
@example([])
def test_overwritten_bytes(changes: list[Edit]) -> None:
    data = bytearray(SEED)
    for position, replacement in changes:
        data[position : position + len(replacement)] = replacement
    examine(bytes(data))


@settings(max_examples=150, deadline=None)
@given(st.lists(edits, min_size=1, max_size=3), st.integers(0, len(SEED)))
def test_inserted_bytes_and_cuts(changes: list[Edit], length: int) -> None:
    data = bytearray(SEED)
    for position, inserted in changes:
        data[position:position] = inserted
    examine(bytes(data[:length]))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_arbitrary_bytes(data: bytes) -> None:
    examine(data)
    examine(b"GGUF\x03\0\0\0" + data)
