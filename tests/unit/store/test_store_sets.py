from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

import pytest

from tallystick.contracts.layout import MARKER, MEMBERS, RECEIPT, STATE, MemberKind
from tallystick.errors import EvidenceError, NothingToVerifyError, UnavailableError
from tallystick.receipts.build import BuiltSet
from tallystick.store.sets import (
    SetLocation,
    find_sets,
    load_set,
    read_receipt,
    read_set,
    require_kept_private,
)
from tests.support.ordinary_user import run_as_ordinary_user
from tests.support.sets import data_of, make_facts, make_set
from tests.support.written import write_set

PRIVATE = tuple(kind for kind in MEMBERS if kind.visibility == "private")


def name_of(kind: MemberKind) -> str:
    return kind.shared or kind.suffix


@pytest.fixture(scope="module")
def built() -> BuiltSet:
    return make_set()


@pytest.fixture
def directory(built: BuiltSet, tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", built.members, built.marker)


@pytest.mark.parametrize("suffix", [None, ".geoai.json", ".complete", ".palw.bundle"])
def test_what_was_written_is_read(built: BuiltSet, directory: Path, suffix: str | None) -> None:
    path = directory if suffix is None else directory / (built.receipt_id + suffix)
    loaded = read_set(path)
    assert loaded.files == built.files()
    assert loaded.withheld == ()
    assert loaded.location.set_id == built.receipt_id


@pytest.mark.parametrize("kind", PRIVATE, ids=name_of)
def test_a_private_member_may_be_withheld(
    built: BuiltSet, directory: Path, kind: MemberKind
) -> None:
    name = kind.name(built.receipt_id)
    (directory / name).unlink()
    loaded = read_set(directory)
    assert loaded.withheld == (name,)
    assert name not in loaded.files
    assert len(loaded.files) == len(MEMBERS)  # the marker is one of them


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_a_state_store_in_use_is_not_read(built: BuiltSet, directory: Path, suffix: str) -> None:
    name = STATE.name(built.receipt_id)
    (directory / (name + suffix)).touch(mode=0o600)
    with pytest.raises(UnavailableError, match="is not at rest") as caught:
        read_set(directory)
    assert caught.value.exit_code == 6
    assert f"{name}{suffix}" in str(caught.value)


@pytest.mark.parametrize("kind", PRIVATE, ids=name_of)
def test_a_private_member_of_another_user_counts_as_withheld(
    built: BuiltSet, kind: MemberKind
) -> None:
    def body(directory: Path) -> None:
        name = kind.name(built.receipt_id)
        write_set(directory / "set", built.members, built.marker)
        (directory / "set" / name).chmod(0o000)
        assert read_set(directory / "set").withheld == (name,)

    run_as_ordinary_user(body)


@pytest.mark.parametrize(
    "suffix", [kind.suffix for kind in MEMBERS if kind.visibility == "public"] + [".complete"]
)
def test_a_missing_public_file_is_an_incomplete_set(
    built: BuiltSet, directory: Path, suffix: str
) -> None:
    (directory / (built.receipt_id + suffix)).unlink()
    with pytest.raises(NothingToVerifyError, match=suffix):
        load_set(find_sets(directory)[0])


@pytest.mark.parametrize("kind", PRIVATE, ids=name_of)
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_private_member_with_a_loosened_mode_is_refused(
    built: BuiltSet, directory: Path, kind: MemberKind, mode: int
) -> None:
    (directory / kind.name(built.receipt_id)).chmod(mode)
    with pytest.raises(EvidenceError, match="private, but other users"):
        read_set(directory)


def make_special(path: Path, kind: str) -> None:
    """Make a socket, or a device where root may."""
    if kind == "socket":
        with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)  # a path of more than 100 bytes is none for a socket
        return
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")


@pytest.mark.parametrize("file", [*MEMBERS, MARKER], ids=name_of)
@pytest.mark.parametrize("kind", ["symlink", "hard link", "directory", "fifo", "socket", "device"])
def test_only_plain_files_are_read(
    built: BuiltSet, directory: Path, tmp_path: Path, file: MemberKind, kind: str
) -> None:
    member = directory / file.name(built.receipt_id)
    elsewhere = tmp_path / "elsewhere"
    if kind == "hard link":
        os.link(member, elsewhere)
    else:
        member.rename(elsewhere)
        if kind == "symlink":
            member.symlink_to(elsewhere)
        elif kind == "directory":
            member.mkdir()
        elif kind == "fifo":
            os.mkfifo(member)
        else:
            make_special(member, kind)
    expected = {"symlink": "symbolic link", "hard link": "hard links"}
    with pytest.raises(EvidenceError, match=expected.get(kind, "not a regular file")):
        read_set(directory)


def test_a_file_that_the_marker_does_not_name_is_refused(built: BuiltSet, directory: Path) -> None:
    (directory / f"{built.receipt_id}.acceptance.jsonl").write_bytes(b"later")
    (directory / "README").write_bytes(b"unrelated")
    read_set(directory)
    (directory / f"{built.receipt_id}.report.html").write_bytes(b"<html>")
    with pytest.raises(EvidenceError, match=r"report\.html is not named"):
        read_set(directory)


