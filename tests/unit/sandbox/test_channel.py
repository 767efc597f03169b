"""The child's half of the pipe: what waits for room in it, what is kept, and what is dropped."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tallystick.sandbox.channel import MAX_KEPT, Channel
from tallystick.sandbox.messages import Message, MessageReader

PATIENCE = 60.0
PAD = "x" * 1000


@dataclass
class Pipe:
    """A pipe that holds little, with nobody reading it until a test does."""

    read: int
    write: int

    def messages(self) -> Iterator[Message]:
        reader = MessageReader(self.read)
        return iter(lambda: reader.next(PATIENCE), None)

    def close(self) -> None:
        if self.write >= 0:
            os.close(self.write)
            self.write = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    read, write = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        fcntl.fcntl(read, fcntl.F_SETPIPE_SZ, 4096)
    made = Pipe(read, write)
    yield made
    made.close()
    os.close(read)


def test_an_offer_is_dropped_once_enough_is_kept(pipe: Pipe) -> None:
    speaker = Channel(pipe.write)
    taken = [speaker.offer("event", {"seq": seq, "pad": PAD}) for seq in range(300)]
    kept = taken.index(False)
    assert MAX_KEPT // len(PAD) < kept < 200
    assert not any(taken[kept:])
    reader = threading.Thread(target=lambda: speaker.send("result", {}))
    reader.start()
    seen = []
    for message in pipe.messages():
        seen.append(message)
        if message.kind == "result":
            break
    reader.join()
    assert [message.body["seq"] for message in seen[:-1]] == list(range(kept))
    assert speaker.offer("event", {"seq": 300})


def test_what_is_posted_is_all_kept_and_nothing_waits(pipe: Pipe) -> None:
    speaker = Channel(pipe.write)
    offered = []
    for index in range(500):  # half a megabyte, which nobody reads
        speaker.post("text", {"index": index, "pad": PAD})
        offered.append(speaker.offer("event", {"seq": index}))
    assert not offered[-1]

    def end() -> None:
        speaker.send_data(b"\n" * 100_000)
        speaker.send("done", {})
        pipe.close()

    writer = threading.Thread(target=end)
    writer.start()
    messages = list(pipe.messages())
    writer.join()
    texts = [message.body["index"] for message in messages if message.kind == "text"]
    assert texts == list(range(500))
    events = [message.body["seq"] for message in messages if message.kind == "event"]
    assert events == list(range(offered.index(False)))
    assert [message.kind for message in messages[-2:]] == ["data", "done"]
    assert messages[-2].data == b"\n" * 100_000


def test_what_has_to_arrive_waits_for_room(pipe: Pipe) -> None:
    speaker = Channel(pipe.write)
    sent = threading.Event()

    def send() -> None:
        speaker.send("result", {"pad": PAD * 300})
        sent.set()

    writer = threading.Thread(target=send)
    writer.start()
    assert not sent.wait(0.2)
    assert len(next(pipe.messages()).body["pad"]) == 300_000
    writer.join(PATIENCE)
    assert sent.is_set()


def test_a_full_pipe_holds_up_no_sign_of_life_and_no_progress(pipe: Pipe) -> None:
    # In a process of its own, since the thread that tells of life never ends.
    program = f"""
import sys, time
from tallystick.sandbox.channel import Channel
speaker = Channel({pipe.write})
while speaker.offer("event", {{"pad": "{PAD}"}}):
    pass
speaker.progress("sealing", 1, 2)
speaker.keep_alive(0.01)
end = time.monotonic() + 0.5
while time.monotonic() < end:
    sum(range(1000))  # so that it has something to tell
assert not speaker.offer("event", {{}})
"""
    subprocess.run(
        [sys.executable, "-c", program], check=True, pass_fds=[pipe.write], timeout=PATIENCE
    )


def test_a_reader_that_is_gone_is_an_error_and_no_wait(pipe: Pipe) -> None:
    speaker = Channel(pipe.write)
    while speaker.offer("event", {"pad": PAD}):
        pass
    other = os.dup(pipe.read)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, pipe.read)  # the fixture closes it
    os.close(null)
    os.close(other)
    for attempt in (speaker.send, speaker.post, speaker.offer):
        with pytest.raises(BrokenPipeError):
            attempt("done", {})


def test_the_channel_asks_for_nothing_that_the_sandbox_refuses(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """os.set_blocking is an ioctl, which the filter of level full does not allow."""
    monkeypatch.delattr(os, "set_blocking")
    Channel(pipe.write).send("done", {})
    assert fcntl.fcntl(pipe.write, fcntl.F_GETFL) & os.O_NONBLOCK
    assert not fcntl.fcntl(pipe.read, fcntl.F_GETFL) & os.O_NONBLOCK
