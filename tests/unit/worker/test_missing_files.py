"""What a user named and is not there: the error says what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tallystick.errors import TallystickError, UsageError
from tallystick.queues.runfile import read_run
from tallystick.store.files import CHECK_PATH
from tallystick.store.sets import find_sets, read_receipt
from tallystick.worker.request import RunOptions, check_options
from tallystick.worker.settings import read_settings


@pytest.mark.parametrize("read", [read_receipt, read_run, read_settings, find_sets])
@pytest.mark.parametrize("name", ["none", "none.geoai.json"])
def test_a_missing_file_has_a_hint(
    read: Callable[[Path], object], name: str, tmp_path: Path
) -> None:
    with pytest.raises(TallystickError) as caught:
        read(tmp_path / name)
    assert caught.value.hint == CHECK_PATH


def test_a_system_message_without_chat_has_a_hint() -> None:
    with pytest.raises(UsageError, match="needs --chat") as caught:
        check_options(RunOptions(prompt="hi", system="be brief"))
    assert "add --chat" in str(caught.value.hint)
