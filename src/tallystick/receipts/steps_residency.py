"""Step 1: what a receipt says of the model's layers in memory, and the events that show it.

The rules are those of docs/spec/receipt.md#layers-in-memory. Every evaluation of the model begins
each of its layers once, and with a ring gives each up once, so the counts hang together.
"""

from __future__ import annotations

from tallystick.contracts.receipt import Core, Observed
from tallystick.errors import EvidenceError
from tallystick.receipts.fields import require_equal
from tallystick.telemetry.events import LAYER_EVENTS, MAX_LAYER_EVENTS, EventKind
from tallystick.telemetry.log import TelemetryLog


def check_residency(core: Core, observed: Observed) -> None:
    """Raise EvidenceError when depth, residency and counts do not go together."""
    layers, depth = core.evidence.layers, observed.ring_depth
    evicting = 0 < depth < layers
    if evicting is not (observed.residency != "all_resident"):
        raise EvidenceError(
            "observed.residency is not what observed.ring_depth says",
            expected=f"all_resident exactly with a depth of 0, or of all {layers} layers",
            found=f"{observed.residency} with a depth of {depth}",
        )
    looks = observed.prefetch_hits + observed.prefetch_misses
    if observed.residency != "ring":
        require_equal("observed.prefetch_hits", 0, observed.prefetch_hits)
        require_equal("observed.prefetch_misses", 0, observed.prefetch_misses)
    if not evicting:
        require_equal("observed.evictions", 0, observed.evictions)
        return
    # Each layer is given up after the load, and after each evaluation; each token takes one.
    least = layers * (1 + core.sampled_tokens)
    if observed.evictions < least or observed.evictions % layers:
        raise EvidenceError(
            "observed.evictions is not what the tokens and layers say",
            expected=f"a multiple of {layers}, at least {least}",
            found=str(observed.evictions),
        )
    if observed.residency == "ring":
        require_equal(
            "observed.prefetch_hits + prefetch_misses", observed.evictions - layers, looks
        )


def check_layer_events(observed: Observed, log: TelemetryLog) -> None:
    """Raise EvidenceError when the events of layers are not those that the receipt counts.

    Where none was dropped and none left out (there are fewer than MAX_LAYER_EVENTS), events and
    count are equal in number; else there are no more events than counted.
    """
    seen = log.layers or dict.fromkeys(LAYER_EVENTS, 0)
    whole = not log.dropped and sum(seen.values()) < MAX_LAYER_EVENTS
    for field, kind, count in (
        ("evictions", EventKind.LAYER_EVICTED, observed.evictions),
        ("prefetch_hits", EventKind.PREFETCH_HIT, observed.prefetch_hits),
        ("prefetch_misses", EventKind.PREFETCH_MISS, observed.prefetch_misses),
    ):
        if seen[kind] > count or (whole and seen[kind] != count):
            raise EvidenceError(
                f"observed.{field} is not the number of {kind} events",
                expected=str(seen[kind]) if whole else f"at least {seen[kind]}",
                found=str(count),
            )
    if observed.residency == "all_resident":
        require_equal("LayerInstalled events", 0, seen[EventKind.LAYER_INSTALLED])
