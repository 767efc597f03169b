"""``bundle.yaml``: what people write about a dataset; every key may be left out.

docs/spec/bundles.md#bundleyaml lists the keys and what stands for one that is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from tallystick.canonical.json import JSONValue, shorten
from tallystick.canonical.yaml import parse_yaml
from tallystick.contracts.codec import decode
from tallystick.contracts.dataset import (
    MAX_SPLITS,
    MAX_ZOOM,
    DatasetName,
    Imagery,
    RunParameters,
    check_parameters,
)
from tallystick.contracts.model_ref import MAX_SOURCES, SourceUri
from tallystick.contracts.request import PathText, SplitName
from tallystick.contracts.runtime import ROW_CLASS, SEQUENTIAL
from tallystick.contracts.types import IntRange, KeyedBy, MaxLength
from tallystick.errors import EvidenceError, InputError

SETTINGS_FILE: Final = "bundle.yaml"
MAX_SETTINGS_BYTES: Final = 256 * 1024
PROMPT_FILE: Final = "task/prompt.txt"
DEFAULT_TOKENS: Final = {ROW_CLASS: 256, SEQUENTIAL: 2}
DEFAULT_EVIDENCE: Final = {ROW_CLASS: "states", SEQUENTIAL: "gemm"}
_UNNAMED: Final = re.compile(r"[^a-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class SplitSettings:
    """Where a split's tiles come from: a tile list, or a GeoJSON geometry and perhaps a zoom."""

    name: SplitName
    tiles: PathText | None
    geometry: PathText | None
    zoom: Annotated[int, IntRange(0, MAX_ZOOM)] | None


@dataclass(frozen=True, slots=True)
class BundleSettings:
    """All that ``bundle.yaml`` can say, nothing left open."""

    name: DatasetName
    imagery: Imagery | None
    splits: Annotated[tuple[SplitSettings, ...], KeyedBy("name", MAX_SPLITS)]
    prompt_template: PathText | None
    model_sources: Annotated[tuple[SourceUri, ...], MaxLength(MAX_SOURCES)]
    run: RunParameters


def read_settings(source: Path, *, paths: frozenset[str]) -> BundleSettings:
    """Return the settings of the directory ``source``, whose files are ``paths``.

    Without a ``bundle.yaml`` all defaults hold. Raises InputError that names the key that is wrong.
    """
    value: JSONValue = {}
    try:
        with (source / SETTINGS_FILE).open("rb") as file:
            data = file.read(MAX_SETTINGS_BYTES + 1)
        value = parse_yaml(data, max_bytes=MAX_SETTINGS_BYTES, where=SETTINGS_FILE)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise InputError(f"cannot read {SETTINGS_FILE}", found=error.strerror) from error
    try:
        settings = decode(
            BundleSettings, _completed(_mapping(value, ""), source, paths), where=SETTINGS_FILE
        )
        check_parameters(settings.run, where=f"{SETTINGS_FILE}: bad field run")
    except EvidenceError as error:
        raise InputError.of(error) from None
    for split in settings.splits:
        if (split.tiles is None) == (split.geometry is None):
            raise InputError(
                f"{SETTINGS_FILE}: bad field splits[{split.name!r}]",
                expected="either tiles or geometry",
            )
    return settings


def _completed(
    given: Mapping[str, JSONValue], source: Path, paths: frozenset[str]
) -> dict[str, JSONValue]:
    """Return the settings with every key, unknown ones kept for the decoder to refuse."""
    value: dict[str, JSONValue] = {
        "name": dataset_name(source.absolute().name),
        "imagery": None,
        "splits": {},
        "prompt_template": PROMPT_FILE if PROMPT_FILE in paths else None,
        "model_sources": [],
        **given,
    }
    value["run"] = _run(_mapping(given.get("run", {}), "run"))
    if value["imagery"] is not None:
        absent = dict.fromkeys(("tiles", "descriptions", "source_attestation"))
        value["imagery"] = {**absent, **_mapping(value["imagery"], "imagery")}
    value["splits"] = {
        name: {"tiles": None, "geometry": None, "zoom": None, **_mapping(split, f"splits.{name}")}
        for name, split in _mapping(value["splits"], "splits").items()
    }
    return value


def _run(given: Mapping[str, JSONValue]) -> JSONValue:
    policy = given.get("policy", ROW_CLASS)
    known = policy if isinstance(policy, str) and policy in DEFAULT_TOKENS else ROW_CLASS
    value: dict[str, JSONValue] = {
        "chat": None,
        "max_tokens": DEFAULT_TOKENS[known],
        "temperature": "0",
        "seed": None,
        "policy": policy,
        "evidence": [DEFAULT_EVIDENCE[known]],
        "disclosure": "private",
        "sandbox_profile": "none",
        "enforcement": "none",
        **given,
    }
    for name in ("temperature", "seed"):  # people write these numbers without quotes
        if type(value[name]) is int:
            value[name] = str(value[name])
    if value["chat"] is not None:
        absent: dict[str, JSONValue] = {"system": None, "clock": None}
        value["chat"] = {**absent, **_mapping(value["chat"], "run.chat")}
    return value


def _mapping(value: JSONValue, name: str) -> dict[str, JSONValue]:
    if not isinstance(value, dict):
        where = f"bad field {shorten(name)}" if name else "not such a document"
        raise InputError(f"{SETTINGS_FILE}: {where}", expected="a mapping of names to values")
    return value


def dataset_name(text: str) -> str:
    """Return a dataset's name made from that of its directory."""
    return _UNNAMED.sub("-", text.lower()).strip("-._")[:100].rstrip("-._") or "dataset"
