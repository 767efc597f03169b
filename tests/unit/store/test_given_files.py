"""Files that a user names: read up to a bound, and never waited for unless a pipe is meant."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tallystick.cli.passphrase import passphrase_source
from tallystick.cli.run import read_prompt
from tallystick.contracts.codec import encode_bytes
from tallystick.errors import InputError
from tallystick.queues.runfile import read_run
from tallystick.sandbox.profiles import load_profile
from tallystick.store.files import read_given
from tallystick.worker.papers import read_ticket
from tallystick.worker.settings import read_settings
from tests.support.ordinary_user import run_as_ordinary_user
from tests.support.sets import make_run, make_tickets


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "fifo.yaml", 0o600)
    return tmp_path / "fifo.yaml"


def written_to(fifo: Path, data: bytes) -> threading.Thread:
    """Write to a pipe as a process substitution would: when somebody reads it."""
    writer = threading.Thread(target=lambda: fifo.write_bytes(data))
    writer.start()
    return writer


def test_a_file_and_a_link_to_it_are_read_up_to_one_byte_too_many(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    (tmp_path / "link").symlink_to(path)
    for name in ("file", "link"):
        assert read_given(tmp_path / name, max_bytes=5, what="it") == b"12345"
        assert read_given(tmp_path / name, max_bytes=3, what="it") == b"1234"


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, "no regular file"),
        (os.mkdir, "no regular file"),
        (make_socket, "cannot be read"),
        (lambda path: path.symlink_to("/dev/zero"), "no regular file"),
        (lambda path: path.symlink_to(path), "cannot be read"),
        (lambda _: None, "cannot be read"),
    ],
    ids=["fifo", "directory", "socket", "device", "links in a circle", "missing"],
)
def test_what_is_no_regular_file_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], None], words: str
) -> None:
    path = tmp_path / "named"
    make(path)
    before = descriptors()
    with pytest.raises(InputError, match=f"the thing {words}|the thing is {words}") as caught:
        read_given(path, max_bytes=5, what="the thing")
    assert str(path) in str(caught.value.found)
    assert descriptors() == before


def test_every_reader_of_a_named_file_refuses_a_pipe(fifo: Path) -> None:
    readers: tuple[Callable[[Path], object], ...] = (
        read_ticket,
        read_run,
        read_settings,
        lambda path: load_profile(str(path)),
    )
    for reader in readers:
        with pytest.raises(InputError, match=r"regular file|plain file"):
            reader(fifo)


def test_a_pipe_is_read_where_one_is_meant(fifo: Path) -> None:
    writer = written_to(fifo, "Gr\u00fc\u00dfe".encode())
    assert read_prompt(None, False, fifo) == "Gr\u00fc\u00dfe"
    writer.join()
    source = passphrase_source(prompt=False, file=fifo)
    assert source is not None
    writer = written_to(fifo, b"open\n")
    assert source() == b"open"
    writer.join()


def test_no_pipe_makes_a_prompt_of_a_device(tmp_path: Path) -> None:
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(InputError, match="the prompt file is no regular file") as caught:
        read_prompt(None, False, tmp_path / "zero")
    assert caught.value.expected == "a regular file or a pipe"


@pytest.fixture
def ticket(tmp_path: Path) -> Path:
    path = tmp_path / "slot-0.ticket"
    path.touch(mode=0o600)
    path.write_bytes(encode_bytes(make_tickets()[0]))
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_ticket_that_only_its_owner_reads_is_taken(ticket: Path, mode: int) -> None:
    ticket.chmod(mode)
    assert read_ticket(ticket) == make_tickets()[0]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_ticket_that_others_reach_is_refused_in_words(ticket: Path, mode: int) -> None:
    ticket.chmod(mode)
    with pytest.raises(InputError, match="the ticket is open to other users") as caught:
        read_ticket(ticket)
    assert "it holds the prompt" in str(caught.value.hint)
    assert "key" not in str(caught.value)
    assert stat.S_IMODE(ticket.stat().st_mode) == mode


def test_a_ticket_is_the_file_itself_with_one_name(ticket: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(ticket)
    with pytest.raises(InputError, match="the ticket is a symlink"):
        read_ticket(tmp_path / "link")
    (tmp_path / "second").hardlink_to(ticket)
    with pytest.raises(InputError, match="the ticket has more than one name"):
        read_ticket(ticket)
    with pytest.raises(InputError, match="the ticket does not exist"):
        read_ticket(tmp_path / "none")


def test_another_users_ticket_is_refused(ticket: Path) -> None:
    data = ticket.read_bytes()

    def body(directory: Path) -> None:
        path = directory / "t.ticket"
        path.touch(mode=0o600)
        path.write_bytes(data)
        read_ticket(path)
        with pytest.raises(InputError, match=r"belongs to another user|cannot be opened"):
            read_ticket(Path("/etc/shadow"))

    run_as_ordinary_user(body)


def test_a_declared_run_may_be_open_to_others(tmp_path: Path) -> None:
    """It may come out of a bundle or a repository; who declares one writes it with 0600."""
    path = tmp_path / "RUN.json"
    path.write_bytes(encode_bytes(make_run()))
    path.chmod(0o644)
    assert read_run(path) == make_run()
