"""``tallystick.ticket/v1``: what a scheduler hands to a worker (docs/spec/tickets.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from tallystick.contracts.request import InferenceRun, Producer
from tallystick.contracts.types import Hex32, OneOf, Pattern

TICKET_SCHEMA: Final = "tallystick.ticket/v1"
MAX_TICKET_BYTES: Final = 8 * 1024 * 1024

Hex = Annotated[str, Pattern(r"([0-9a-f]{2})+", 4096)]


@dataclass(frozen=True, slots=True)
class Ticket:
    """A job for one worker: the request in clear, and the scheduler's two signatures.

    Private: it holds the prompt and the blind. ``signed_request`` and ``signed_assignment`` are
    the binary objects of docs/spec/compute-receipt.md in hex. The run's ``run_id`` is replaced by
    each execution.
    """

    schema: Annotated[str, OneOf((TICKET_SCHEMA,))]
    producer: Producer
    request: InferenceRun = field(repr=False)
    request_nonce: Hex32 = field(repr=False)
    scheduler_key: Hex32
    signed_request: Hex
    signed_assignment: Hex
