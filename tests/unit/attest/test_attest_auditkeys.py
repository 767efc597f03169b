"""Files of audit and bundle keys: what is made, what is read, and what is refused."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from tallystick.attest.auditkeys import (
    default_audit_key,
    default_audit_key_path,
    read_audit_key,
    read_bundle_key,
    write_bundle_key,
)
from tallystick.attest.bundlekeys import AuditKey, BundleKey
from tallystick.errors import InputError, UnavailableError
from tests.support.ordinary_user import run_as_ordinary_user
from tests.support.processes import in_processes

SECRET = sha256(b"audit key").digest()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "audit.key"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("bits", [0o400, 0o600])
def test_a_key_of_32_raw_bytes_is_read(key_file: Path, bits: int) -> None:
    key_file.chmod(bits)
    assert read_audit_key(key_file) == AuditKey(SECRET)
    assert read_bundle_key(key_file) == BundleKey(SECRET)


def make_symlink(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


def make_dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def make_hard_link(path: Path) -> None:
    path.with_name("other").hardlink_to(path)


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def make_socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    path.chmod(0o600)


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o600)


def make_missing(path: Path) -> None:
    path.unlink()


def having(bits: int) -> Callable[[Path], None]:
    return lambda path: path.chmod(bits)


def holding(data: bytes) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        path.write_bytes(data)

    return spoil


SPOILED = [
    pytest.param(make_symlink, "is a symlink", id="symlink"),
    pytest.param(make_dangling, "is a symlink", id="dangling symlink"),
    pytest.param(make_hard_link, "more than one name", id="hard link"),
    pytest.param(make_fifo, "not a plain file", id="fifo"),
    pytest.param(make_socket, "cannot be opened", id="socket"),
    pytest.param(make_directory, "not a plain file", id="directory"),
    pytest.param(make_missing, "does not exist", id="missing"),
    pytest.param(having(0o640), "open to other users", id="group"),
    pytest.param(having(0o604), "open to other users", id="others"),
    pytest.param(having(0o700), "unusual mode", id="executable"),
    pytest.param(having(0o500), "unusual mode", id="read and execute"),
    pytest.param(having(0o4600), "unusual mode", id="set-uid"),
    pytest.param(holding(b""), "wrong length", id="empty"),
    pytest.param(holding(SECRET[:31]), "wrong length", id="31 bytes"),
    pytest.param(holding(SECRET + b"\n"), "wrong length", id="33 bytes"),
    pytest.param(holding(SECRET.hex().encode()), "wrong length", id="hex digits"),
    pytest.param(holding(bytes(5000)), "too large", id="5000 bytes"),
    pytest.param(holding(bytes(32)), "all zeros", id="zeros"),
]


@pytest.mark.parametrize("read", [read_audit_key, read_bundle_key])
@pytest.mark.parametrize(("spoil", "message"), SPOILED)
def test_unsafe_and_other_files_are_bad_input(
    key_file: Path,
    spoil: Callable[[Path], None],
    message: str,
    read: Callable[[Path], AuditKey | BundleKey],
) -> None:
    spoil(key_file)
    with pytest.raises(InputError, match=message) as caught:
        read(key_file)
    assert caught.value.exit_code == 4
    assert str(key_file) in str(caught.value)
    assert SECRET.hex() not in str(caught.value)


def test_another_user_s_file_is_refused(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(InputError, match="belongs to another user"):
        read_audit_key(key_file)


def test_a_key_beside_the_output_directory_is_fine(key_file: Path, tmp_path: Path) -> None:
    assert read_audit_key(key_file, outside=(tmp_path / "out",)) == AuditKey(SECRET)
    (tmp_path / "audit").mkdir()
    assert read_audit_key(key_file, outside=(tmp_path / "audit",)) == AuditKey(SECRET)
    apart = (tmp_path / "out", tmp_path / "audit")
    assert read_bundle_key(key_file, outside=apart) == BundleKey(SECRET)
    with pytest.raises(InputError, match="lies inside"):
        read_bundle_key(key_file, outside=(*apart, key_file.parent))


def test_a_key_inside_the_output_directory_is_refused(key_file: Path, tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    alias = tmp_path / "alias"
    alias.symlink_to(tmp_path)
    inside = key_file.rename(deep / "audit.key")
    for outside in (deep, deep.parent, tmp_path, alias / "a", deep / ".." / "b"):
        with pytest.raises(InputError, match="inside the output directory"):
            read_audit_key(inside, outside=(outside,))
    for spelling in (alias / "a" / "b" / "audit.key", deep / ".." / "b" / "audit.key"):
        with pytest.raises(InputError, match="inside the output directory"):
            read_audit_key(spelling, outside=(deep,))


def test_a_relative_output_directory_is_resolved(
    key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="inside the output directory"):
        read_audit_key(Path("audit.key"), outside=(Path(),))


def test_the_default_key_is_made_once(tmp_path: Path) -> None:
    home = tmp_path / "a" / "home"
    key, created = default_audit_key(home)
    again, created_again = default_audit_key(home)

    path = default_audit_key_path(home)
    assert (created, created_again) == (True, False)
    assert key == again == read_audit_key(path)
    assert (len(path.read_bytes()), mode(path), mode(path.parent)) == (32, 0o600, 0o700)
    assert os.listdir(path.parent) == ["audit.key"]
    assert default_audit_key(tmp_path / "other")[0] != key


def test_first_uses_at_once_end_with_one_key(tmp_path: Path) -> None:
    def work() -> bytes:
        key, created = default_audit_key(tmp_path)
        return b"%d" % created + key.raw

    results = in_processes([work] * 4)
    assert sorted(result[:1] for result in results) == [b"0", b"0", b"0", b"1"]
    assert len({result[1:] for result in results}) == 1


@pytest.mark.parametrize(("spoil", "message"), [case for case in SPOILED if case.id != "missing"])
def test_an_unsafe_default_key_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    default_audit_key(tmp_path)
    spoil(default_audit_key_path(tmp_path))
    with pytest.raises(InputError, match=message):
        default_audit_key(tmp_path)


def test_no_default_key_is_made_inside_the_output_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="inside the output directory"):
        default_audit_key(tmp_path / "out" / "home", outside=tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_an_open_key_directory_is_refused(tmp_path: Path) -> None:
    default_audit_key(tmp_path)
    (tmp_path / "keys").chmod(0o750)
    with pytest.raises(UnavailableError, match="open to other users"):
        default_audit_key(tmp_path)


def test_a_place_that_cannot_be_written() -> None:
    def body(directory: Path) -> None:
        directory.chmod(0o500)
        with pytest.raises(UnavailableError):
            default_audit_key(directory / "home")
        with pytest.raises(UnavailableError):
            write_bundle_key(directory / "bundle.key", BundleKey(SECRET))

    run_as_ordinary_user(body)


def test_a_bundle_key_is_handed_out_in_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "for-the-auditor" / "bundle.key"
    before = os.umask(0)
    try:
        write_bundle_key(path, BundleKey(SECRET))
    finally:
        os.umask(before)

    assert read_bundle_key(path) == BundleKey(SECRET)
    assert (path.read_bytes(), mode(path)) == (SECRET, 0o600)
    with pytest.raises(InputError, match="never overwritten"):
        write_bundle_key(path, BundleKey(SECRET))


def test_a_bundle_key_is_not_put_where_its_set_is(tmp_path: Path) -> None:
    place = tmp_path / "set"
    place.mkdir()
    (tmp_path / "alias").symlink_to(place)
    for path in (
        place / "bundle.key",
        place / "new" / "bundle.key",
        tmp_path / "alias" / "bundle.key",
        place / ".." / "set" / "bundle.key",
    ):
        with pytest.raises(InputError, match="directory of its set"):
            write_bundle_key(path, BundleKey(SECRET), place)
    assert list(place.iterdir()) == []
    write_bundle_key(tmp_path / "bundle.key", BundleKey(SECRET), place)
    assert (tmp_path / "bundle.key").read_bytes() == SECRET
