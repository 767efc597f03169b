"""The widths of a model, out of a GGUF header (docs/spec/models.md#shape). Runs in a child."""

from __future__ import annotations

from typing import Final

from tallystick.contracts.model import ModelShape
from tallystick.errors import InputError
from tallystick.models.gguf import Entry, Header, read_integers, read_value

_U32_MAX: Final = 2**32 - 1
_MAX_ITEMS: Final = 4096
# Field of the shape: the metadata entry, after the architecture's name and a dot.
_KEYS: Final = (
    ("heads", "attention.head_count"),
    ("heads_kv", "attention.head_count_kv"),
    ("key_length", "attention.key_length"),
    ("value_length", "attention.value_length"),
    ("feed_forward", "feed_forward_length"),
    ("expert_feed_forward", "expert_feed_forward_length"),
    ("shared_feed_forward", "expert_shared_feed_forward_length"),
    ("sliding_window", "attention.sliding_window"),
    ("sliding_window_period", "attention.sliding_window_pattern"),
    ("full_attention_interval", "full_attention_interval"),
    ("draft_layers", "nextn_predict_layers"),
    ("ssm_kernel", "ssm.conv_kernel"),
    ("ssm_inner", "ssm.inner_size"),
    ("ssm_state", "ssm.state_size"),
    ("ssm_rank", "ssm.time_step_rank"),
    ("ssm_groups", "ssm.group_count"),
)
# A list of which layers are recurrent overrides the interval.
_LAYER_LISTS: Final = ("attention.recurrent_layers",)
# Hybrid models list 0 heads for the layers without softmax attention.
_MAY_PAUSE: Final = ("heads", "heads_kv")


class _DiffersError(Exception):
    """A value that is not the same for all layers."""


def shape_of(descriptor: int, header: Header, architecture: str) -> ModelShape | None:
    """Return the widths that the file states, None when one of them differs from layer to layer.

    Raises InputError for a number that does not fit 32 bits.
    """
    entries = {entry.key: entry for entry in header.entries}
    if any(f"{architecture}.{suffix}" in entries for suffix in _LAYER_LISTS):
        return None
    hybrid = f"{architecture}.ssm.conv_kernel" in entries
    widths: dict[str, int] = {}
    try:
        for field, suffix in _KEYS:
            entry = entries.get(f"{architecture}.{suffix}")
            pauses = hybrid and field in _MAY_PAUSE
            widths[field] = 0 if entry is None else _width(descriptor, entry, pauses=pauses)
    except _DiffersError:
        return None
    return ModelShape(**widths)


def _width(descriptor: int, entry: Entry, *, pauses: bool) -> int:
    value = read_value(descriptor, entry)
    if isinstance(value, int) and not isinstance(value, bool):
        return bounded(entry.key, value)
    items = read_integers(descriptor, entry, limit=_MAX_ITEMS)
    if items is None:
        raise _DiffersError
    different = set(items) - {0} if pauses else set(items)
    if len(different) != 1:
        raise _DiffersError
    return bounded(entry.key, different.pop())


def bounded(key: str, value: int) -> int:
    """Return ``value``. Raises InputError, naming the entry, when it does not fit 32 bits."""
    if not 0 <= value <= _U32_MAX:
        raise InputError(
            f"the metadata entry {key[:80]!a} is out of range",
            expected=f"0..{_U32_MAX}",
            found=str(value),
        )
    return value
