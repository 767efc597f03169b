"""Which key signs, and what is shown of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tallystick.attest.keyfiles import create_default_key, default_key_path, public_key_path
from tallystick.attest.keyfiles import write_key as write
from tallystick.attest.keys import SigningKey
from tallystick.errors import InputError
from tallystick.worker.keys import SignerChoice, existing_key, require_apart, show_key
from tallystick.worker.order import place_order
from tallystick.worker.request import RunOptions
from tallystick.worker.run import run

PASSPHRASE = b"Split the stick"


def test_a_default_key_yet_to_be_made_is_none_and_nothing_is_written(tmp_path: Path) -> None:
    assert existing_key(SignerChoice(), tmp_path / "home") is None
    assert list(tmp_path.iterdir()) == []


def test_the_default_key(tmp_path: Path) -> None:
    key = create_default_key(tmp_path, PASSPHRASE)
    found = existing_key(SignerChoice(passphrase=lambda: PASSPHRASE), tmp_path)
    assert found is not None
    assert found.public == key.public
    with pytest.raises(InputError, match="no passphrase was given"):
        existing_key(SignerChoice(), tmp_path)
    with pytest.raises(InputError, match="does not open the key"):
        existing_key(SignerChoice(passphrase=lambda: b"split"), tmp_path)


def test_a_passphrase_without_a_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no signing key yet"):
        existing_key(SignerChoice(passphrase=lambda: PASSPHRASE), tmp_path)


def test_a_passphrase_is_not_asked_for_a_clear_key(tmp_path: Path) -> None:
    def ask() -> bytes:
        raise AssertionError("asked")

    key = SigningKey.generate()
    write(tmp_path / "a.key", key, None)
    found = existing_key(SignerChoice(tmp_path / "a.key", ask), tmp_path)
    assert found is not None
    assert found.public == key.public


def test_what_is_in_the_way_of_a_new_key_is_said_before_the_run(tmp_path: Path) -> None:
    create_default_key(tmp_path, None)
    default_key_path(tmp_path).unlink()
    with pytest.raises(InputError, match="exists") as caught:
        existing_key(SignerChoice(), tmp_path)
    assert "default.pub.pem" in str(caught.value)
    default_key_path(tmp_path).symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError):
        existing_key(SignerChoice(), tmp_path)


def test_a_key_is_shown_and_its_public_file_written_again(tmp_path: Path) -> None:
    key = create_default_key(tmp_path, PASSPHRASE)
    public = public_key_path(default_key_path(tmp_path))
    public.unlink()
    shown = show_key(home=tmp_path)
    assert (shown.public, shown.public_key_file, shown.encrypted) == (key.public, public, True)
    assert public.exists()
    assert show_key(default_key_path(tmp_path)) == shown
    with pytest.raises(InputError):
        show_key(tmp_path / "none.key")


def test_a_choice_does_not_show_its_passphrase() -> None:
    assert "passphrase" not in repr(SignerChoice(passphrase=lambda: PASSPHRASE))


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("output", ["home", "home/out", "home/keys", "home/keys/x", ".", "link/a"])
def test_an_output_does_not_mix_with_the_keys(tmp_path: Path, output: str, there: bool) -> None:
    home = tmp_path / "home"
    if there:
        home.mkdir()
    (tmp_path / "link").symlink_to(home)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="the data folder"):
        require_apart(home, tmp_path / output)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("output", ["out", "home-2", "home/receipts/one", "home/../out"])
def test_an_output_elsewhere_will_do(tmp_path: Path, output: str) -> None:
    (tmp_path / "home").mkdir()
    require_apart(tmp_path / "home", tmp_path / output)


def test_run_and_order_look_at_it_before_anything_is_made(tmp_path: Path) -> None:
    home, options = tmp_path / "home", RunOptions(prompt="p")
    worker = tmp_path / "worker.pub.pem"
    worker.write_text(SigningKey.generate().public.pem())
    calls: tuple[Callable[[], object], ...] = (
        lambda: run("model", options, output_dir=home, home=home),
        lambda: place_order("model", options, workers=(worker,), output_dir=home, home=home),
    )
    for call in calls:
        with pytest.raises(InputError, match="the data folder"):
            call()
    assert list(tmp_path.iterdir()) == [worker]
