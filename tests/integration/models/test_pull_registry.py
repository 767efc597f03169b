"""Pulling from a container registry that behaves, and from ones that do not."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tallystick.contracts.model import ModelPin
from tallystick.errors import (
    EvidenceError,
    IncomparableError,
    InputError,
    UnavailableError,
    UsageError,
)
from tallystick.models import download
from tallystick.models.catalogue import BlobSource, CatalogueEntry
from tallystick.models.pull import PullOptions, pull
from tallystick.models.registry import find_pin, open_model, resolve
from tests.support.gguf_bytes import TensorBytes, tiny
from tests.support.registry_stub import Behaviour, digest_of, model_layer, registry_stub

MODEL = tiny().with_tensors(TensorBytes("big", (50_000,), data=bytes(range(200)) * 1000)).build()
REPO = "someone/Tiny-Model"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Behaviour]]:
    monkeypatch.setattr(download, "_FIRST_PAUSE", 0.0)
    monkeypatch.setattr(download, "_CHUNK", 10_000)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # loopback goes past any proxy
    with registry_stub() as (url, behaviour):
        behaviour.add(MODEL)
        behaviour.tag(f"{REPO}/manifests/1b-q4", model_layer(MODEL), {"mediaType": "x"})
        yield url, behaviour


Stub = tuple[str, Behaviour]
BY_DIGEST = f"ollama:{REPO}@{digest_of(MODEL)}"
BY_TAG = f"ollama:{REPO}:1b-q4"


def fetch(stub: Stub, home: Path, spec: str = BY_TAG, name: str | None = None) -> ModelPin:
    return pull(spec, home, options=PullOptions(registry=stub[0], name=name))


def folder(home: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (home / "models").iterdir()}


def leave_partial(home: Path, data: bytes, name: str = "tiny-model-1b-q4") -> Path:
    path = home / "models" / f"{name}.gguf.partial"
    path.parent.mkdir(mode=0o700, parents=True)
    home.chmod(0o700)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("spec", "name"),
    [(BY_TAG, "tiny-model-1b-q4"), (BY_DIGEST, f"tiny-model-{digest_of(MODEL)[7:19]}")],
)
def test_a_model_is_pulled_checked_and_pinned(spec: str, name: str, stub: Stub, home: Path) -> None:
    pin = fetch(stub, home, spec)
    assert (pin.name, pin.digest, pin.size) == (name, digest_of(MODEL), len(MODEL))
    assert (pin.source, pin.path, pin.derived_from) == (spec, f"{name}.gguf", None)
    assert pin.facts.architecture == "llama"
    assert find_pin(name, home) == pin
    assert folder(home).keys() == {f"{name}.gguf", f"{name}.json"}
    model = resolve(name, home)
    assert (model.digest, model.pin) == (digest_of(MODEL), pin)
    with open_model(model) as handle:
        assert os.pread(handle.fd, len(MODEL), 0) == MODEL
        handle.unchanged()


def test_pulling_again_downloads_nothing(stub: Stub, home: Path) -> None:
    first = fetch(stub, home, BY_DIGEST)
    count = len(stub[1].requests)
    assert fetch(stub, home, BY_DIGEST) == first
    assert len(stub[1].requests) == count


def test_a_lost_pin_is_made_again_from_the_file(stub: Stub, home: Path) -> None:
    first = fetch(stub, home)
    (home / "models" / f"{first.name}.json").unlink()
    stub[1].blobs.clear()
    assert fetch(stub, home) == first


def test_a_catalogue_entry_can_name_a_blob(stub: Stub, home: Path) -> None:
    entry = CatalogueEntry(digest_of(MODEL), len(MODEL), BlobSource(REPO))
    options = PullOptions(registry=stub[0], catalogue={"tiny": entry})
    pin = pull("tiny", home, options=options)
    assert (pin.name, pin.source) == ("tiny", f"ollama:{REPO}@{digest_of(MODEL)}")


def test_a_short_repository_name_is_in_the_library(stub: Stub, home: Path) -> None:
    stub[1].tag("library/tiny/manifests/latest", model_layer(MODEL))
    assert fetch(stub, home, "ollama:tiny:latest").name == "tiny-latest"


@pytest.mark.parametrize(
    "spec",
    ["", "nope", "ollama:", "ollama:x", "ollama:a b:c", "ollama:../x:y", "ollama:x/../y:z",
     "ollama:x:y/z", "ollama:x@sha256:ab", "ollama:x@sha512:" + "a" * 64, "ollama:/x:y"],
)  # fmt: skip
def test_other_specs_are_refused_before_any_request(spec: str, stub: Stub, home: Path) -> None:
    with pytest.raises(InputError, match="not a model that can be pulled"):
        fetch(stub, home, spec)
    assert stub[1].requests == []
    assert not home.exists()


def test_a_partial_file_is_continued(stub: Stub, home: Path) -> None:
    leave_partial(home, MODEL[:77_777])
    fetch(stub, home)
    assert stub[1].requests[-1][1] == "bytes=77777-"


def test_a_complete_partial_file_needs_no_download(stub: Stub, home: Path) -> None:
    leave_partial(home, MODEL)
    fetch(stub, home)
    assert len(stub[1].requests) == 1  # the manifest


def test_a_complete_partial_file_of_unknown_size(stub: Stub, home: Path) -> None:
    leave_partial(home, MODEL, f"tiny-model-{digest_of(MODEL)[7:19]}")
    fetch(stub, home, BY_DIGEST)


@pytest.mark.parametrize("content", [b"", b"x" * 500, b"x" * len(MODEL), b"x" * (len(MODEL) + 9)])
@pytest.mark.parametrize("spec", [BY_TAG, BY_DIGEST])
def test_a_stale_partial_file_does_no_harm(
    spec: str, content: bytes, stub: Stub, home: Path
) -> None:
    for name in ("tiny-model-1b-q4", f"tiny-model-{digest_of(MODEL)[7:19]}"):
        home.joinpath("models").mkdir(mode=0o700, parents=True, exist_ok=True)
        (home / "models" / f"{name}.gguf.partial").write_bytes(content)
    home.chmod(0o700)
    assert fetch(stub, home, spec).digest == digest_of(MODEL)


@pytest.mark.parametrize("mode", ["ignore", "wrong", "refuse"])
@pytest.mark.parametrize("spec", [BY_TAG, BY_DIGEST])
def test_servers_without_working_ranges(spec: str, mode: str, stub: Stub, home: Path) -> None:
    stub[1].range_mode = mode
    stub[1].cut_after = [60_000]
    assert fetch(stub, home, spec).digest == digest_of(MODEL)


@pytest.mark.parametrize("spec", [BY_TAG, BY_DIGEST])
def test_broken_transfers_are_continued(spec: str, stub: Stub, home: Path) -> None:
    stub[1].cut_after = [30_000, 0, 40_000, 1, 0, 0]
    stub[1].statuses = [] if spec == BY_TAG else [503, 429]
    fetch(stub, home, spec)
    offsets = [value for path, value in stub[1].requests if "/blobs/" in path]
    assert offsets[-1] == "bytes=70001-"


def test_a_server_that_brings_nothing_is_given_up(stub: Stub, home: Path) -> None:
    stub[1].cut_after = [70_000] + [0] * 50
    with pytest.raises(UnavailableError) as caught:
        fetch(stub, home)
    assert caught.value.exit_code == 6
    assert str(caught.value.hint).endswith("try again: what was received is kept")
    assert folder(home) == {"tiny-model-1b-q4.gguf.partial": 70_000}
    assert len(stub[1].requests) < 10
    stub[1].cut_after = []
    assert fetch(stub, home).digest == digest_of(MODEL)


def test_a_blob_without_a_length(stub: Stub, home: Path) -> None:
    stub[1].send_length = False
    assert fetch(stub, home, BY_DIGEST).size == len(MODEL)


@pytest.mark.parametrize("spec", [BY_TAG, BY_DIGEST])
def test_wrong_content_is_removed(spec: str, stub: Stub, home: Path) -> None:
    forged = MODEL[:-100] + b"F" + MODEL[-99:]
    stub[1].blobs[digest_of(MODEL)] = forged
    with pytest.raises(EvidenceError) as caught:
        fetch(stub, home, spec)
    assert caught.value.exit_code == 1
    assert digest_of(MODEL) in (caught.value.expected or "")
    assert digest_of(forged) in (caught.value.found or "")
    assert folder(home) == {}


@pytest.mark.parametrize("change", [MODEL + b"more", MODEL[:-1], b""])
def test_a_blob_of_another_size_than_the_manifest_says(
    change: bytes, stub: Stub, home: Path
) -> None:
    stub[1].blobs[digest_of(MODEL)] = change
    with pytest.raises(EvidenceError):
        fetch(stub, home)
    assert folder(home) == {}


def test_no_more_is_written_than_the_manifest_says(stub: Stub, home: Path) -> None:
    stub[1].blobs[digest_of(MODEL)] = MODEL + bytes(10_000_000)
    stub[1].send_length = False
    with pytest.raises(EvidenceError, match="more than the blob's size"):
        fetch(stub, home)
    assert folder(home) == {}


def test_an_empty_blob_is_called_empty(stub: Stub, home: Path) -> None:
    digest = stub[1].add(b"")
    with pytest.raises(EvidenceError) as caught:
        fetch(stub, home, f"ollama:{REPO}@{digest}")
    assert "empty file" in (caught.value.found or "")


@pytest.mark.parametrize(
    "layers",
    [
        [],
        [model_layer(MODEL), model_layer(b"other")],
        [model_layer(MODEL, digest="sha256:zz")],
        [model_layer(MODEL, digest=5)],
        [model_layer(MODEL, size=0)],
        [model_layer(MODEL, size=-1)],
        [model_layer(MODEL, size=True)],
        [model_layer(MODEL, size="12")],
        [model_layer(MODEL, mediaType="application/vnd.ollama.image.projector")],
    ],
)
def test_unusable_manifests(layers: list[dict[str, object]], stub: Stub, home: Path) -> None:
    stub[1].tag(f"{REPO}/manifests/1b-q4", *layers)
    with pytest.raises(EvidenceError):
        fetch(stub, home)
    assert not home.exists()


@pytest.mark.parametrize(
    "manifest", [b"", b"<html>", b"[]", b'{"layers":{}}', b'{"layers":[1]}', b" " * 2_000_000]
)
def test_manifests_that_are_no_documents(manifest: bytes, stub: Stub, home: Path) -> None:
    stub[1].manifests[f"{REPO}/manifests/1b-q4"] = manifest
    with pytest.raises(EvidenceError):
        fetch(stub, home)


def test_what_is_not_there_is_an_input_error(stub: Stub, home: Path) -> None:
    with pytest.raises(InputError, match="no such public model"):
        fetch(stub, home, f"ollama:{REPO}:other")
    with pytest.raises(InputError, match="no such public model"):
        fetch(stub, home, f"ollama:{REPO}@sha256:" + "0" * 64)
    assert not (home / "models").exists() or folder(home) == {}


def test_a_registry_that_is_down_is_unavailable(home: Path) -> None:
    with registry_stub() as (url, _):
        pass
    with pytest.raises(UnavailableError, match="could not be reached") as caught:
        fetch((url, Behaviour()), home)
    assert url.removeprefix("http://") in caught.value.message
    assert caught.value.hint == "check the network and try again"  # nothing was received


@pytest.mark.parametrize(
    "registry",
    ["http://example.com", "ftp://example.com", "https://", "https://a/?x=1", "http://[::1",
     "https://h:port/"],
)  # fmt: skip
def test_insecure_or_odd_registries(registry: str, home: Path) -> None:
    with pytest.raises(UsageError):
        pull(BY_TAG, home, options=PullOptions(registry=registry))


def test_credentials_in_the_address_are_refused_and_not_repeated(home: Path) -> None:
    with pytest.raises(UsageError) as caught:
        pull(BY_TAG, home, options=PullOptions(registry="https://user:hunter2@example.com"))
    assert "hunter2" not in str(caught.value)


def test_a_redirect_on_the_loopback_is_followed_with_its_range(stub: Stub, home: Path) -> None:
    leave_partial(home, MODEL[:1000])
    stub[1].redirect_to = f"{stub[0]}/elsewhere"
    fetch(stub, home)
    path, offset = stub[1].requests[-1]
    assert path.startswith("/elsewhere/")
    assert offset == "bytes=1000-"


@pytest.mark.parametrize("target", ["http://example.com", "ftp://127.0.0.1"])
def test_a_redirect_to_an_insecure_place_is_refused(target: str, stub: Stub, home: Path) -> None:
    stub[1].redirect_to = target + "/secret-signature"
    with pytest.raises(EvidenceError, match="insecure") as caught:
        fetch(stub, home)
    assert "secret-signature" not in str(caught.value)


@pytest.mark.parametrize("target", ["", "file:///etc"])
def test_redirects_end(target: str, stub: Stub, home: Path) -> None:
    stub[1].redirect_to = target or stub[0]
    with pytest.raises(UnavailableError, match="redirects too often, or to where"):
        fetch(stub, home)
    assert len(stub[1].requests) < 60


@pytest.mark.parametrize("content", [b"something precious", MODEL[:-1], b""])
def test_a_mismatching_file_is_never_overwritten(content: bytes, stub: Stub, home: Path) -> None:
    final = home / "models" / "tiny-model-1b-q4.gguf"
    final.parent.mkdir(mode=0o700, parents=True)
    home.chmod(0o700)
    final.write_bytes(content)
    with pytest.raises(InputError) as caught:
        fetch(stub, home)
    assert caught.value.exit_code == 4
    assert final.read_bytes() == content
    assert folder(home) == {final.name: len(content)}


def test_a_taken_name_is_found_before_the_download(stub: Stub, home: Path) -> None:
    fetch(stub, home)
    other = replace(tiny(), version=2).build()
    digest = stub[1].add(other)
    count = len(stub[1].requests)
    with pytest.raises(InputError, match="is taken"):
        fetch(stub, home, f"ollama:{REPO}@{digest}", name="tiny-model-1b-q4")
    assert len(stub[1].requests) == count


def test_a_file_that_appears_during_the_download_wins(
    stub: Stub, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final = home / "models" / "tiny-model-1b-q4.gguf"
    real = download.fetch_blob

    def racing(transfer: download.Transfer) -> None:
        real(transfer)
        final.write_bytes(b"somebody else's")

    monkeypatch.setattr("tallystick.models.pull.fetch_blob", racing)
    with pytest.raises(InputError, match="in the way"):
        fetch(stub, home)
    assert final.read_bytes() == b"somebody else's"
    assert folder(home).keys() == {final.name}


def test_a_full_disk_leaves_a_resumable_partial(
    stub: Stub, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite

    def filling(descriptor: int, data: bytes, offset: int) -> int:
        if offset >= 50_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[: 50_000 - offset], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", filling)
        with pytest.raises(UnavailableError) as caught:
            fetch(stub, home)
    assert caught.value.exit_code == 6
    assert folder(home) == {"tiny-model-1b-q4.gguf.partial": 50_000}
    assert fetch(stub, home).digest == digest_of(MODEL)
    assert stub[1].requests[-1][1] == "bytes=50000-"


def test_an_interrupt_leaves_a_resumable_partial(
    stub: Stub, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(what: str, done: int, total: int) -> None:
        if what == "downloading" and done >= 20_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(BY_TAG, home, options=PullOptions(registry=stub[0]), progress=interrupted)
    assert folder(home) == {"tiny-model-1b-q4.gguf.partial": 20_000}


def test_what_is_no_model_gets_no_pin(stub: Stub, home: Path) -> None:
    digest = stub[1].add(b"GGUF but no model")
    with pytest.raises(InputError, match="truncated"):
        fetch(stub, home, f"ollama:{REPO}@{digest}", name="x")
    assert find_pin("x", home) is None


def test_a_pulled_model_that_needs_normalising_says_how(stub: Stub, home: Path) -> None:
    data = tiny("qwen35moe").with_tensors(TensorBytes("v.x")).build()
    digest = stub[1].add(data)
    with pytest.raises(IncomparableError) as caught:
        fetch(stub, home, f"ollama:{REPO}@{digest}", name="x")
    assert f"model add {home / 'models' / 'x.gguf'} --normalise" in (caught.value.hint or "")
    assert find_pin("x", home) is None


def test_requests_carry_no_credentials_and_ask_for_plain_bytes(stub: Stub, home: Path) -> None:
    fetch(stub, home)
    for headers in stub[1].headers:
        lowered = {name.lower(): value for name, value in headers.items()}
        assert lowered["accept-encoding"] == "identity"
        assert not {"authorization", "cookie"} & lowered.keys()
