"""Models that are known by name: their published numbers (docs/spec/compute-units.md#profiles)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tallystick.compute.architecture import Architecture
from tallystick.compute.families import describe
from tallystick.contracts.model import ModelShape
from tallystick.errors import UsageError


@dataclass(frozen=True, slots=True)
class PublishedNumbers:
    """What :func:`tallystick.compute.families.describe` needs, as published for a model."""

    architecture: str
    layers: int
    embedding: int
    vocabulary: int
    experts: int
    experts_used: int
    shape: ModelShape


QWEN36_35B_A3B: Final = PublishedNumbers(
    architecture="qwen35moe",
    layers=40,
    embedding=2048,
    vocabulary=248320,
    experts=256,
    experts_used=8,
    shape=ModelShape(
        heads=16,
        heads_kv=2,
        key_length=256,
        value_length=256,
        feed_forward=512,
        expert_feed_forward=512,
        shared_feed_forward=512,
        sliding_window=0,
        sliding_window_period=0,
        full_attention_interval=4,
        draft_layers=0,
        ssm_kernel=4,
        ssm_inner=4096,
        ssm_state=128,
        ssm_rank=32,
        ssm_groups=16,
    ),
)
PROFILES: Final[Mapping[str, PublishedNumbers]] = MappingProxyType(
    {"qwen3.6-35b-a3b": QWEN36_35B_A3B}
)


def profile_architecture(name: str) -> Architecture:
    """Return the description of a model known by name. Raises UsageError for an unknown name."""
    numbers = PROFILES.get(name)
    if numbers is None:
        raise UsageError("no such profile", expected=" or ".join(PROFILES), found=ascii(name[:100]))
    return describe(numbers)
