"""The text for macOS: denied by default, labelled as weaker, its paths quoted."""

from __future__ import annotations

import re

import pytest

from tallystick.contracts.sandbox_profile import profile_digest
from tallystick.errors import SandboxError
from tallystick.sandbox.profiles import load_profile
from tallystick.sandbox.seatbelt import WEAKER, seatbelt_text

FULL = load_profile("full")


def test_the_text_denies_by_default_and_says_what_it_is() -> None:
    text = seatbelt_text(FULL, ["/opt/python", "/models/a.gguf"])
    lines = text.splitlines()
    assert lines[0] == "(version 1)"
    assert WEAKER in lines[1]
    assert profile_digest(FULL) in text
    rules = [line for line in lines[1:] if not line.startswith(";")]
    assert rules[0] == "(deny default)"
    for denied in ("network*", "file-write*", "process-exec*", "process-fork", "mach-lookup"):
        assert f"(deny {denied})" in rules
    allowed = [line for line in rules if line.startswith("(allow ")]
    assert not any("write" in line or "network" in line or "exec" in line for line in allowed)
    assert '(allow file-read* (subpath "/models/a.gguf"))' in allowed
    assert all(line.count("(") == line.count(")") for line in rules)


def test_paths_cannot_leave_their_quotes() -> None:
    text = seatbelt_text(FULL, ['/a" (allow network*) "', "/b\\"])
    assert '(subpath "/a\\" (allow network*) \\"")' in text
    assert '(subpath "/b\\\\")' in text
    unquoted = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    assert "(allow network*)" not in unquoted
    for path in ("relative", "/a\nb", "/a\x00b", ""):
        with pytest.raises(SandboxError):
            seatbelt_text(FULL, [path])


@pytest.mark.parametrize("level", ["none", "process"])
def test_lower_levels_have_no_text(level: str) -> None:
    with pytest.raises(SandboxError):
        seatbelt_text(load_profile(level), [])
