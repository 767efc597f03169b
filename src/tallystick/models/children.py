"""What the children that touch model files have in common: a ceiling on memory, what holds them."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator
from typing import Any, Final

from tallystick.contracts.codec import encode
from tallystick.contracts.sandbox_profile import SandboxProfile, holding
from tallystick.errors import InputError, RunFailedError
from tallystick.sandbox.channel import Channel
from tallystick.sandbox.confinement import Confinement
from tallystick.sandbox.process import run_child

#: Address space of a child that parses a header: the largest one it accepts, with room to spare.
PARSER_MEMORY: Final = 1536 * 1024 * 1024
#: Seconds without a word from a child that only reads a header.
PARSER_PATIENCE: Final = 120.0


@contextlib.contextmanager
def bounded_memory(limit: int = PARSER_MEMORY) -> Iterator[None]:
    """Cap this process's address space; running out of it is the file's fault, an InputError.

    Where the system has no such limit the reader's own bounds remain.
    """
    with contextlib.suppress(ValueError, OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        ceiling = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (ceiling, ceiling))
    try:
        yield
    except MemoryError:
        raise InputError(
            "the model's header needs too much memory",
            expected=f"less than {limit >> 20} MiB",
            hint="the file is damaged or was made to harm a reader",
        ) from None


def reader_confinement(
    sandbox: SandboxProfile | None, *modules: str, writes: bool = False
) -> Confinement | None:
    """Return what holds a child that parses a header; None where nothing has to.

    It imports ``modules`` before the lock; one that ``writes`` may make the file behind a
    descriptor of its own grow.
    """
    held = holding(sandbox)
    return None if held is None else Confinement(held, modules=modules, writes=writes)


def ask_reader(
    program: str, module: str, descriptor: int, sandbox: SandboxProfile | None
) -> dict[str, Any]:
    """Return what the child ``program`` says of the header of the file behind ``descriptor``.

    ``module`` is what it reads with. With a ``sandbox`` it locks itself and is audited before it
    reads; SandboxError where that is not possible. Raises what it reports, and RunFailedError.
    """
    return run_child(
        program,
        {"fd": descriptor},
        pass_fds=(descriptor,),
        idle_timeout=PARSER_PATIENCE,
        confinement=reader_confinement(sandbox, module),
    )


def answer(request: Any, channel: Channel, read: Callable[[int], object]) -> None:
    """Answer :func:`ask_reader`, in the child: with what ``read`` makes of the file, encoded."""
    descriptor = requested_descriptor(request, "fd")
    with bounded_memory():
        found = read(descriptor)
    body = encode(found)
    assert isinstance(body, dict)
    channel.send("result", body)


def requested_descriptor(request: Any, name: str) -> int:
    """Return the descriptor number that the supervisor put into ``request``."""
    value = request.get(name) if isinstance(request, dict) else None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise RunFailedError(f"the request has no descriptor {name}")
    return value