def test_an_oversized_member_is_not_read_to_its_end(built: BuiltSet, directory: Path) -> None:
    with (directory / f"{built.receipt_id}.geoai.json").open("r+b") as file:
        file.truncate(1 << 40)  # sparse: reading it whole would not end
    with pytest.raises(EvidenceError, match="too large"):
        read_set(directory)


def test_several_sets_in_one_directory(built: BuiltSet, directory: Path, tmp_path: Path) -> None:
    """One store stands for one set; without their stores, sets can share a directory."""
    other = make_set(facts=make_facts(rss_after=7))
    second = write_set(tmp_path / "other", other.members, other.marker)
    for place in (directory, second):
        (place / STATE.name("")).unlink()
    for path in second.iterdir():
        path.rename(directory / path.name)
    locations = find_sets(directory)
    assert [item.set_id for item in locations] == sorted([built.receipt_id, other.receipt_id])
    for location in locations:
        load_set(location)
    files = read_set(directory / f"{other.receipt_id}.geoai.json").files
    assert {**files, STATE.name(""): data_of(other, STATE)} == other.files()
    with pytest.raises(NothingToVerifyError, match="2 sets"):
        read_set(directory)


@pytest.mark.parametrize("kind", ["empty", "unrelated", "missing", "file", "absent member"])
def test_nothing_recognisable(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "place"
    if kind in ("empty", "unrelated"):
        path.mkdir()
    if kind == "unrelated":
        (path / "photo.jpg").write_bytes(b"x")
        (path / "0123.geoai.json").write_bytes(b"{}")
    if kind == "file":
        path.write_bytes(b"{}")
    if kind == "absent member":
        path = tmp_path / ("0" * 32 + ".geoai.json")
    with pytest.raises(NothingToVerifyError) as caught:
        read_set(path)
    assert caught.value.exit_code == 4


def test_a_folder_of_sets_says_how_to_name_them(directory: Path) -> None:
    with pytest.raises(NothingToVerifyError, match=r"/\*"):
        read_set(directory.parent)


def test_a_receipt_is_shown_without_its_set(
    built: BuiltSet, directory: Path, tmp_path: Path
) -> None:
    expected = data_of(built, RECEIPT)
    assert read_receipt(directory) == expected
    assert read_receipt(directory / f"{built.receipt_id}.complete") == expected
    (tmp_path / "copy.json").write_bytes(expected)
    assert read_receipt(tmp_path / "copy.json") == expected
    with pytest.raises(NothingToVerifyError):
        read_receipt(tmp_path / "none.json")


def location_of(built: BuiltSet, directory: Path) -> SetLocation:
    return SetLocation(directory, built.receipt_id)


def test_a_set_as_it_was_written_is_kept_private(built: BuiltSet, directory: Path) -> None:
    require_kept_private(location_of(built, directory))


@pytest.mark.parametrize("kind", [*MEMBERS, MARKER], ids=name_of)
@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640, 0o644, 0o666, 0o755, 0o4644, 0o1600])
def test_a_set_that_is_kept_has_exact_modes(
    built: BuiltSet, directory: Path, kind: MemberKind, mode: int
) -> None:
    name = kind.name(built.receipt_id)
    (directory / name).chmod(mode)
    if mode == kind.mode:
        require_kept_private(location_of(built, directory))
        return
    with pytest.raises(EvidenceError, match="not as its holder keeps it") as caught:
        require_kept_private(location_of(built, directory))
    assert name in str(caught.value)
    assert f"mode {kind.mode:04o}" in str(caught.value.expected)


@pytest.mark.parametrize("mode", [0o500, 0o710, 0o701, 0o755, 0o777, 0o1700])
def test_the_directory_of_a_set_that_is_kept_is_the_holders_alone(
    built: BuiltSet, directory: Path, mode: int
) -> None:
    directory.chmod(mode)
    try:
        with pytest.raises(EvidenceError, match="not as its holder keeps it"):
            require_kept_private(location_of(built, directory))
    finally:
        directory.chmod(0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("kind", [*MEMBERS, MARKER, None], ids=lambda kind: kind and name_of(kind))
def test_a_set_that_is_kept_belongs_to_who_looks(
    built: BuiltSet, directory: Path, kind: MemberKind | None
) -> None:
    os.chown(directory / ("" if kind is None else kind.name(built.receipt_id)), 65534, 65534)
    with pytest.raises(EvidenceError, match="not as its holder keeps it"):
        require_kept_private(location_of(built, directory))


@pytest.mark.parametrize("kind", [*MEMBERS, MARKER], ids=name_of)
def test_of_a_set_that_is_kept_nothing_is_missing(
    built: BuiltSet, directory: Path, kind: MemberKind
) -> None:
    (directory / kind.name(built.receipt_id)).unlink()
    with pytest.raises(NothingToVerifyError, match="cannot read") as caught:
        require_kept_private(location_of(built, directory))
    assert kind.name(built.receipt_id) in str(caught.value)
