"""Entries for the state store, and what a store says of them."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from tallystick.contracts.compute_receipt import JobClass
from tallystick.errors import EvidenceError
from tallystick.store.state.entry import StateEntry
from tallystick.store.state.restore import restore_accepted
from tallystick.store.state.schema import STATE_NAME
from tallystick.store.state.store import open_state


def digest(*name: object) -> bytes:
    return sha256(repr(name).encode()).digest()


def make_entry(
    number: int = 0,
    *,
    job: object = "job",
    slot: int = 0,
    job_class: JobClass = JobClass.SELF_LOCAL,
    execution: object = None,
) -> StateEntry:
    """Return receipt ``number`` of ``job``, of an execution of its own unless one is named."""
    signed = b"".join(digest("signed", number, part) for part in range(21))[:670]
    return StateEntry(
        receipt_id=digest("receipt", number),
        network_id=digest("network"),
        job_nullifier=digest("job", job),
        execution_nullifier=digest("execution", number if execution is None else execution),
        request_commitment=digest("request", job),
        bundle_id=digest("bundle", number),
        job_class=job_class,
        replica_slot=slot,
        signed_receipt=signed,
        timestamp_ms=3_600_000 * 500_000 + 1,
        issued_epoch=500_000,
        expires_epoch=500_024,
        verification_epoch=500_000,
    )


def accept(path: Path, *entries: StateEntry) -> None:
    with open_state(path) as store:
        for entry in entries:
            store.accept(entry)


def refusal(call: Callable[[], None]) -> str | None:
    """Return the message of the EvidenceError that ``call`` raises, or None when it does not."""
    try:
        call()
    except EvidenceError as error:
        return error.message
    return None


def recorded(path: Path, entry: StateEntry) -> bool:
    """Say whether the store at rest at ``path`` holds ``entry``; it must be sound either way."""
    message = refusal(lambda: restore_accepted(path.read_bytes(), entry))
    assert message in (None, "the state store has not accepted this receipt")
    return message is None


def recovered(path: Path, entry: StateEntry) -> bool:
    """Open the store as after a crash, and say what it then holds: the entry, or none of it.

    It must be one file afterwards, and take the entry exactly when it does not hold it.
    """
    with open_state(path):
        pass
    assert [other.name for other in path.parent.iterdir()] == [STATE_NAME]
    held = recorded(path, entry)
    message = refusal(lambda: accept(path, entry))
    assert message == ("this receipt was accepted before" if held else None)
    assert recorded(path, entry)
    return held
