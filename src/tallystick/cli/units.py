"""``tallystick units``: what a model and token counts cost in compute units."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tallystick.cli.options import json_option
from tallystick.cli.output import emit, table
from tallystick.errors import UsageError

if TYPE_CHECKING:
    from tallystick.canonical.json import JSONValue
    from tallystick.compute.pricing import PricedModel

_TOKENS_MAX = 2**32 - 1


@click.command(name="units")
@click.option("--profile", metavar="NAME", help="Model known by name, such as qwen3.6-35b-a3b.")
@click.option(
    "--model", metavar="MODEL", help="Name of a model here, or the path of a GGUF file, instead."
)
@click.option(
    "--prefill",
    type=click.IntRange(1, _TOKENS_MAX),
    required=True,
    metavar="P",
    help="Number of prompt tokens.",
)
@click.option(
    "--generated",
    type=click.IntRange(0, _TOKENS_MAX),
    required=True,
    metavar="G",
    help="Number of generated tokens.",
)
@json_option
def command(
    profile: str | None, model: str | None, prefill: int, generated: int, as_json: bool
) -> None:
    """Price P prompt tokens and G generated tokens of a model, without running it.

    The price follows from the model's architecture and the two counts alone (ruleset v3).
    """
    priced = _priced(profile, model, prefill, generated)
    emit(_document(priced), as_json=as_json, lines=_words(priced))


def _priced(profile: str | None, model: str | None, prefill: int, generated: int) -> PricedModel:
    if profile is not None and model is None:
        from tallystick.compute.pricing import price_profile

        return price_profile(profile, prefill_tokens=prefill, generated_tokens=generated)
    if model is not None and profile is None:
        from tallystick.models.units import price_model
        from tallystick.store.home import home

        return price_model(model, home(), prefill_tokens=prefill, generated_tokens=generated)
    raise UsageError(
        "one model is to be priced",
        expected="either --profile or --model",
        found="neither" if profile is None else "both",
    )


def _document(priced: PricedModel) -> JSONValue:
    from tallystick.canonical.hashing import format_digest

    units = priced.units
    return {
        "canonical_compute_units": str(units.compute_units),
        "ruleset_version": priced.rules.version,
        "ruleset_id": format_digest(priced.rules.ruleset_id),
        "profile": priced.profile,
        "architecture": priced.architecture.name,
        "architecture_id": format_digest(priced.architecture.architecture_id),
        "prefill_tokens": units.prefill_tokens,
        "generated_tokens": units.generated_tokens,
        "multiply_accumulates": str(units.parts.total()),
        "parts": {name: str(value) for name, value in asdict(units.parts).items()},
    }


def _words(priced: PricedModel) -> list[str]:
    from tallystick.canonical.hashing import format_digest

    units, architecture = priced.units, priced.architecture
    rows = [
        ("compute units", f"{units.compute_units:,}"),
        ("ruleset", f"v{priced.rules.version}, {format_digest(priced.rules.ruleset_id)}"),
        ("architecture", f"{architecture.name}, {format_digest(architecture.architecture_id)}"),
        ("tokens", f"{units.prefill_tokens:,} prompt, {units.generated_tokens:,} generated"),
        ("multiply-accumulates", f"{units.parts.total():,}"),
    ]
    rows += [
        (f"  {name.replace('_', ' ')}", f"{value:,}")
        for name, value in asdict(units.parts).items()
        if value
    ]
    return table(rows)
