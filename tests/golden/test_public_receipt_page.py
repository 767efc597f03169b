"""The public document's reasons, as the specification prints them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.example_sets import KINDS, example
from tests.support.forgery import Forger

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spec" / "public-receipt.md"
CELLS = {
    cell.strip()
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("|")
    for cell in line.split("|")
}


@pytest.mark.parametrize("name", KINDS)
def test_reasons_are_printed(name: str) -> None:
    mint = Forger(example(name).files()).document(".json")["mint"]
    reasons = [*mint["ineligible_reasons"], *(gate["reason"] for gate in mint["mainnet_gates"])]
    names = [gate["name"] for gate in mint["mainnet_gates"]]
    assert {*reasons, *names} <= CELLS
