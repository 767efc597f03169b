"""``verify --now`` takes the times of RFC 3339, and no other spelling that a library may read."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tallystick.cli.verify import moment_of
from tallystick.errors import UsageError

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-30T12:00:00Z", NOON),
        ("2026-11-30t12:00:00z", NOON),
        ("2026-11-30T12:00:00-00:00", NOON),
        ("2026-11-30T21:00:00+09:00", NOON),
        ("2026-11-30T12:00:00.5Z", NOON.replace(microsecond=500_000)),
        ("2026-11-30T12:00:00.123456Z", NOON.replace(microsecond=123_456)),
        ("1970-01-01T00:00:00Z", datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_time_of_rfc_3339_is_read(text: str, expected: datetime) -> None:
    assert moment_of(text) == expected


def test_no_time_is_no_time() -> None:
    assert moment_of(None) is None


@pytest.mark.parametrize(
    "text",
    [
        "2026-W49-1T00:00:00Z",
        "20261130T120000Z",
        "2026-11-30T12:00Z",
        "2026-11-30T12Z",
        "2026-11-30",
        "2026-11-30 12:00:00Z",
        "2026-11-30T12:00:00",
        "2026-11-30T12:00:00+0900",
        "2026-11-30T12:00:00+09",
        "2026-11-30T12:00:00+00:00:00.5",
        "2026-11-30T12:00:00+24:00",
        "2026-11-30T12:00:00.123456789Z",
        "2026-11-30T12:00:00,5Z",
        "2026-11-30T12:00:00.Z",
        "2026-11-30T24:00:00Z",
        "2026-11-30T12:00:60Z",
        "2026-02-30T12:00:00Z",
        "1969-12-31T23:59:59Z",
        "9001-01-01T00:00:00Z",
        "2026-11-30T12:00:00Z\n",
        " 2026-11-30T12:00:00Z",
        "\u0662026-11-30T12:00:00Z",
        "",
    ],
)
def test_every_other_spelling_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="RFC 3339") as caught:
        moment_of(text)
    assert caught.value.exit_code == 2
