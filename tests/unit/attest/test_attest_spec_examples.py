"""The examples in the specification are true."""

from __future__ import annotations

import re
from pathlib import Path

from tallystick.attest.keys import PublicKey
from tallystick.attest.trust import TrustPolicy

SPEC = Path(__file__).resolve().parents[3] / "docs" / "spec"


def blocks(name: str, language: str) -> list[str]:
    text = (SPEC / name).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_the_key_example() -> None:
    names, pem = blocks("keys.md", "text")
    values = [line.split()[-1] for line in names.splitlines()]
    key = PublicKey.from_hex(values[0])
    assert values[1] == key.key_id
    assert pem == key.pem()


def test_the_policy_example_is_accepted() -> None:
    (example,) = blocks("trust-policy.md", "json")
    policy = TrustPolicy.parse(example.encode())
    assert [key.name for key in policy.keys] == ["worker 7"]
    assert len(policy.execution_keys()) == 1
