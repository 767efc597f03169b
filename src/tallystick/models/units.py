"""Price token counts for a model on this machine, without running it."""

from __future__ import annotations

from pathlib import Path

from tallystick.compute.families import describe
from tallystick.compute.pricing import PricedModel
from tallystick.compute.rules import RULES_V3
from tallystick.compute.semantic import semantic_units
from tallystick.contracts.model import ModelFacts
from tallystick.models.facts_child import read_facts
from tallystick.models.files import opened
from tallystick.models.registry import find_pin, resolved
from tallystick.store.home import user_path


def price_model(
    name_or_path: str, home: Path, *, prefill_tokens: int, generated_tokens: int
) -> PricedModel:
    """Price token counts for a named model, or for the GGUF file at a path (docs/spec/models.md).

    A named model is priced by what its pin says; its file is neither opened nor hashed. Raises
    IncomparableError for an architecture without compute units, InputError for a file that is no
    sound model and for counts out of range.
    """
    architecture = describe(_facts(name_or_path, home))
    units = semantic_units(architecture, prefill_tokens, generated_tokens)
    return PricedModel(None, architecture, RULES_V3, units)


def _facts(name_or_path: str, home: Path) -> ModelFacts:
    pin = find_pin(name_or_path, home)
    if pin is not None:
        return pin.facts
    with opened(resolved(user_path(name_or_path))) as descriptor:
        return read_facts(descriptor)
