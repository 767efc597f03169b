"""Key files: their form, their modes, and what is refused."""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from nacl.exceptions import CryptoError
from nacl.pwhash import argon2id
from nacl.secret import SecretBox

from tallystick.attest import keyfiles
from tallystick.attest.keyfiles import (
    MAX_KEY_FILE,
    commit_key,
    create_default_key,
    default_key,
    default_key_path,
    describe_key,
    ensure_public_key,
    public_key_path,
    read_key,
    read_public_key,
    write_key,
)
from tallystick.attest.keys import PublicKey, SigningKey
from tallystick.canonical.json import jcs
from tallystick.errors import InputError, UnavailableError
from tests.support.ordinary_user import run_as_ordinary_user
from tests.support.processes import in_processes

KEY = SigningKey.from_seed(b"\x07" * 32)
SEED_TEXT = base64.b64encode(b"\x07" * 32).decode()
PASSPHRASE = b"correct horse"


def never_asked() -> NoReturn:
    raise AssertionError("no passphrase is needed")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def rewrite(path: Path, **changes: Any) -> None:
    value = json.loads(path.read_bytes())
    path.write_bytes(jcs({**value, **changes}))


@pytest.fixture
def clear(tmp_path: Path) -> Path:
    path = tmp_path / "clear.key"
    write_key(path, KEY, None)
    return path


@pytest.fixture(scope="module")
def encrypted_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("encrypted") / "locked.key"
    write_key(path, KEY, PASSPHRASE)
    return path.read_bytes()


