"""Numbers of small models of every family, as a file would state them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Final

from tallystick.compute.profiles import PublishedNumbers
from tallystick.contracts.model import ModelShape

NOTHING: Final = ModelShape(**dict.fromkeys((field.name for field in fields(ModelShape)), 0))
DENSE: Final = PublishedNumbers(
    architecture="llama",
    layers=3,
    embedding=256,
    vocabulary=1000,
    experts=0,
    experts_used=0,
    shape=replace(NOTHING, heads=4, heads_kv=2, key_length=64, value_length=64, feed_forward=512),
)
GEMMA: Final = replace(
    DENSE, architecture="gemma3", layers=7, shape=replace(DENSE.shape, sliding_window=16)
)
HYBRID: Final = PublishedNumbers(
    architecture="qwen35moe",
    layers=8,
    embedding=64,
    vocabulary=1000,
    experts=16,
    experts_used=4,
    shape=replace(
        DENSE.shape,
        feed_forward=32,
        expert_feed_forward=32,
        shared_feed_forward=48,
        full_attention_interval=4,
        ssm_kernel=4,
        ssm_inner=256,
        ssm_state=32,
        ssm_rank=8,
        ssm_groups=4,
    ),
)
FAMILY_NUMBERS: Final[Mapping[str, PublishedNumbers]] = {
    "llama": DENSE,
    "llama-experts": replace(DENSE, experts=16, experts_used=4),
    "qwen2": replace(DENSE, architecture="qwen2"),
    "qwen3": replace(DENSE, architecture="qwen3"),
    "qwen3moe": replace(DENSE, architecture="qwen3moe", experts=16, experts_used=4),
    "gemma2": replace(GEMMA, architecture="gemma2"),
    "gemma3": GEMMA,
    "qwen35moe": HYBRID,
}
