"""How the steps of a verification compare fields."""

from __future__ import annotations

from tallystick.errors import EvidenceError


def require_equal(field: str, expected: object, found: object) -> None:
    """Raise EvidenceError naming ``field`` unless both values, which must be public, are equal."""
    if expected != found:
        raise EvidenceError(
            f"{field} is not what the other fields say", expected=str(expected), found=str(found)
        )
