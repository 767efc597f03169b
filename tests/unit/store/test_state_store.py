"""What the state store accepts, refuses and gives back."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tallystick.contracts.compute_receipt import JobClass, encode, receipt_id
from tallystick.errors import EvidenceError
from tallystick.store.database.marks import schema_parts
from tallystick.store.state.entry import StateEntry, entry_of
from tallystick.store.state.restore import restore_accepted
from tallystick.store.state.schema import MARKS, STATE_NAME, fingerprint
from tallystick.store.state.store import open_state
from tests.support.compute_sets import make_receipt
from tests.support.state import accept, digest, make_entry, recorded

REPLICA = JobClass.REPLICA_EXTERNAL


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / STATE_NAME


def rows(path: Path, table: str) -> int:
    with open_state(path):
        pass
    connection = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
    try:
        (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        assert isinstance(count, int)
        return count
    finally:
        connection.close()


def test_an_accepted_receipt_is_restored(path: Path) -> None:
    accept(path, make_entry())

    assert recorded(path, make_entry())
    assert not recorded(path, make_entry(1))


def test_afterwards_there_is_one_file_of_the_owner(path: Path) -> None:
    before = os.umask(0)
    try:
        accept(path, make_entry())
    finally:
        os.umask(before)

    assert os.listdir(path.parent) == [STATE_NAME]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_file_says_what_it_is(path: Path) -> None:
    accept(path, make_entry())
    data = path.read_bytes()

    assert data[:16] == b"SQLite format 3\0"
    assert data[18:20] == b"\x02\x02"  # WAL
    assert data[60:64] == (4).to_bytes(4, "big")
    assert data[68:72] == b"PALW"


def test_the_fingerprint_is_that_of_the_shipped_statements() -> None:
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(MARKS.ddl())
        assert fingerprint(schema_parts(connection)) == MARKS.ddl_fingerprint
        connection.execute("CREATE INDEX more ON receipts (bundle_id)")
        assert fingerprint(schema_parts(connection)) != MARKS.ddl_fingerprint
    finally:
        connection.close()
    assert resources.files("tallystick.store.state").joinpath("schema.sql").is_file()


def test_an_empty_store_is_always_the_same() -> None:
    assert MARKS.image() == MARKS.image()


def test_reading_changes_nothing_and_leaves_nothing(path: Path) -> None:
    accept(path, make_entry())
    before = (path.read_bytes(), path.stat().st_mtime_ns, os.listdir(path.parent))

    restore_accepted(path.read_bytes(), make_entry())
    recorded(path, make_entry(1))

    assert (path.read_bytes(), path.stat().st_mtime_ns, os.listdir(path.parent)) == before


def test_a_receipt_is_accepted_once(path: Path) -> None:
    with pytest.raises(EvidenceError, match="this receipt was accepted before"):
        accept(path, make_entry(), make_entry())
    with pytest.raises(EvidenceError, match="this receipt was accepted before"):
        accept(path, make_entry())

    assert (rows(path, "receipts"), rows(path, "jobs")) == (1, 1)


def test_a_receipt_is_accepted_once_whatever_else_it_says(path: Path) -> None:
    other = replace(make_entry(1, job="other"), receipt_id=make_entry().receipt_id)
    with pytest.raises(EvidenceError, match="this receipt was accepted before"):
        accept(path, make_entry(), other)


def test_an_execution_counts_once_even_for_another_job(path: Path) -> None:
    accept(path, make_entry(execution="one"))
    with pytest.raises(EvidenceError, match="a receipt of this execution") as caught:
        accept(path, make_entry(1, job="other", execution="one"))

    assert caught.value.exit_code == 1
    assert digest("execution", "one").hex() in str(caught.value)
    assert (rows(path, "receipts"), rows(path, "jobs")) == (1, 1)


@pytest.mark.parametrize("job_class", [JobClass.SELF_LOCAL, JobClass.SOLO_UNPAID])
def test_a_job_of_one_slot_takes_one_receipt(path: Path, job_class: JobClass) -> None:
    accept(path, make_entry(job_class=job_class))
    with pytest.raises(EvidenceError, match="slot of the job is filled"):
        accept(path, make_entry(1, job_class=job_class))


@pytest.mark.parametrize("job_class", [REPLICA, JobClass.REPLICA_SELF_ORDERED])
def test_a_replicated_job_takes_one_receipt_a_slot(path: Path, job_class: JobClass) -> None:
    both = [make_entry(slot, slot=slot, job_class=job_class) for slot in (1, 0)]
    accept(path, *both)
    assert all(recorded(path, entry) for entry in both)

    for slot in (0, 1):
        with pytest.raises(EvidenceError, match="slot of the job is filled"):
            accept(path, make_entry(2 + slot, slot=slot, job_class=job_class))
    assert (rows(path, "receipts"), rows(path, "jobs")) == (2, 1)


def test_the_receipts_of_a_job_have_its_class(path: Path) -> None:
    accept(path, make_entry(job_class=REPLICA))
    for job_class in (JobClass.REPLICA_SELF_ORDERED, JobClass.SELF_LOCAL):
        with pytest.raises(EvidenceError, match="another job class"):
            accept(path, make_entry(1, job_class=job_class))


def test_the_receipts_of_a_job_have_its_request(path: Path) -> None:
    accept(path, make_entry(job_class=REPLICA))
    other = make_entry(1, slot=1, job_class=REPLICA)
    with pytest.raises(EvidenceError, match="another request commitment"):
        accept(path, replace(other, request_commitment=digest("other")))


def test_one_nullifier_on_two_networks_is_two_jobs(path: Path) -> None:
    accept(path, make_entry(), replace(make_entry(1), network_id=digest("elsewhere")))
    assert (rows(path, "receipts"), rows(path, "jobs")) == (2, 2)


def test_a_refusal_leaves_the_store_usable(path: Path) -> None:
    with open_state(path) as store:
        store.accept(make_entry())
        with pytest.raises(EvidenceError):
            store.accept(make_entry(1))
        store.accept(make_entry(2, job="next"))

    assert recorded(path, make_entry(2, job="next"))
    assert not recorded(path, make_entry(1))


def test_an_error_of_the_caller_is_not_replaced_and_closes_the_store(path: Path) -> None:
    def work() -> None:
        with open_state(path) as store:
            store.accept(make_entry())
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert os.listdir(path.parent) == [STATE_NAME]
    assert recorded(path, make_entry())


def changed(entry: StateEntry, name: str) -> StateEntry:
    value: Any = getattr(entry, name)
    other: Any = value[:-1] + bytes([value[-1] ^ 1]) if isinstance(value, bytes) else value + 1
    if name == "job_class":
        other = JobClass.REPLICA_SELF_ORDERED
    return replace(entry, **{name: other})


@pytest.mark.parametrize("name", [field.name for field in fields(StateEntry)])
def test_every_field_is_compared(path: Path, name: str) -> None:
    entry = replace(make_entry(job_class=REPLICA), verification_epoch=500_001)
    accept(path, entry)
    data = path.read_bytes()
    restore_accepted(data, entry)

    message = "has not accepted" if name == "receipt_id" else f"holds another {name}"
    with pytest.raises(EvidenceError, match=message):
        restore_accepted(data, changed(entry, name))


def unfit() -> Iterator[Any]:
    for name in ("receipt_id", "network_id", "job_nullifier", "execution_nullifier"):
        yield pytest.param({name: bytes(31)}, name, id=name)
    yield pytest.param({"signed_receipt": bytes(669)}, "signed_receipt", id="signed_receipt")
    yield pytest.param({"timestamp_ms": 1 << 63}, "timestamp_ms", id="time beyond")
    yield pytest.param({"timestamp_ms": -1}, "timestamp_ms", id="time below")
    yield pytest.param({"replica_slot": 1}, "replica_slot", id="slot")
    yield pytest.param({"replica_slot": -1}, "replica_slot", id="slot below")
    yield pytest.param({"verification_epoch": 499_999}, "verification_epoch", id="early")
    yield pytest.param({"verification_epoch": 500_025}, "verification_epoch", id="late")


@pytest.mark.parametrize(("changes", "name"), list(unfit()))
def test_values_that_no_receipt_has_are_refused(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(EvidenceError, match=f"cannot hold this {name}"):
        replace(make_entry(), **changes)


def test_the_tables_refuse_what_the_entry_refuses(path: Path) -> None:
    """The rules stand in the schema as well: a program that forgets them is stopped."""
    accept(path, make_entry())
    insert = "UPDATE {} SET {} = {}"
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        for table, column, value in (
            ("receipts", "receipt_id", "x'00'"),
            ("receipts", "receipt_id", "'text of some length of 32 digits'"),
            ("receipts", "replica_slot", "2"),
            ("receipts", "signed_receipt", "zeroblob(671)"),
            ("receipts", "signed_receipt", "NULL"),
            ("receipts", "verification_epoch", "1"),
            ("receipts", "expires_epoch", "1"),
            ("receipts", "job_nullifier", "zeroblob(32)"),
            ("jobs", "job_class", "4"),
            ("jobs", "slots", "2"),
            ("jobs", "job_nullifier", "zeroblob(32)"),
        ):
            with pytest.raises(sqlite3.IntegrityError):
                connection.execute(insert.format(table, column, value))
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("DELETE FROM jobs")
    finally:
        connection.close()
    assert recorded(path, make_entry())


def test_an_entry_follows_from_the_bytes_of_a_receipt(path: Path) -> None:
    signed = make_receipt("states").signed
    palw = encode(signed)
    epoch = signed.body.issued_epoch

    entry = entry_of(palw, bundle_id=digest("bundle"), verification_epoch=epoch)

    assert entry.receipt_id == receipt_id(signed.body)
    assert entry.signed_receipt == palw
    assert entry.timestamp_ms == signed.body.timestamp
    for name in (
        "network_id",
        "job_nullifier",
        "execution_nullifier",
        "request_commitment",
        "job_class",
        "replica_slot",
        "issued_epoch",
        "expires_epoch",
    ):
        assert getattr(entry, name) == getattr(signed.body, name), name
    accept(path, entry)
    assert recorded(path, entry)
    with pytest.raises(EvidenceError):
        entry_of(palw[:-1], bundle_id=digest("bundle"), verification_epoch=epoch)
