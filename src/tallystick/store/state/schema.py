"""What makes an SQLite file a state store."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from tallystick.canonical.hashing import frame
from tallystick.contracts.layout import STATE
from tallystick.store.database.marks import Marks

STATE_NAME: Final = STATE.name("")  # of no set in particular
# Of schema.sql; a test recomputes it.
DDL_FINGERPRINT: Final = "35f60d10a3a4aadbe27baa38bd21762d3a0a6d8577cd38ea6b8b535ffc8f5a08"


def fingerprint(parts: Sequence[bytes]) -> str:
    """Return the DDL fingerprint of a schema's objects: 64 hex digits."""
    return hashlib.sha3_256(frame("palw.state-ddl", 4, parts)).hexdigest()


MARKS: Final = Marks(
    kind="state store",
    letters="PALW",
    application_id=0x50414C57,
    version=4,
    package=__package__,
    fingerprint=fingerprint,
    ddl_fingerprint=DDL_FINGERPRINT,
)
