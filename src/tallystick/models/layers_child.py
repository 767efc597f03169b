"""Child program that finds the layers in a GGUF file, and the call that starts it.

As in :mod:`tallystick.models.facts_child`, the supervisor itself parses nothing.
"""

from __future__ import annotations

from typing import Any, Final

from tallystick.contracts.codec import decode, encode
from tallystick.contracts.residency import LayerExtents
from tallystick.models.children import PARSER_PATIENCE, bounded_memory, requested_descriptor
from tallystick.sandbox.channel import Channel, serve
from tallystick.sandbox.messages import well_formed
from tallystick.sandbox.process import run_child

PROGRAM: Final = "tallystick.models.layers_child"


def read_extents(descriptor: int) -> LayerExtents:
    """Return where the layers of the file behind ``descriptor`` lie, read by a child process.

    Raises InputError, IncomparableError or RunFailedError as `read_facts` does.
    """
    body = run_child(
        PROGRAM, {"fd": descriptor}, pass_fds=(descriptor,), idle_timeout=PARSER_PATIENCE
    )
    with well_formed("where a model's layers are"):
        return decode(LayerExtents, body, where="layers")


def handle(request: Any, channel: Channel) -> None:
    """Serve one request: ``fd`` is the descriptor of the model file."""
    descriptor = requested_descriptor(request, "fd")
    with bounded_memory():
        from tallystick.models.layers import extents_of

        extents = extents_of(descriptor)
    body = encode(extents)
    assert isinstance(body, dict)
    channel.send("result", body)


if __name__ == "__main__":
    serve(handle)