@pytest.fixture
def locked(encrypted_bytes: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "locked.key"
    path.write_bytes(encrypted_bytes)
    path.chmod(0o600)
    return path


def test_a_clear_key_round_trips(clear: Path) -> None:
    assert read_key(clear, never_asked).public == KEY.public
    assert describe_key(clear) == keyfiles.KeyDescription(KEY.public, encrypted=False)
    assert json.loads(clear.read_bytes()) == {
        "schema": "tallystick.key/v1",
        "producer": "tallystick",
        "algorithm": "ed25519",
        "public_key": KEY.public.raw.hex(),
        "seed": SEED_TEXT,
        "encrypted_seed": None,
    }


def test_an_encrypted_key_round_trips_and_hides_its_seed(locked: Path) -> None:
    assert read_key(locked, lambda: PASSPHRASE).public == KEY.public
    assert describe_key(locked) == keyfiles.KeyDescription(KEY.public, encrypted=True)
    assert SEED_TEXT.encode() not in locked.read_bytes()


def test_the_encryption_is_the_documented_one(locked: Path) -> None:
    value = json.loads(locked.read_bytes())["encrypted_seed"]
    salt, box = base64.b64decode(value["salt"]), base64.b64decode(value["box"])
    secret = argon2id.kdf(32, PASSPHRASE, salt, value["opslimit"], value["memlimit"])
    assert SecretBox(secret).decrypt(box) == b"\x07" * 32
    assert (value["kdf"], value["opslimit"], value["memlimit"]) == ("argon2id13", 3, 1 << 26)
    with pytest.raises(CryptoError):
        SecretBox(bytes(32)).decrypt(box)


@pytest.mark.parametrize("passphrase", [b"wrong horse", b"", b"x" * 1025])
def test_a_wrong_passphrase_is_bad_input(locked: Path, passphrase: bytes) -> None:
    with pytest.raises(InputError, match="passphrase does not open") as caught:
        read_key(locked, lambda: passphrase)
    assert "horse" not in str(caught.value)


@pytest.mark.parametrize("passphrase", [b"", b"x" * 1025])
def test_an_unusable_passphrase_makes_no_key(tmp_path: Path, passphrase: bytes) -> None:
    with pytest.raises(InputError, match="unusable length"):
        write_key(tmp_path / "new.key", KEY, passphrase)
    assert list(tmp_path.iterdir()) == []


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_key(tmp_path / "open" / "deep" / "a.key", KEY, None)
        os.umask(0o277)
        write_key(tmp_path / "open" / "deep" / "b.key", KEY, None)
    finally:
        os.umask(before)
    for name in ("a", "b"):
        assert mode(tmp_path / "open" / "deep" / f"{name}.key") == 0o600
        assert mode(tmp_path / "open" / "deep" / f"{name}.pub.pem") == 0o644
    assert mode(tmp_path / "open") == mode(tmp_path / "open" / "deep") == 0o700


def test_nothing_temporary_is_left(clear: Path) -> None:
    assert sorted(os.listdir(clear.parent)) == ["clear.key", "clear.pub.pem"]


def occupied_by_file(path: Path) -> None:
    path.write_bytes(b"precious")


def occupied_by_symlink(path: Path) -> None:
    path.symlink_to(path.parent / "elsewhere")


def occupied_by_directory(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("occupy", [occupied_by_file, occupied_by_symlink, occupied_by_directory])
@pytest.mark.parametrize("name", ["a.key", "a.pub.pem"])
def test_a_taken_name_is_never_overwritten(
    tmp_path: Path, occupy: Callable[[Path], None], name: str
) -> None:
    occupy(tmp_path / name)
    status = (tmp_path / name).lstat()
    with pytest.raises(InputError, match="never overwritten"):
        write_key(tmp_path / "a.key", KEY, None)
    assert os.listdir(tmp_path) == [name]
    after = (tmp_path / name).lstat()
    assert (after.st_ino, after.st_mtime_ns) == (status.st_ino, status.st_mtime_ns)


def test_a_name_taken_at_the_last_moment_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyfiles, "exists", lambda *_: False)
    (tmp_path / "a.key").write_bytes(b"precious")
    with pytest.raises(InputError, match="never overwritten"):
        write_key(tmp_path / "a.key", KEY, None)
    assert (tmp_path / "a.key").read_bytes() == b"precious"
    assert os.listdir(tmp_path) == ["a.key"]


def make_symlink(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.symlink_to("real")


def make_hard_link(path: Path) -> None:
    path.with_name("other").hardlink_to(path)


def make_group_readable(path: Path) -> None:
    path.chmod(0o640)


def make_world_readable(path: Path) -> None:
    path.chmod(0o604)


def make_group_writable(path: Path) -> None:
    path.chmod(0o620)


def make_large(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b" " * MAX_KEY_FILE)


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir(mode=0o700)


def make_missing(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (make_symlink, "is a symlink"),
        (make_hard_link, "more than one name"),
        (make_group_readable, "open to other users"),
        (make_world_readable, "open to other users"),
        (make_group_writable, "open to other users"),
        (make_large, "too large"),
        (make_fifo, "not a plain file"),
        (make_directory, "not a plain file"),
        (make_missing, "does not exist"),
    ],
)
def test_unsafe_files_are_refused(clear: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(clear)
    for read in (lambda: read_key(clear, never_asked), lambda: describe_key(clear)):
        with pytest.raises(InputError, match=message) as caught:
            read()
        assert caught.value.exit_code == 4
        assert str(clear) in str(caught.value)
        assert SEED_TEXT not in str(caught.value)


def test_another_user_s_file_is_refused(clear: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(InputError, match="belongs to another user"):
        read_key(clear, never_asked)


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": "tallystick.key/v2"},
        {"algorithm": "ed448"},
        {"public_key": KEY.public.raw.hex()[:-2]},
        {"seed": None},
        {"seed": "AAAA"},
        {"seed": SEED_TEXT[:-1]},
        {"seed": base64.b64encode(b"\x08" * 32).decode()},
        {"extra": 1},
    ],
    ids=lambda value: str(value)[:40],
)
def test_damaged_files_are_refused(clear: Path, changes: dict[str, Any]) -> None:
    rewrite(clear, **changes)
    with pytest.raises(InputError) as caught:
        read_key(clear, never_asked)
    assert SEED_TEXT not in str(caught.value)


def test_two_secrets_in_one_file_are_refused(locked: Path) -> None:
    rewrite(locked, seed=SEED_TEXT)
    with pytest.raises(InputError, match="exactly one"):
        read_key(locked, never_asked)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"-----BEGIN X-----\n"])
