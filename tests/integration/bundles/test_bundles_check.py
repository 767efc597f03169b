"""What is on disk against what is declared: every way to differ is found, and named."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tallystick.bundles import check as checking
from tallystick.bundles import hashing
from tallystick.bundles.check import check_bundle
from tallystick.bundles.tree import Listing, list_tree
from tallystick.canonical.hashing import sha256
from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.dataset import (
    MANIFEST_FILE,
    MODEL_REF_FILE,
    bundle_digest,
    task_digest,
)
from tallystick.errors import EvidenceError, InputError, NothingToVerifyError, TallystickError
from tests.support.bundles import CONTENTS, manifest_of, write_bundle, write_files
from tests.support.documents import digest_of, example_model_ref

Damage = Callable[[Path], object]
PROMPT = "task/prompt.txt"
LARGE = "data/large.bin"


def test_a_bundle_that_is_as_declared_holds(tmp_path: Path) -> None:
    manifest = write_bundle(tmp_path)
    bundle = check_bundle(tmp_path)
    data = (tmp_path / MANIFEST_FILE).read_bytes()
    raw = sha256(data)
    assert bundle.manifest == manifest
    assert bundle.model_ref == example_model_ref()
    assert bundle.manifest_digest == f"sha256:{raw.hex()}"
    assert bundle.bundle_digest == bundle_digest(raw, manifest.all_files())
    assert bundle.task_digest == task_digest(manifest.task)
    assert bundle.source_attestation_digest is None


def test_modes_owners_and_times_are_in_no_digest(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    before = check_bundle(tmp_path)
    os.chmod(tmp_path / PROMPT, 0o600)
    os.utime(tmp_path / LARGE, (1, 1))
    os.chmod(tmp_path / "data", 0o700)
    assert check_bundle(tmp_path) == before


def replaced_by(make: Damage, path: str = PROMPT) -> Damage:
    def damage(bundle: Path) -> None:
        (bundle / path).unlink()
        make(bundle / path)

    return damage


def linked(bundle: Path) -> None:
    (bundle / PROMPT).rename(bundle.parent / "outside.txt")
    (bundle / PROMPT).symlink_to(bundle.parent / "outside.txt")


def manifest_linked(bundle: Path) -> None:
    (bundle / MANIFEST_FILE).rename(bundle.parent / "outside.json")
    (bundle / MANIFEST_FILE).symlink_to(bundle.parent / "outside.json")


def directory_linked(bundle: Path) -> None:
    (bundle / "data/descriptions").rename(bundle.parent / "outside")
    (bundle / "data/descriptions").symlink_to(bundle.parent / "outside")


def flipped(bundle: Path) -> None:
    data = bytearray((bundle / LARGE).read_bytes())
    data[-1] ^= 1
    (bundle / LARGE).write_bytes(data)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket may have only 108 bytes
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


def raw_name(name: bytes) -> Damage:
    def damage(bundle: Path) -> None:
        with open(os.fsencode(bundle / "data") + b"/" + name, "xb"):
            pass

    return damage


def nested(bundle: Path) -> None:
    (bundle / "data" / "/".join("d" * 17)).mkdir(parents=True)


DAMAGES: dict[str, tuple[Damage, str, str]] = {
    "extra file": (lambda b: (b / "data/x").touch(), "data/x", "not declared"),
    "extra file at the top": (lambda b: (b / "README").touch(), "README", "not declared"),
    "git attributes": (lambda b: (b / ".gitattributes").touch(), ".gitattributes", "not declared"),
    "git directory": (lambda b: write_files(b, {".git/config": b"x"}), ".git", "not declared"),
    "github directory": (
        lambda b: write_files(b, {"data/.github/x": b"x"}),
        "data/.github",
        "not declared",
    ),
    "empty directory": (lambda b: (b / "data/new").mkdir(), "data/new", "an empty directory"),
    "empty directories": (
        lambda b: (b / "task/a/b").mkdir(parents=True),
        "task/a",
        "an empty directory",
    ),
    "missing file": (lambda b: (b / PROMPT).unlink(), PROMPT, "missing"),
    "missing model": (lambda b: (b / MODEL_REF_FILE).unlink(), MODEL_REF_FILE, "missing"),
    "longer": (lambda b: (b / PROMPT).write_bytes(b"x" * 99), PROMPT, "has 99 bytes"),
    "truncated": (lambda b: (b / LARGE).write_bytes(b""), LARGE, "has 0 bytes"),
    "one bit": (flipped, LARGE, "sha256 is"),
    "executable": (lambda b: os.chmod(b / PROMPT, 0o755), PROMPT, "executable"),
    "executable for one": (lambda b: os.chmod(b / PROMPT, 0o645), PROMPT, "executable"),
    "set-uid": (lambda b: os.chmod(b / PROMPT, 0o4644), PROMPT, "special bits"),
    "executable manifest": (lambda b: os.chmod(b / MANIFEST_FILE, 0o744), MANIFEST_FILE, "execut"),
    "symbolic link": (linked, PROMPT, "symbolic link"),
    "dangling link": (
        replaced_by(lambda path: path.symlink_to("nowhere")),
        PROMPT,
        "symbolic link",
    ),
    "linked directory": (directory_linked, "data/descriptions", "symbolic link"),
    "linked manifest": (manifest_linked, MANIFEST_FILE, "symbolic link"),
    "hard link": (lambda b: os.link(b / LARGE, b.parent / "other"), LARGE, "hard links"),
    "hard link of the manifest": (
        lambda b: os.link(b / MANIFEST_FILE, b.parent / "other"),
        MANIFEST_FILE,
        "hard links",
    ),
    "FIFO": (replaced_by(os.mkfifo), PROMPT, "a FIFO"),
    "FIFO for a manifest": (replaced_by(os.mkfifo, MANIFEST_FILE), MANIFEST_FILE, "not a regular"),
    "socket": (replaced_by(listening), PROMPT, "a socket"),
    "directory for a file": (replaced_by(os.mkdir), PROMPT, "an empty directory"),
    "not UTF-8": (raw_name(b"a\xff"), "data/a\\udcff", "not UTF-8"),
    "newline": (raw_name(b"a\nb"), "data/a\\nb", "control"),
    "not NFC": (raw_name("a\u0308".encode()), "data/a\\u0308", "NFC"),
    "direction": (raw_name("a\u202eb".encode()), "data/a\\u202eb", "invisible"),
    "backslash": (raw_name(b"a\\b"), "data/a", "backslash"),
    "trailing dot": (raw_name(b"a."), "data/a.", "full stop"),
    "too deep": (nested, "data/d/d", "nested deeper"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_every_difference_is_found_and_named(name: str, tmp_path: Path) -> None:
    damage, path, problem = DAMAGES[name]
    bundle = tmp_path / "bundle"
    write_bundle(bundle)
    damage(bundle)
    with pytest.raises(EvidenceError) as caught:
        check_bundle(bundle)
    assert problem in caught.value.message
    assert path in caught.value.message.replace("\\\\", "\\")
    assert caught.value.message.isascii()
    assert "\n" not in caught.value.message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
def test_a_device_is_refused_without_opening_it(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    try:
        os.mknod(tmp_path / "data/null", 0o600 | 0o020000, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("this root may not make devices")
    with pytest.raises(EvidenceError, match="a device"):
        check_bundle(tmp_path)


@pytest.mark.parametrize("path", ["", "nothing", "file"])
def test_no_bundle_is_nothing_to_verify(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NothingToVerifyError, match="no bundle at"):
        check_bundle(tmp_path / path)


def test_a_link_to_a_bundle_is_none(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle")
    (tmp_path / "link").symlink_to("bundle")
    with pytest.raises(TallystickError):
        check_bundle(tmp_path / "link")


def test_an_empty_bundle_is_refused_even_when_it_says_so(tmp_path: Path) -> None:
    ref = example_model_ref()
    manifest = manifest_of({}, ref)
    bare = replace(manifest, splits=(), task=replace(manifest.task, prompt_template=None))
    write_bundle(tmp_path, {}, bare)
    with pytest.raises(EvidenceError, match="bad field files"):
        check_bundle(tmp_path)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'{"schema":"dac.manifest/v2"}'])
def test_a_manifest_that_is_none_is_refused(data: bytes, tmp_path: Path) -> None:
    write_bundle(tmp_path)
    (tmp_path / MANIFEST_FILE).write_bytes(data)
    with pytest.raises(EvidenceError, match="dataset manifest"):
        check_bundle(tmp_path)


def test_the_manifest_cannot_lead_outside(tmp_path: Path) -> None:
    manifest = manifest_of({**CONTENTS, "data/../../secret": b"x"}, example_model_ref())
    write_bundle(tmp_path / "bundle")
    (tmp_path / "bundle" / MANIFEST_FILE).write_bytes(encode_bytes(manifest))
    with pytest.raises(EvidenceError, match="unusable path"):
        check_bundle(tmp_path / "bundle")


def test_manifest_and_reference_must_name_one_model(tmp_path: Path) -> None:
    manifest = manifest_of(CONTENTS, example_model_ref())
    other = replace(manifest, model=replace(manifest.model, digest=digest_of("another")))
    write_bundle(tmp_path, CONTENTS, other)
    with pytest.raises(EvidenceError, match="name different models"):
        check_bundle(tmp_path)


def test_names_that_fold_together_are_refused_where_a_disk_holds_both(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    manifest = manifest_of({**CONTENTS, "data/EMPTY": b""}, example_model_ref())
    write_files(tmp_path, {"data/EMPTY": b"", MANIFEST_FILE: encode_bytes(manifest)})
    with pytest.raises(EvidenceError, match="take for one"):
        check_bundle(tmp_path)


def test_a_file_that_cannot_be_read_is_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bundle(tmp_path)
    real = os.open

    def refuse(path: object, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == b"prompt.txt":
            raise PermissionError(13, "Permission denied")
        return real(path, flags, mode, dir_fd=dir_fd)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(EvidenceError, match=r"task/prompt\.txt.*cannot be read"):
        check_bundle(tmp_path)


def during(monkeypatch: pytest.MonkeyPatch, target: Path, act: Callable[[], object]) -> None:
    """Let ``act`` happen once, in the middle of reading ``target``."""
    real, inode = os.readv, target.stat().st_ino
    once = threading.Lock()

    def readv(descriptor: int, buffers: object) -> int:
        count = real(descriptor, buffers)  # type: ignore[arg-type]
        if os.fstat(descriptor).st_ino == inode and once.acquire(blocking=False):
            act()
        return count

    monkeypatch.setattr(os, "readv", readv)


CHANGES: dict[str, Damage] = {
    "grown": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "shrunk": lambda path: os.truncate(path, 10),
    "same bytes again": lambda path: path.write_bytes(path.read_bytes()),
    "touched": os.utime,
    "mode": lambda path: os.chmod(path, 0o600),
    "linked": lambda path: os.link(path, path.parents[2] / "other"),
    "neighbour added": lambda path: (path.parent / "new").touch(),
    "replaced": lambda path: os.replace(path.parent / "empty", path),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_while_reading_is_noticed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "bundle"
    write_bundle(bundle)
    time.sleep(0.05)  # the clock of file times moves in steps of some milliseconds
    target = bundle / LARGE
    during(monkeypatch, target, lambda: CHANGES[name](target))
    with pytest.raises(EvidenceError, match=r"changed while it was read|missing"):
        check_bundle(bundle)


def test_the_manifest_is_read_again_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bundle(tmp_path)
    other = encode_bytes(replace(manifest_of(CONTENTS, example_model_ref()), name="other"))
    target = tmp_path / MANIFEST_FILE

    def swap(root: int) -> tuple[Listing, ...]:
        target.write_bytes(other)
        return list_tree(root)

    monkeypatch.setattr(checking, "list_tree", swap)
    with pytest.raises(EvidenceError, match=r"manifest\.json"):
        check_bundle(tmp_path)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_difference_in_order_is_named_whatever_the_threads(
    threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "usable_threads", lambda: threads)
    contents = {**CONTENTS, **{f"data/many/{n:04}": b"x" * n for n in range(500)}}
    write_bundle(tmp_path, contents)
    check_bundle(tmp_path)
    for number in (77, 300, 499):
        (tmp_path / f"data/many/{number:04}").write_bytes(b"y" * number)
    with pytest.raises(EvidenceError, match="data/many/0077"):
        check_bundle(tmp_path)


def test_a_few_large_files_of_one_directory_are_read_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "usable_threads", lambda: 2)
    names = [f"data/large/{n}" for n in range(16)]
    write_bundle(tmp_path, {**CONTENTS, **{name: os.urandom(300_000) for name in names}})
    inodes = {(tmp_path / name).stat().st_ino for name in names}
    real, both = os.readv, threading.Barrier(2, timeout=60)

    def readv(descriptor: int, buffers: object) -> int:
        # Every such read waits for one of another thread: one thread alone would wait for ever.
        if os.fstat(descriptor).st_ino in inodes and os.lseek(descriptor, 0, os.SEEK_CUR) == 0:
            both.wait()
        # The type of buffers is the standard library's own protocol, which has no public name.
        return real(descriptor, buffers)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "readv", readv)
    check_bundle(tmp_path)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    write_bundle(bundle)
    before = os.listdir("/proc/self/fd") if Path("/proc/self/fd").exists() else []
    check_bundle(bundle)
    flipped(bundle)
    with pytest.raises(EvidenceError):
        check_bundle(bundle)
    if before:
        assert len(os.listdir("/proc/self/fd")) == len(before)


def test_too_many_entries_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallystick.bundles import tree

    write_bundle(tmp_path)
    monkeypatch.setattr(tree, "MAX_ENTRIES", 5)
    with pytest.raises(EvidenceError, match="more than 5"):
        check_bundle(tmp_path)


def test_a_huge_manifest_is_not_read(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    with (tmp_path / MANIFEST_FILE).open("r+b") as file:
        file.truncate(64 * 1024 * 1024 + 1)
    with pytest.raises((EvidenceError, InputError), match="more than"):
        check_bundle(tmp_path)
