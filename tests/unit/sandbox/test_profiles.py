"""Sandbox profiles: what is accepted, what their digest covers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tallystick.contracts import digests
from tallystick.contracts.sandbox_profile import (
    LEVELS,
    NONE,
    SandboxLimits,
    SandboxProfile,
    at_least,
    check_profile,
    profile_digest,
    profile_document,
    read_profile,
)
from tallystick.errors import EvidenceError, InputError
from tallystick.sandbox import profiles
from tallystick.sandbox.profiles import SHIPPED, load_profile, parse_profile

GOOD = """\
name: tiles
level: full
lowest: process
limits: {processes: 64, open_files: 32, cpu_seconds: 600, memory_bytes: 4294967296}
"""


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles_are_of_their_level_and_no_other(name: str) -> None:
    profile = load_profile(name)
    assert (profile.name, profile.level, profile.levels()) == (name, name, (name,))
    file = Path(profiles.__file__).with_name("profiles") / f"{name}.yaml"
    assert load_profile(str(file)) == profile


def test_the_digest_of_none_is_what_it_always_was() -> None:
    assert load_profile("none") == NONE
    assert profile_document(NONE) == {"name": "none", "level": "none"}
    assert profile_digest(NONE) == digests.sandbox_profile_digest("none", "none")


def test_every_field_is_in_the_digest() -> None:
    profile = parse_profile(GOOD.encode(), where="here")
    limits = profile.limits
    assert limits == SandboxLimits(64, 32, 600, 4294967296)
    changed = [
        profile,
        replace(profile, name="other"),
        replace(profile, level="namespaces"),
        replace(profile, lowest="namespaces"),
        replace(profile, lowest=None),
        replace(profile, limits=replace(limits, processes=65)),
        replace(profile, limits=replace(limits, open_files=33)),
        replace(profile, limits=replace(limits, cpu_seconds=None)),
        replace(profile, limits=replace(limits, memory_bytes=None)),
    ]
    assert len({profile_digest(one) for one in changed}) == len(changed)
    for one in changed:
        assert read_profile(profile_document(one)) == one


def test_lower_levels_are_acceptable_only_when_named() -> None:
    profile = parse_profile(GOOD.encode(), where="here")
    assert profile.levels() == ("full", "namespaces", "process")
    assert replace(profile, lowest=None).levels() == ("full",)
    assert replace(profile, lowest="none").levels() == tuple(reversed(LEVELS))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("level: full", "level: complete"),
        ("level: full", "level: none"),
        ("lowest: process", "lowest: full"),
        ("lowest: process", "nothing_else: 1"),
        ("name: tiles", "name: ../tiles"),
        ("open_files: 32", "open_files: 3"),
        ("processes: 64", "processes: 0"),
        ("processes: 64", "processes: '64'"),
        ("memory_bytes: 4294967296", "memory_bytes: 1"),
        ("limits: {", "limits: {swap: 1, "),
    ],
)
def test_what_does_not_fit_is_refused(old: str, new: str) -> None:
    assert old in GOOD
    with pytest.raises(InputError, match="here"):
        parse_profile(GOOD.replace(old, new).encode(), where="here")


def test_none_has_neither_limits_nor_a_lower_level() -> None:
    with pytest.raises(EvidenceError):
        check_profile(replace(NONE, limits=SandboxLimits(1, 16, None, None)))
    with pytest.raises(EvidenceError):
        check_profile(replace(NONE, lowest="none"))
    with pytest.raises(EvidenceError):
        check_profile(SandboxProfile("x", "full", None, None))


def test_levels_are_ordered() -> None:
    assert at_least("full", "namespaces")
    assert at_least("process", "process")
    assert not at_least("process", "namespaces")


def test_profiles_come_by_name_or_by_path(tmp_path: Path) -> None:
    path = tmp_path / "tiles.yaml"
    path.write_text(GOOD)
    assert load_profile(str(path)).name == "tiles"
    with pytest.raises(InputError, match="no such sandbox profile"):
        load_profile("tiles")
    with pytest.raises(InputError, match="No such file"):
        load_profile(str(tmp_path / "other.yaml"))
    path.write_bytes(b"#" * 20_000)
    with pytest.raises(InputError, match="too large"):
        load_profile(str(path))