def test_other_files_are_refused(clear: Path, data: bytes) -> None:
    clear.write_bytes(data)
    with pytest.raises(InputError, match="key file"):
        read_key(clear, never_asked)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memlimit", 1 << 40),
        ("memlimit", (256 << 20) + 1),
        ("memlimit", (8 << 20) - 1),
        ("opslimit", 17),
        ("opslimit", 0),
        ("opslimit", 2**53 - 1),
        ("kdf", "scrypt"),
    ],
)
def test_hostile_cost_parameters_are_refused_before_any_work(
    locked: Path, name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object) -> NoReturn:
        raise AssertionError("the parameters must be refused first")

    monkeypatch.setattr(argon2id, "kdf", unreachable)
    rewrite(
        locked, encrypted_seed={**json.loads(locked.read_bytes())["encrypted_seed"], name: value}
    )
    with pytest.raises(InputError, match=name):
        read_key(locked, never_asked)


@pytest.mark.parametrize("name", ["salt", "box"])
@pytest.mark.parametrize("value", ["", "AAAA"])
def test_truncated_encryption_is_refused(locked: Path, name: str, value: str) -> None:
    inner = json.loads(locked.read_bytes())["encrypted_seed"]
    # The cheapest permitted parameters: whatever they are, the file must be refused.
    cheap = {"opslimit": 1, "memlimit": 8 << 20}
    rewrite(locked, encrypted_seed={**inner, **cheap, name: value})
    with pytest.raises(InputError, match="damaged"):
        read_key(locked, lambda: PASSPHRASE)


def test_the_default_key_is_made_once(tmp_path: Path) -> None:
    home = tmp_path / "a" / "home"
    key, created = default_key(home)
    again, created_again = default_key(home)
    assert (created, created_again) == (True, False)
    assert key.public == again.public
    assert mode(home) == mode(home / "keys") == 0o700
    assert mode(default_key_path(home)) == 0o600
    assert read_public_key(home / "keys" / "default.pub.pem") == key.public
    with pytest.raises(InputError, match="never overwritten"):
        create_default_key(home, None)


def test_an_encrypted_default_key_needs_its_passphrase(
    tmp_path: Path, encrypted_bytes: bytes
) -> None:
    path = default_key_path(tmp_path / "home")
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_bytes(encrypted_bytes)
    path.chmod(0o600)
    with pytest.raises(InputError, match="no passphrase was given"):
        default_key(tmp_path / "home")
    key, created = default_key(tmp_path / "home", lambda: PASSPHRASE)
    assert (key.public, created) == (KEY.public, False)


def test_an_open_key_directory_is_refused(tmp_path: Path) -> None:
    default_key(tmp_path)
    (tmp_path / "keys").chmod(0o750)
    with pytest.raises(UnavailableError, match="open to other users"):
        default_key(tmp_path)
    with pytest.raises(UnavailableError, match="open to other users"):
        commit_key(tmp_path)


def test_first_uses_at_once_end_with_one_key(tmp_path: Path) -> None:
    def work() -> bytes:
        key, created = default_key(tmp_path / "home")
        return b"%d" % created + key.public.raw + commit_key(tmp_path / "home")

    results = in_processes([work] * 4)
    assert sorted(result[:1] for result in results) == [b"0", b"0", b"0", b"1"]
    assert len({result[1:] for result in results}) == 1
    assert sorted(os.listdir(tmp_path / "home" / "keys")) == [
        "commit.key",
        "default.key",
        "default.pub.pem",
    ]


