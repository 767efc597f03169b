"""A stored calibration that someone else can write decides nothing."""

from __future__ import annotations

from pathlib import Path

from tallystick.models.calibrations import examine, save
from tests.support.documents import example_calibration


def test_a_calibration_that_others_can_write_is_ignored(tmp_path: Path) -> None:
    made = example_calibration()
    path = save(tmp_path, made)
    digests = (made.model_digest, made.engine.library, made.fingerprint)
    assert examine(tmp_path, *digests).calibration == made

    path.chmod(0o666)

    found = examine(tmp_path, *digests)
    assert found.calibration is None
    assert found.ignored == "the file belongs to, or is open to, others"
