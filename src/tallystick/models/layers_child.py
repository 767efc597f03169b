"""Child program that finds the layers in a GGUF file, and the call that starts it.

As in :mod:`tallystick.models.facts_child`, the supervisor itself parses nothing.
"""

from __future__ import annotations

from typing import Any, Final

from tallystick.contracts.codec import decode
from tallystick.contracts.residency import LayerExtents
from tallystick.contracts.sandbox_profile import SandboxProfile
from tallystick.models.children import answer, ask_reader
from tallystick.sandbox.channel import Channel, serve
from tallystick.sandbox.messages import well_formed

PROGRAM: Final = "tallystick.models.layers_child"
_READER: Final = "tallystick.models.layers"


def read_extents(descriptor: int, sandbox: SandboxProfile | None = None) -> LayerExtents:
    """Return where the layers of the file behind ``descriptor`` lie, read by a child process.

    ``sandbox`` holds that child, as it does that of `read_facts`. Raises SandboxError, InputError,
    IncomparableError or RunFailedError as that does.
    """
    body = ask_reader(PROGRAM, _READER, descriptor, sandbox)
    with well_formed("where a model's layers are"):
        return decode(LayerExtents, body, where="layers")


def handle(request: Any, channel: Channel) -> None:
    """Serve one request: ``fd`` is the descriptor of the model file."""
    answer(request, channel, _read)


def _read(descriptor: int) -> LayerExtents:
    from tallystick.models.layers import extents_of  # under the ceiling on memory

    return extents_of(descriptor)


if __name__ == "__main__":
    serve(handle)
