"""The examples in the specification are what the program makes."""

from __future__ import annotations

import re
from pathlib import Path

from tallystick.canonical.json import jcs, parse_strict
from tallystick.contracts.layout import RECEIPT, TELEMETRY
from tallystick.receipts.report import STEP_NAMES
from tallystick.telemetry.events import EventKind
from tests.support.sets import data_of, make_set

SPEC = Path(__file__).resolve().parents[3] / "docs" / "spec"
BUILT = make_set()


def blocks(page: str, language: str) -> list[str]:
    text = (SPEC / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_receipt_example() -> None:
    (example,) = blocks("receipt.md", "json")
    assert jcs(parse_strict(example.encode(), max_bytes=1 << 20)) == data_of(BUILT, RECEIPT)
    text = (SPEC / "receipt.md").read_text(encoding="utf-8")
    assert BUILT.receipt_digest in text
    assert BUILT.core_digest in text


def test_the_marker_example() -> None:
    (example,) = blocks("artifact-set.md", "json")
    assert jcs(parse_strict(example.encode(), max_bytes=1 << 20)) == BUILT.marker.data


def test_the_telemetry_example() -> None:
    assert blocks("telemetry.md", "")[-1].encode() == data_of(BUILT, TELEMETRY)
    text = (SPEC / "telemetry.md").read_text(encoding="utf-8")
    for kind in EventKind:
        assert f"`{kind}`" in text


def test_the_steps_have_the_names_of_the_specification() -> None:
    text = (SPEC / "verification.md").read_text(encoding="utf-8")
    for number, name in enumerate(STEP_NAMES, 1):
        assert f"\n| {number} | {name} |" in text
    for step in BUILT.report.steps:
        assert step.detail.partition(": ")[0] in text or step.number == 12
