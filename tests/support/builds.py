"""Building a whole set in one call, as most tests want it."""

from __future__ import annotations

from tallystick.attest.keys import SigningKey
from tallystick.receipts.build import (
    BuiltSet,
    RecordState,
    Sealing,
    SetInputs,
    finish_set,
    seal_set,
)


def build_set(
    inputs: SetInputs, sealing: Sealing, signing_key: SigningKey, record: RecordState
) -> BuiltSet:
    """Seal the set of one run and finish it."""
    sealed = seal_set(inputs, sealing, signing_key)
    return finish_set(sealed, signing_key, sealing.key, record)
