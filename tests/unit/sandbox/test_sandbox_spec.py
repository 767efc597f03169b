"""docs/spec/sandbox.md says what the program does."""

from __future__ import annotations

import re
from pathlib import Path

from tallystick.contracts import egress
from tallystick.contracts.egress import CHANNELS, CONTROLLED
from tallystick.contracts.sandbox_profile import profile_document
from tallystick.sandbox.profiles import parse_profile

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "spec" / "sandbox.md").read_text()


def test_the_table_of_channels_is_the_program_s() -> None:
    rows = re.findall(r"(?m)^\| `([a-z0-9_]+)`: ([^|]+) \|([^|]*)\|([^|]*)\|([^|]*)\|$", TEXT)
    written = {
        name: (title, *(tuple(re.findall(r"\w+", cell)) for cell in cells))
        for name, title, *cells in rows
    }
    assert written == {c.name: (c.title, c.process, c.namespaces, c.full) for c in CHANNELS}


def test_the_example_is_a_profile() -> None:
    (example,) = re.findall(r"(?s)```yaml\n(.*?)```", TEXT)
    profile = parse_profile(example.encode(), where="example")
    assert isinstance(profile_document(profile), dict)
    assert profile.levels() == ("full", "namespaces")


def test_the_rules_name_the_same_errnos_and_targets() -> None:
    outside = TEXT.split("Of what was seen outside")[1].split("Inside,")[0]
    assert set(re.findall(r"\b(?:E[A-Z]+|SIG[A-Z]+)\b", outside)) == set(egress._ABSENT)
    targets = TEXT.split("targets of the supervisor's own outside:")[1].split(". An audit")[0]
    assert set(re.findall(r"`(\w+)`", targets)) == CONTROLLED
