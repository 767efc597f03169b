"""Fetching a base model's metadata from a hub that behaves, and from ones that do not."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tallystick.canonical.hashing import sha256
from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.profile_pin import BaseMetadata, ProfilePin
from tallystick.errors import EvidenceError, InputError, UnavailableError, UsageError
from tallystick.models import base_metadata
from tallystick.models.base_metadata import RECORD_NAME, check, fetch
from tests.support.hub_stub import Hub, hub_stub
from tests.support.manifests import METADATA, example_base_metadata, example_profile_pin

PIN = example_profile_pin()
BASE = PIN.base_artifact
PREFIX = f"/{BASE.repository}/resolve/{BASE.revision}/"
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN", "HF_HUB_TOKEN")
Stub = tuple[str, Hub]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Stub]:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # loopback goes past any proxy
    for name in TOKENS:
        monkeypatch.setenv(name, "hf_secret")
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password hf_secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with hub_stub() as (url, hub):
        hub.files = {PREFIX + name: data for name, data in METADATA.items()}
        yield url, hub


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out" / "metadata"


def get(stub: Stub, target: Path, pin: ProfilePin = PIN) -> BaseMetadata:
    return fetch(pin, target, stub[0], pause=lambda seconds: None)


def pinned(name: str, digest: str) -> ProfilePin:
    """Return the pin with one digest published."""
    files = tuple(
        replace(file, sha256=digest) if file.path == name else file for file in BASE.files
    )
    return replace(PIN, base_artifact=replace(BASE, files=files))


def nothing_left(target: Path) -> bool:
    return not target.exists() and not any(target.parent.glob(".*"))


def test_seven_files_and_a_record(stub: Stub, target: Path) -> None:
    found = get(stub, target)

    assert found == example_base_metadata()
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        **METADATA,
        RECORD_NAME: encode_bytes(found),
    }
    assert stat.S_IMODE(target.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in target.iterdir()} == {0o644}
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    assert stub[1].requests == [PREFIX + file.path for file in BASE.files]
    assert check(PIN, target) == found


def test_nothing_is_said_of_who_asks(stub: Stub, target: Path) -> None:
    stub[1].redirect_to = f"{stub[0]}/elsewhere"

    get(stub, target)

    assert len(stub[1].headers) == 2 * len(METADATA)
    for headers in stub[1].headers:
        assert headers.keys() == {"host", "user-agent", "accept-encoding", "connection"}
        assert "hf_secret" not in json.dumps(headers)


def test_an_empty_directory_is_filled(stub: Stub, target: Path) -> None:
    target.mkdir(parents=True)

    assert get(stub, target) == check(PIN, target)


def test_nothing_is_overwritten(stub: Stub, target: Path) -> None:
    target.mkdir(parents=True)
    (target / "mine").write_text("kept")

    with pytest.raises(InputError, match="is not empty"):
        get(stub, target)

    assert [path.name for path in target.iterdir()] == ["mine"]
    assert stub[1].requests == []


def test_a_file_in_the_way_is_no_directory(stub: Stub, target: Path) -> None:
    target.parent.mkdir(parents=True)
    target.write_text("kept")

    with pytest.raises(UnavailableError):
        get(stub, target)

    assert target.read_text() == "kept"


def test_published_digests_are_checked(stub: Stub, target: Path) -> None:
    digest = sha256(METADATA["file-3.json"]).hex()
    get(stub, target, pinned("file-3.json", digest))

    other = target.with_name("other")
    with pytest.raises(EvidenceError, match=r"file-3\.json is not the pinned one"):
        get(stub, other, pinned("file-3.json", "0" * 64))
    assert nothing_left(other)


def test_a_missing_file_leaves_nothing(stub: Stub, target: Path) -> None:
    del stub[1].files[PREFIX + "file-5.json"]

    with pytest.raises(InputError, match="the hub 127"):
        get(stub, target)

    assert nothing_left(target)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(status: int, stub: Stub, target: Path) -> None:
    stub[1].statuses = [status] * 4

    assert get(stub, target) == example_base_metadata()
    assert len(stub[1].requests) == 4 + len(METADATA)


def test_a_hub_that_never_serves_is_given_up(stub: Stub, target: Path) -> None:
    stub[1].statuses = [503] * 5
    waits: list[float] = []

    with pytest.raises(UnavailableError, match="not able to serve now"):
        fetch(PIN, target, stub[0], pause=waits.append)

    assert waits == [0.5, 1.0, 2.0, 4.0]
    assert nothing_left(target)


def test_a_hub_that_is_down_is_named_and_nothing_is_said_to_be_kept(target: Path) -> None:
    with hub_stub() as (url, hub):
        pass
    with pytest.raises(UnavailableError, match="could not be reached") as caught:
        get((url, hub), target)
    assert url.removeprefix("http://") in caught.value.message
    assert caught.value.hint == "check the network and try again"
    assert nothing_left(target)


def test_a_broken_transfer_is_made_anew(stub: Stub, target: Path) -> None:
    stub[1].cut_after = [3, 0]

    assert get(stub, target) == example_base_metadata()
    assert len(stub[1].requests) == 2 + len(METADATA)


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "not announced"])
def test_sizes_are_bounded(
    announced: bool, stub: Stub, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_metadata, "MAX_FILE", 1000)
    monkeypatch.setattr(base_metadata, "_CHUNK", 100)
    stub[1].send_length = announced
    stub[1].files[PREFIX + "file-6.json"] = bytes(1000)
    get(stub, target)
    stub[1].files[PREFIX + "file-6.json"] = bytes(1001)

    with pytest.raises(EvidenceError, match=r"file-6\.json is too large"):
        get(stub, target.with_name("other"))

    assert nothing_left(target.with_name("other"))


def test_an_empty_or_encoded_file_is_refused(stub: Stub, target: Path) -> None:
    stub[1].files[PREFIX + "file-0.json"] = b""
    with pytest.raises(EvidenceError, match=r"file-0\.json is empty"):
        get(stub, target)
    stub[1].encoding = "gzip"
    with pytest.raises(EvidenceError, match="encoded"):
        get(stub, target)
    assert nothing_left(target)


def test_a_redirect_may_not_leave_the_machine_unprotected(stub: Stub, target: Path) -> None:
    stub[1].redirect_to = "http://hub.example.org/elsewhere"

    with pytest.raises(EvidenceError, match="insecure address"):
        get(stub, target)

    assert nothing_left(target)


@pytest.mark.parametrize(
    "endpoint", ["http://hub.example.org", "https://me:hf_secret@hub.example.org", "ftp://x", ""]
)
def test_endpoints_that_are_not_used(endpoint: str, target: Path) -> None:
    with pytest.raises(UsageError, match="hub") as caught:
        fetch(PIN, target, endpoint)

    assert "hf_secret" not in str(caught.value)
    assert nothing_left(target)


def test_a_changed_file_or_record_is_found(stub: Stub, target: Path) -> None:
    found = get(stub, target)
    (target / "file-2.json").write_bytes(b"{}")
    with pytest.raises(EvidenceError, match="not what was fetched") as caught:
        check(PIN, target)
    assert "file-2.json" in str(caught.value)

    (target / "file-2.json").write_bytes(METADATA["file-2.json"])
    (target / RECORD_NAME).write_bytes(encode_bytes(replace(found, profile_name="other")))
    with pytest.raises(EvidenceError, match="not what was fetched"):
        check(PIN, target)

    (target / RECORD_NAME).write_bytes(b"{}")
    with pytest.raises(EvidenceError, match="the key"):
        check(PIN, target)

    (target / RECORD_NAME).write_bytes(encode_bytes(found))
    (target / "file-2.json").unlink()
    with pytest.raises(InputError, match="does not hold"):
        check(PIN, target)


def test_another_pin_s_metadata_is_found(stub: Stub, target: Path) -> None:
    get(stub, target)
    other = replace(PIN, base_artifact=replace(BASE, revision="f" * 40))

    with pytest.raises(EvidenceError, match="not what was fetched"):
        check(other, target)


def test_a_link_in_place_of_a_file_is_not_followed(stub: Stub, target: Path) -> None:
    get(stub, target)
    (target / "file-2.json").rename(target.parent / "moved")
    os.symlink(target.parent / "moved", target / "file-2.json")

    with pytest.raises(EvidenceError, match="symbolic link"):
        check(PIN, target)
