"""Child program that finds the layers in a GGUF file, and the call that starts it.

As in :mod:`tallystick.models.facts_child`, the supervisor itself parses nothing.
"""

from __future__ import annotations

from typing import Any, Final

from tallystick.contracts.codec import decode, encode
from tallystick.contracts.residency import LayerExtents
from tallystick.contracts.sandbox_profile import SandboxProfile
from tallystick.models.children import (
    PARSER_PATIENCE,
    bounded_memory,
    reader_confinement,
    requested_descriptor,
)
from tallystick.sandbox.channel import Channel, serve
from tallystick.sandbox.messages import well_formed
from tallystick.sandbox.process import run_child

PROGRAM: Final = "tallystick.models.layers_child"
_READER: Final = "tallystick.models.layers"


def read_extents(descriptor: int, sandbox: SandboxProfile | None = None) -> LayerExtents:
    """Return where the layers of the file behind ``descriptor`` lie, read by a child process.

    ``sandbox`` holds that child, as it does that of `read_facts`. Raises SandboxError, InputError,
    IncomparableError or RunFailedError as that does.
    """
    body = run_child(
        PROGRAM,
        {"fd": descriptor},
        pass_fds=(descriptor,),
        idle_timeout=PARSER_PATIENCE,
        confinement=reader_confinement(sandbox, _READER),
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
