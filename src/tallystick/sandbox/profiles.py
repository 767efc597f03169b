"""Sandbox profiles that people write: YAML files, and those that come with the program.

Those that come with it are here as values, so that no library that reads YAML is needed for them;
the folder ``profiles`` has the same as files, to be copied and changed.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from tallystick.canonical.yaml import parse_yaml
from tallystick.contracts.sandbox_profile import (
    LEVELS,
    NONE,
    SandboxLimits,
    SandboxProfile,
    holding,
    read_profile,
)
from tallystick.errors import EvidenceError, InputError
from tallystick.store.files import read_given

_LIMITS: Final = SandboxLimits(processes=512, open_files=64, cpu_seconds=None, memory_bytes=None)
#: The profiles that come with the program: one for each level, and that level only.
SHIPPED: Final = {
    level: NONE if level == "none" else SandboxProfile(level, level, None, _LIMITS)
    for level in LEVELS
}
MAX_PROFILE: Final = 16 * 1024


def load_profile(name_or_path: str) -> SandboxProfile:
    """Return a profile by its name, or by the path of a YAML file.

    A word without a path separator or a ``.yaml`` ending is the name of a shipped profile.
    Raises InputError.
    """
    if name_or_path in SHIPPED:
        return SHIPPED[name_or_path]
    if os.sep not in name_or_path and not name_or_path.endswith((".yaml", ".yml")):
        raise InputError(
            "no such sandbox profile",
            expected=", ".join(SHIPPED) + ", or the path of a .yaml file",
            found=ascii(name_or_path[:64]),
        )
    path = Path(name_or_path)
    data = read_given(path, max_bytes=MAX_PROFILE, what="the sandbox profile")
    return parse_profile(data, where=f"sandbox profile {path}")


def shipped_profile(name: str) -> SandboxProfile:
    """Return the profile that ships under ``name``, for a run that is executed elsewhere.

    Raises InputError for any other.
    """
    if name not in SHIPPED:
        raise InputError(
            "a run that is declared for a queue or a ticket names a profile that ships",
            expected=", ".join(SHIPPED),
            found=ascii(name[:64]),
        )
    return SHIPPED[name]


def strictly(name_or_path: str) -> SandboxProfile | None:
    """Return the profile for a child about which no receipt will say how it was held, as `holding`.

    Its own level or none of it: a lower one that it would accept could not be told of. Raises
    InputError.
    """
    return holding(replace(load_profile(name_or_path), lowest=None))


def parse_profile(data: bytes, *, where: str) -> SandboxProfile:
    """Return the profile that the YAML ``data`` describes. Raises InputError."""
    value = parse_yaml(data, max_bytes=MAX_PROFILE, where=where)
    try:
        return read_profile(value, where=where)
    except EvidenceError as error:
        raise InputError.of(error) from None
