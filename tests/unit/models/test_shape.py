"""The widths in the facts: numbers, lists of equal numbers, and what is refused."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tallystick.contracts.model import ModelShape
from tallystick.errors import InputError
from tallystick.models.facts import facts_of
from tests.support.gguf_bytes import (
    BOOL,
    F32,
    I32,
    STRING,
    U8,
    U32,
    U64,
    GgufBytes,
    array,
    as_file,
    scalar,
    tiny,
)

KEYS = {
    "heads": "attention.head_count",
    "heads_kv": "attention.head_count_kv",
    "key_length": "attention.key_length",
    "value_length": "attention.value_length",
    "feed_forward": "feed_forward_length",
    "expert_feed_forward": "expert_feed_forward_length",
    "shared_feed_forward": "expert_shared_feed_forward_length",
    "sliding_window": "attention.sliding_window",
    "sliding_window_period": "attention.sliding_window_pattern",
    "full_attention_interval": "full_attention_interval",
    "draft_layers": "nextn_predict_layers",
    "ssm_kernel": "ssm.conv_kernel",
    "ssm_inner": "ssm.inner_size",
    "ssm_state": "ssm.state_size",
    "ssm_rank": "ssm.time_step_rank",
    "ssm_groups": "ssm.group_count",
}
HEADS = "llama.attention.head_count"


def shape(built: GgufBytes) -> ModelShape | None:
    with as_file(built.build()) as descriptor:
        return facts_of(descriptor).shape


def known(*entries: tuple[str, bytes]) -> ModelShape:
    found = shape(tiny().with_entries(*entries))
    assert found is not None
    return found


def test_every_width_has_its_entry() -> None:
    entries = [
        (f"llama.{key}", scalar(U32, number)) for number, key in enumerate(KEYS.values(), start=7)
    ]
    expected = {field: number for number, field in enumerate(KEYS, start=7)}
    assert asdict(known(*entries)) == expected
    assert set(asdict(known()).values()) == {0}


@pytest.mark.parametrize(
    ("value", "heads"),
    [
        (scalar(U64, 9), 9),
        (scalar(I32, 9), 9),
        (scalar(U32, 2**32 - 1), 2**32 - 1),
        (array(U32, [9]), 9),
        (array(U32, [9, 9, 9]), 9),
        (array(I32, [9, 9]), 9),
        (array(U64, [9, 9]), 9),
        (array(U8, [0, 0]), 0),
        (array(U32, [9] * 4096), 9),
    ],
)
def test_a_number_or_a_list_of_equal_numbers(value: bytes, heads: int) -> None:
    assert known((HEADS, value)).heads == heads


@pytest.mark.parametrize(
    "value",
    [
        array(U32, [9, 8]),
        array(U32, [9, 0]),
        array(U32, []),
        array(U32, [9] * 4097),
        array(F32, [9.0, 9.0]),
        array(BOOL, [True, True]),
        array(STRING, ["9", "9"]),
        scalar(F32, 9.0),
        scalar(BOOL, True),
        scalar(STRING, "9"),
    ],
)
def test_anything_else_is_no_shape(value: bytes) -> None:
    assert shape(tiny().with_entries((HEADS, value))) is None


def test_only_heads_may_pause_and_only_in_a_hybrid() -> None:
    pausing = array(U32, [0, 0, 0, 2, 0, 0, 0, 2])
    kernel = ("llama.ssm.conv_kernel", scalar(U32, 4))
    assert known(kernel, ("llama.attention.head_count_kv", pausing)).heads_kv == 2
    assert known(kernel, (HEADS, pausing)).heads == 2
    assert shape(tiny().with_entries(("llama.attention.head_count_kv", pausing))) is None
    assert shape(tiny().with_entries(kernel, ("llama.feed_forward_length", pausing))) is None
    assert shape(tiny().with_entries(kernel, (HEADS, array(U32, [0, 2, 3])))) is None


def test_a_list_of_recurrent_layers_is_not_understood() -> None:
    listed = ("llama.attention.recurrent_layers", array(BOOL, [True, False]))
    assert shape(tiny().with_entries(listed)) is None


@pytest.mark.parametrize(
    "value", [scalar(U64, 2**32), scalar(I32, -1), array(I32, [-1, -1]), array(U64, [2**32] * 2)]
)
def test_an_absurd_number_is_refused(value: bytes) -> None:
    with pytest.raises(InputError, match="out of range"):
        shape(tiny().with_entries((HEADS, value)))
