"""One rule for ``--network``, whichever verb it is given to."""

from __future__ import annotations

import pytest

from tallystick.cli.options import network_of
from tallystick.contracts.commitments import local_network_id
from tallystick.errors import UsageError


def test_the_local_network_is_the_default() -> None:
    assert network_of(None) == local_network_id()
    assert network_of(local_network_id().hex()) == local_network_id()


@pytest.mark.parametrize(
    "text", ["", "local", "0" * 64, "A" * 64, "a" * 63, "a" * 65, "a" * 63 + "\n"]
)
def test_another_text_is_no_network(text: str) -> None:
    with pytest.raises(UsageError, match="no network id"):
        network_of(text)
