"""Price a model and token counts by the ruleset in use (docs/spec/compute-units.md#ruleset-v3)."""

from __future__ import annotations

from dataclasses import dataclass

from tallystick.compute.architecture import Architecture
from tallystick.compute.profiles import profile_architecture
from tallystick.compute.rules import RULES_V3, ComputeUnitRules
from tallystick.compute.semantic import SemanticUnits, semantic_units


@dataclass(frozen=True, slots=True)
class PricedModel:
    """What a model and token counts cost, under which ruleset, and how the sum comes about.

    ``profile`` is the name of the published numbers, None for a model that was read from a file.
    """

    profile: str | None
    architecture: Architecture
    rules: ComputeUnitRules
    units: SemanticUnits


def price_profile(name: str, *, prefill_tokens: int, generated_tokens: int) -> PricedModel:
    """Price token counts for a model known by name; needs neither its file nor an engine.

    Raises UsageError for an unknown name, InputError for counts out of range.
    """
    architecture = profile_architecture(name)
    units = semantic_units(architecture, prefill_tokens, generated_tokens)
    return PricedModel(name, architecture, RULES_V3, units)
