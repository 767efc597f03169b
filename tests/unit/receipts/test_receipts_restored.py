"""Sets on disk whose files are named one by one: exact modes, and a state store that agrees."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tallystick.attest import auditkeys, secretfiles
from tallystick.contracts.compute_receipt import JobClass
from tallystick.contracts.layout import (
    BUNDLE,
    COMPUTE_RECEIPT,
    MARKER,
    MEMBERS,
    PUBLIC_JSON,
    STATE,
    MemberKind,
)
from tallystick.errors import InputError, NothingToVerifyError, NoTrustError, UsageError
from tallystick.receipts.files import (
    Checks,
    NamedFiles,
    VerificationRun,
    hand_out_bundle_key,
    load_bundle_key,
    verify_all,
    verify_named,
)
from tallystick.receipts.report import Status, VerificationReport
from tallystick.receipts.sealing import bundle_id, bundle_key_of
from tallystick.store.sets import SetLocation, load_set, read_receipt
from tallystick.store.state.entry import StateEntry, entry_of
from tests.support.forgery import Forger
from tests.support.sets import AUDIT_KEY, NOW, TRUST, make_set, record_anywhere
from tests.support.state import accept, make_entry
from tests.support.written import write_set

BUILT = make_set()
OTHER = make_set(label="another run")
FORGER = Forger(BUILT.files())
EMBEDDED = Checks(None, AUDIT_KEY)
ENTRY = entry_of(
    FORGER.data(COMPUTE_RECEIPT),
    bundle_id=bundle_id(FORGER.data(BUNDLE)),
    verification_epoch=FORGER.public.verification_epoch,
)


def name_of(kind: MemberKind) -> str:
    return kind.shared or kind.suffix


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", BUILT.members, BUILT.marker)


def file_of(directory: Path, kind: MemberKind) -> Path:
    return directory / kind.name(BUILT.receipt_id)


def named(directory: Path) -> NamedFiles:
    kinds = (COMPUTE_RECEIPT, BUNDLE, PUBLIC_JSON, STATE)
    return NamedFiles(*(file_of(directory, kind) for kind in kinds))


def rewrite(directory: Path, files: dict[str, bytes]) -> None:
    """Put forged bytes into the files of a set; their modes stay."""
    for name, data in files.items():
        (directory / name).write_bytes(data)


def report_of(run: VerificationRun) -> VerificationReport:
    (outcome,) = run.outcomes
    assert outcome.report is not None
    return outcome.report


@pytest.mark.parametrize("trust", [None, TRUST], ids=["embedded", "given"])
def test_a_set_as_it_was_written_is_restored(directory: Path, trust: Any) -> None:
    before = {path.name: path.stat() for path in directory.iterdir()}
    for key in (AUDIT_KEY, bundle_key_of(FORGER.envelope, AUDIT_KEY)):
        for run in (
            verify_named(named(directory), Checks(trust, key)),
            verify_all([directory], Checks(trust, key)),
        ):
            report = report_of(run)
            assert run.exit_code == 0
            assert report.status == "local_restored"
            assert report.restoration.status is Status.PASSED
            assert report.trust_scope == ("given_keys" if trust else "embedded_local_snapshot")
            report.require_complete()
    after = {path.name: path.stat() for path in directory.iterdir()}
    assert {n: (s.st_ino, s.st_mtime_ns) for n, s in after.items()} == {
        n: (s.st_ino, s.st_mtime_ns) for n, s in before.items()
    }


def test_what_the_window_is_held_against(directory: Path) -> None:
    late = NOW.replace(year=2027)
    assert report_of(verify_named(named(directory), EMBEDDED)).verified
    report = report_of(verify_named(named(directory), replace(EMBEDDED, now=late)))
    assert report.failure is not None
    assert report.failure.number == 2
    assert "does not hold now" in report.failure.detail


def test_without_a_key_nothing_is_restored(directory: Path) -> None:
    report = report_of(verify_all([directory], Checks(TRUST)))
    assert report.status == "verified"
    assert report.restoration.status is Status.NOT_CHECKED
    with pytest.raises(NoTrustError) as caught:
        verify_all([directory], Checks(None))
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("gone", "key", "words"),
    [
        ((), None, "no key for the bundle was given"),
        ((STATE,), AUDIT_KEY, "the state store is not here"),
        ((BUNDLE,), AUDIT_KEY, "the verification bundle is withheld"),
        ((STATE,), None, "the state store is not here; no key for the bundle was given"),
    ],
)
def test_what_the_store_was_not_compared_for_is_named(
    directory: Path, gone: tuple[MemberKind, ...], key: Any, words: str
) -> None:
    for kind in gone:
        file_of(directory, kind).unlink()
    report = report_of(verify_all([directory], Checks(TRUST, key)))
    assert report.verified
    assert report.restoration.status is Status.NOT_CHECKED
    assert report.restoration.detail == words


def other_value(name: str) -> Any:
    value = getattr(ENTRY, name)
    if isinstance(value, JobClass):
        return JobClass.SOLO_UNPAID
    if name == "signed_receipt":
        return make_entry().signed_receipt
    return make_entry().job_nullifier if isinstance(value, bytes) else value + 1


def changed(name: str) -> StateEntry:
    changes: dict[str, Any] = {name: other_value(name)}
    if name == "replica_slot":  # a slot of its own needs a class that has two
        changes["job_class"] = JobClass.REPLICA_EXTERNAL
    if name == "issued_epoch":
        changes["verification_epoch"] = ENTRY.verification_epoch + 1
    return replace(ENTRY, **changes)


@pytest.mark.parametrize("name", [field.name for field in fields(StateEntry)])
def test_a_changed_row_is_refused(directory: Path, name: str) -> None:
    rewrite(directory, FORGER.with_member(STATE, record_anywhere(changed(name))))
    for run in (
        verify_named(named(directory), EMBEDDED),
        verify_all([directory], EMBEDDED),
    ):
        report = report_of(run)
        assert run.exit_code == 1
        assert report.status == "failed"
        assert report.failure is None  # every step holds; the store does not agree
        assert report.restoration.status is Status.FAILED
        assert report.restoration.detail == {
            "receipt_id": "the state store has not accepted this receipt",
            "replica_slot": "the state store holds another job_class",
        }.get(name, f"the state store holds another {name}")
        assert report.proves == ()


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_a_store_that_is_not_at_rest_is_no_verdict(directory: Path, suffix: str) -> None:
    """Its bytes are those that were signed for, and still not all of the truth."""
    beside = file_of(directory, STATE).with_name(STATE.name("") + suffix)
    beside.touch(mode=0o600)
    for run in (
        verify_named(named(directory), EMBEDDED),
        verify_all([directory], EMBEDDED),
        verify_all([directory], Checks(TRUST)),
    ):
        (outcome,) = run.outcomes
        assert run.exit_code == 6
        assert outcome.report is None
        assert "not at rest" in str(outcome.problem)
    beside.unlink()
    assert report_of(verify_all([directory], EMBEDDED)).status == "local_restored"


def test_a_failed_set_weighs_more_than_one_in_use(directory: Path, tmp_path: Path) -> None:
    other = write_set(tmp_path / "other", OTHER.members, OTHER.marker)
    (other / (STATE.name("") + "-wal")).touch()
    assert verify_all([directory, other], EMBEDDED).exit_code == 6
    file_of(directory, COMPUTE_RECEIPT).write_bytes(b"")
    assert verify_all([other, directory], EMBEDDED).exit_code == 1


STORES: dict[str, Callable[[], bytes]] = {
    "another run's": lambda: Forger(OTHER.files()).data(STATE),
    "truncated": lambda: FORGER.data(STATE)[:8192],
    "empty": lambda: b"",
    "no database": lambda: bytes(24576),
    "damaged": lambda: FORGER.data(STATE)[:-4096] + bytes(4096),
}


@pytest.mark.parametrize("store", STORES)
def test_another_store_is_refused(directory: Path, store: str) -> None:
    rewrite(directory, {STATE.name(""): STORES[store]()})
    report = report_of(verify_named(named(directory), EMBEDDED))
    assert report.failure is not None
    assert report.failure.number == 1  # the marker names another file
    rewrite(directory, FORGER.with_member(STATE, STORES[store]()))
    run = verify_named(named(directory), EMBEDDED)
    assert run.exit_code == 1
    assert report_of(run).restoration.status is Status.FAILED


def test_a_store_with_more_receipts_holds(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o700)
    path = tmp_path / "store" / STATE.name("")
    accept(path, make_entry(1), ENTRY, make_entry(2, job="another"))
    rewrite(directory, FORGER.with_member(STATE, path.read_bytes()))
    assert report_of(verify_named(named(directory), EMBEDDED)).status == "local_restored"


@pytest.mark.parametrize("kind", [*MEMBERS, MARKER], ids=name_of)
def test_a_missing_file_is_nothing_to_verify(directory: Path, kind: MemberKind) -> None:
    file_of(directory, kind).unlink()
    run = verify_named(named(directory), EMBEDDED)
    assert run.exit_code == 4
    (outcome,) = run.outcomes
    assert outcome.report is None
    assert kind.name(BUILT.receipt_id) in str(outcome.problem)


def test_a_missing_store_is_no_verdict_only_where_it_was_named(directory: Path) -> None:
    file_of(directory, STATE).unlink()
    report = report_of(verify_all([directory], EMBEDDED))
    assert report.status == "verified"
    assert report.restoration.status is Status.NOT_CHECKED


@pytest.mark.parametrize("kind", [*MEMBERS, MARKER], ids=name_of)
@pytest.mark.parametrize("how", ["symlink", "hard link", "mode"])
def test_links_and_loosened_modes_are_refused(
    directory: Path, tmp_path: Path, kind: MemberKind, how: str
) -> None:
    path = file_of(directory, kind)
    if how == "symlink":
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "moved")
    elif how == "hard link":
        os.link(path, tmp_path / "second")
    else:
        path.chmod(0o640 if kind.mode == 0o600 else 0o600)
    run = verify_named(named(directory), EMBEDDED)
    assert run.exit_code == 1
    failure = report_of(run).failure
    assert failure is not None
    assert failure.number == 1
    assert path.name in failure.detail


def test_an_open_directory_and_a_foreign_file_are_refused(directory: Path) -> None:
    (directory / f"{BUILT.receipt_id}.notes").touch()
    failure = report_of(verify_named(named(directory), EMBEDDED)).failure
    assert failure is not None
    assert "not named by the set's marker" in failure.detail
    (directory / f"{BUILT.receipt_id}.notes").unlink()
    directory.chmod(0o755)
    failure = report_of(verify_named(named(directory), EMBEDDED)).failure
    assert failure is not None
    assert "not as its holder keeps it" in failure.detail
    assert report_of(verify_all([directory], EMBEDDED)).status == "local_restored"


@pytest.mark.parametrize("option", ["receipt", "bundle", "public_json", "state_db"])
def test_names_of_another_set_or_place_are_wrong_use(
    directory: Path, tmp_path: Path, option: str
) -> None:
    other = write_set(tmp_path / "other", OTHER.members, OTHER.marker)
    kinds = {"receipt": COMPUTE_RECEIPT, "bundle": BUNDLE, "public_json": PUBLIC_JSON}
    kind = kinds.get(option, STATE)
    elsewhere: dict[str, Any] = {option: other / kind.name(OTHER.receipt_id)}
    with pytest.raises(UsageError) as caught:
        verify_named(replace(named(directory), **elsewhere), EMBEDDED)
    assert caught.value.exit_code == 2
    unlike: dict[str, Any] = {option: directory / "receipt.bin"}
    with pytest.raises(UsageError):
        verify_named(replace(named(directory), **unlike), EMBEDDED)


def test_a_whole_set_is_not_mixed_with_another(directory: Path, tmp_path: Path) -> None:
    """Receipt, public document, bundle and store under the names of this set."""
    other = Forger(OTHER.files())
    for kind in (COMPUTE_RECEIPT, PUBLIC_JSON, BUNDLE, STATE):
        rewrite(directory, {kind.name(BUILT.receipt_id): other.data(kind)})
    failure = report_of(verify_named(named(directory), EMBEDDED)).failure
    assert failure is not None
    assert failure.number == 1


def test_links_in_a_circle_are_no_set(tmp_path: Path, directory: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    (outcome,) = verify_named(named(loop), EMBEDDED).outcomes
    assert outcome.report is None
    assert isinstance(outcome.problem, NothingToVerifyError)
    with pytest.raises(UsageError):
        verify_named(replace(named(directory), bundle=named(loop).bundle), EMBEDDED)
    with pytest.raises(NothingToVerifyError):
        load_set(SetLocation(loop, BUILT.receipt_id))
    with pytest.raises(NothingToVerifyError):
        read_receipt(named(loop).receipt.with_suffix(".geoai.json"))


def test_the_set_s_directory_may_be_a_link(tmp_path: Path, directory: Path) -> None:
    (tmp_path / "alias").symlink_to(directory)
    run = verify_named(replace(named(tmp_path / "alias"), bundle=named(directory).bundle), EMBEDDED)
    assert run.exit_code == 0


def test_a_bundle_s_key_is_not_put_into_its_set(tmp_path: Path, directory: Path) -> None:
    before = sorted(directory.iterdir())
    for output in (directory / "bk", directory / f"{BUILT.receipt_id}.key"):
        with pytest.raises(InputError, match="directory of its set") as caught:
            hand_out_bundle_key(directory, AUDIT_KEY, output)
        assert caught.value.exit_code == 4
    assert sorted(directory.iterdir()) == before
    assert hand_out_bundle_key(directory, AUDIT_KEY, tmp_path / "bk").set_id == BUILT.receipt_id


def test_a_key_that_lies_in_the_set_is_refused(directory: Path) -> None:
    key = directory / "audit.key"
    key.touch(mode=0o600)
    key.write_bytes(AUDIT_KEY.raw)
    for audit, bundle in ((key, None), (None, key)):
        with pytest.raises(InputError) as caught:
            load_bundle_key(audit, bundle, (directory.parent / "elsewhere", directory))
        assert caught.value.exit_code == 4
    with pytest.raises(UsageError):
        load_bundle_key(key, key)
    assert load_bundle_key(None, None, (directory,)) is None


def test_a_key_is_read_once_for_all_the_sets_that_it_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "audit.key"
    key.touch(mode=0o600)
    key.write_bytes(AUDIT_KEY.raw)
    reads: list[Path] = []

    def counted(path: Path, **options: Any) -> bytes:
        reads.append(path)
        return secretfiles.read_secret(path, **options)

    monkeypatch.setattr(auditkeys, "read_secret", counted)
    sets = tuple(tmp_path / name for name in ("one", "two", "three"))
    assert load_bundle_key(key, None, sets) == AUDIT_KEY
    assert reads == [key]
