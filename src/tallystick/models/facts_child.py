"""Child program that parses a GGUF header, and the call that starts it.

The supervisor hands over an open descriptor and gets a typed document back: it never parses a
model file itself.
"""

from __future__ import annotations

from typing import Any

from tallystick.contracts.codec import decode
from tallystick.contracts.model import ModelFacts
from tallystick.contracts.sandbox_profile import SandboxProfile
from tallystick.models.children import answer, ask_reader
from tallystick.sandbox.channel import Channel, serve
from tallystick.sandbox.messages import well_formed

PROGRAM = "tallystick.models.facts_child"
_READER = "tallystick.models.facts"


def read_facts(descriptor: int, sandbox: SandboxProfile | None = None) -> ModelFacts:
    """Return the facts about the file behind ``descriptor``, read by a child process.

    With a ``sandbox`` the child locks itself and is audited before it reads; SandboxError where
    that is not possible. Raises InputError for a file that is not a sound GGUF model,
    IncomparableError for one that cannot be used as it is (a part of a split model, an adapter),
    RunFailedError when the child fails.
    """
    body = ask_reader(PROGRAM, _READER, descriptor, sandbox)
    with well_formed("facts about a model"):
        return decode(ModelFacts, body, where="model facts")


def handle(request: Any, channel: Channel) -> None:
    """Serve one request: ``fd`` is the descriptor of the model file."""
    answer(request, channel, _read)


def _read(descriptor: int) -> ModelFacts:
    from tallystick.models.facts import facts_of  # under the ceiling on memory

    return facts_of(descriptor)


if __name__ == "__main__":
    serve(handle)
