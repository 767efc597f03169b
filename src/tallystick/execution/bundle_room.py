"""Whether what a run's bundle will hold fits, before anything is generated."""

from __future__ import annotations

from typing import Final

from tallystick.canonical.json import jcs
from tallystick.contracts.bundle import MAX_BUNDLE
from tallystick.contracts.codec import encode_bytes
from tallystick.evidence.gemm_trace import GROUP_BYTES
from tallystick.evidence.routes import MAX_ROUTE_IDS_BYTES
from tallystick.execution.child_run import ChildRun
from tallystick.execution.room import require_room

#: Everything whose size no token count decides: manifest, papers, the schedule's table, names.
FIXED_BYTES: Final = 4 * 1024 * 1024
#: Bytes of an id and its comma in JSON, and of what one token may add to the output's base64.
_ID_BYTES: Final = 11
_PIECE_BYTES: Final = 1024
_INSTEAD: Final = "a shorter prompt, or fewer parts of evidence"


def require_bundle_room(this: ChildRun, events: int) -> None:
    """Raise UsageError when expert routes or the bundle of the run could pass their bounds.

    ``events`` is how many operations an evaluation has, 0 where graphs are no evidence. The largest
    number of tokens that fits is named.
    """
    asked, evidence = this.run.max_tokens, this.evidence
    require_room(
        asked,
        lambda generated: evidence.route_bytes(generated) <= MAX_ROUTE_IDS_BYTES,
        what="the set of expert routes",
        bound=f"{MAX_ROUTE_IDS_BYTES} bytes",
        found=f"{evidence.route_bytes(asked)} bytes",
        instead=_INSTEAD,
    )
    text = len(encode_bytes(this.run)) + len(jcs(this.prompt.text))
    require_room(
        asked,
        lambda generated: text + _bytes_of(this, generated, events) <= MAX_BUNDLE,
        what="the bundle",
        bound=f"{MAX_BUNDLE} bytes",
        found=f"up to {text + _bytes_of(this, asked, events)} bytes",
        instead=_INSTEAD,
    )


def _bytes_of(this: ChildRun, generated: int, events: int) -> int:
    """Return what a bundle may hold at most with so many tokens, the texts left out."""
    tokens = len(this.prompt.ids) + generated
    checks = 4 * this.evidence.leaves(generated)
    operations = this.steps(generated) * events
    return (
        FIXED_BYTES
        + _ID_BYTES * tokens
        + _PIECE_BYTES * generated
        + 4 * (checks + 2) // 3
        + this.evidence.route_bytes(generated)
        + operations * (4 + GROUP_BYTES)
    )