def test_the_commit_key(tmp_path: Path) -> None:
    key = commit_key(tmp_path)
    path = tmp_path / "keys" / "commit.key"
    assert key == commit_key(tmp_path) == path.read_bytes()
    assert (len(key), mode(path)) == (32, 0o600)
    assert commit_key(tmp_path / "other") != key


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_commit_key_of_another_length_is_refused(tmp_path: Path, length: int) -> None:
    commit_key(tmp_path)
    (tmp_path / "keys" / "commit.key").write_bytes(b"\x5a" * length)
    with pytest.raises(InputError, match=r"wrong length|too large") as caught:
        commit_key(tmp_path)
    assert "5a5a" not in str(caught.value)


def test_an_unsafe_commit_key_is_refused(tmp_path: Path) -> None:
    commit_key(tmp_path)
    make_group_readable(tmp_path / "keys" / "commit.key")
    with pytest.raises(InputError, match="open to other users"):
        commit_key(tmp_path)


def test_places_that_cannot_be_written() -> None:
    def body(directory: Path) -> None:
        directory.chmod(0o500)
        try:
            for attempt in (
                lambda: default_key(directory),
                lambda: commit_key(directory),
                lambda: write_key(directory / "a.key", KEY, None),
            ):
                with pytest.raises(UnavailableError, match="cannot write"):
                    attempt()
            assert os.listdir(directory) == []
        finally:
            directory.chmod(0o700)

    run_as_ordinary_user(body)


def test_a_file_that_may_not_be_opened() -> None:
    def body(directory: Path) -> None:
        write_key(directory / "a.key", KEY, None)
        (directory / "a.key").chmod(0)
        with pytest.raises(InputError, match="cannot be opened"):
            read_key(directory / "a.key", never_asked)

    run_as_ordinary_user(body)


def test_names_of_public_key_files() -> None:
    assert public_key_path(Path("d/default.key")) == Path("d/default.pub.pem")
    assert public_key_path(Path("worker")) == Path("worker.pub.pem")


def test_a_lost_public_key_file_is_written_again(clear: Path) -> None:
    public_key_path(clear).unlink()
    assert read_public_key(ensure_public_key(clear, KEY.public)) == KEY.public
    assert mode(public_key_path(clear)) == 0o644


def test_a_public_key_file_of_another_key_is_refused(clear: Path) -> None:
    other = SigningKey.generate().public
    public_key_path(clear).write_text(other.pem())
    with pytest.raises(InputError, match="another key"):
        ensure_public_key(clear, KEY.public)
    assert read_public_key(public_key_path(clear)) == other


def test_what_is_no_public_key_file(clear: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a public key file") as caught:
        read_public_key(clear)
    assert SEED_TEXT not in str(caught.value)
    with pytest.raises(InputError, match="cannot be read"):
        read_public_key(tmp_path / "absent.pub.pem")
    with pytest.raises(InputError, match="no regular file"):
        read_public_key(tmp_path)


def test_a_key_document_shows_no_seed_in_its_repr() -> None:
    document = keyfiles.KeyFile(
        "tallystick.key/v1", "tallystick", "ed25519", KEY.public.raw.hex(), SEED_TEXT, None
    )
    assert SEED_TEXT not in repr(document)


def test_pem_from_a_file_is_a_public_key(clear: Path) -> None:
    assert PublicKey.from_pem(public_key_path(clear).read_bytes()) == KEY.public


@pytest.mark.parametrize("mode", [0o644, 0o600])
@pytest.mark.parametrize("before", ["", "\n"])
def test_a_public_key_is_no_signing_key_whatever_its_mode(
    mode: int, before: str, tmp_path: Path
) -> None:
    path = tmp_path / "alice.pub.pem"
    path.write_text(before + SigningKey.generate().public.pem())
    path.chmod(mode)
    for read in (lambda: read_key(path, bytes), lambda: describe_key(path)):
        with pytest.raises(InputError, match="this is a public key") as caught:
            read()
        assert "a signing key file" in str(caught.value.expected)
        assert "private key file" in str(caught.value.hint)
        assert "chmod" not in str(caught.value)
