"""Messages: bounded JSON lines in form, or a failed run."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tallystick import errors
from tallystick.errors import EvidenceError, InputError, RunFailedError, TallystickError
from tallystick.sandbox.messages import (
    CHILD_ERRORS,
    MAX_DATA,
    MAX_MESSAGE,
    Message,
    MessageReader,
    error_from,
    well_formed,
)

KINDS = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, TallystickError)
]
DONE = b'{"body":{},"kind":"done"}\n'


@contextmanager
def reader_of(data: bytes, *pieces: bytes) -> Iterator[MessageReader]:
    """A reader of ``data`` and then ``pieces``, each written on its own, and then the end."""
    reader, writer = os.pipe()

    def write() -> None:
        try:
            for piece in (data, *pieces):
                view = memoryview(piece)
                while view:
                    view = view[os.write(writer, view) :]
        except BrokenPipeError:
            pass
        finally:
            os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield MessageReader(reader)
    finally:
        os.close(reader)
        thread.join()


def messages(reader: MessageReader) -> list[Message]:
    found = []
    while message := reader.next(10.0):
        found.append(message)
    return found


def test_messages_may_be_cut_anywhere() -> None:
    line = '{"kind":"é","body":{"x":"\\n"}}\n'.encode()
    with reader_of(*(bytes([byte]) for byte in line * 3)) as reader:
        assert messages(reader) == [Message("é", {"x": "\n"})] * 3


@pytest.mark.parametrize("data", [b"", b"x", b"\n", b"not json\n\xff", DONE * 3])
def test_data_comes_as_it_was_sent(data: bytes) -> None:
    sent = b'{"body":{"size":%d},"kind":"data"}\n' % len(data) + data + DONE
    expected = [Message("data", {"size": len(data)}, data), Message("done", {})]
    with reader_of(sent) as reader:
        assert messages(reader) == expected
    with reader_of(*(bytes([byte]) for byte in sent)) as reader:
        assert messages(reader) == expected


def test_data_of_the_largest_size_is_read() -> None:
    sent = b'{"body":{"size":%d},"kind":"data"}\n' % MAX_DATA + bytes(MAX_DATA) + DONE
    with reader_of(sent) as reader:
        assert [len(message.data) for message in messages(reader)] == [MAX_DATA, 0]


@pytest.mark.parametrize(
    "body",
    [
        f'{{"size":{MAX_DATA + 1}}}',
        '{"size":-1}',
        '{"size":true}',
        '{"size":"1"}',
        "{}",
        '{"more":1,"size":1}',
        '{"size":1.0}',
    ],
)
def test_data_out_of_form_is_refused_before_it_comes(body: str) -> None:
    line = b'{"body":%s,"kind":"data"}\n' % body.encode()
    with reader_of(line) as reader, pytest.raises(RunFailedError, match="data out of form"):
        reader.next(10.0)


def test_data_that_is_cut_short_is_no_message() -> None:
    with reader_of(b'{"body":{"size":3},"kind":"data"}\nab') as reader:
        assert messages(reader) == []


def test_silence_in_the_middle_of_data_is_bounded() -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, b'{"body":{"size":3},"kind":"data"}\nab')
        with pytest.raises(RunFailedError, match="no progress"):
            MessageReader(reader).next(0.01)
    finally:
        os.close(reader)
        os.close(writer)


def test_data_is_not_shown() -> None:
    assert "secret" not in repr(Message("data", {"size": 6}, b"secret"))


def test_many_messages_may_come_at_once() -> None:
    with reader_of(DONE * 5000) as reader:
        assert len(messages(reader)) == 5000


def test_what_is_left_without_an_end_of_line_is_no_message() -> None:
    with reader_of(DONE + DONE[:-1]) as reader:
        assert len(messages(reader)) == 1


def test_a_message_of_the_largest_size_is_read() -> None:
    line = b'{"body":{"x":"%s"},"kind":"result"}' % (b"y" * (MAX_MESSAGE - 33))
    assert len(line) == MAX_MESSAGE
    with reader_of(line + b"\n") as reader:
        assert len(messages(reader)) == 1
    with reader_of(b" " + line + b"\n") as reader, pytest.raises(RunFailedError):
        reader.next(10.0)


def test_an_endless_message_is_refused_before_it_ends() -> None:
    endless = b"x" * (MAX_MESSAGE + (1 << 21))
    with reader_of(endless) as reader, pytest.raises(RunFailedError, match="oversized"):
        reader.next(10.0)


def test_silence_is_bounded() -> None:
    reader, writer = os.pipe()
    try:
        with pytest.raises(RunFailedError, match="no progress"):
            MessageReader(reader).next(0.01)
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"not json\n", "not JSON"),
        (b"\xff\xfe\n", "not JSON"),
        (b"\n", "not JSON"),
        (b"\xef\xbb\xbf{}\n", "not JSON"),
        (b'{"kind":"result","body":{"x":NaN}}\n', "not JSON"),
        (b'{"kind":"result","body":{"x":9007199254740993}}\n', "not JSON"),
        (b'{"kind":"result","kind":"result","body":{}}\n', "not JSON"),
        (b'{"kind":"result","body":{"x":"\\ud800"}}\n', "not JSON"),
        (b"[" * 100 + b"\n", "not JSON"),
        (b"null\n", "unknown form"),
        (b"[]\n", "unknown form"),
        (b"{}\n", "unknown form"),
        (b'{"kind":"result"}\n', "unknown form"),
        (b'{"kind":"result","body":[]}\n', "unknown form"),
        (b'{"kind":7,"body":{}}\n', "unknown form"),
        (b'{"kind":"result","body":{},"more":1}\n', "unknown form"),
    ],
)
def test_what_is_out_of_form_is_a_failed_run(line: bytes, words: str) -> None:
    with reader_of(line) as reader, pytest.raises(RunFailedError, match=words) as caught:
        reader.next(10.0)
    assert caught.value.exit_code == 7


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_error_comes_back_as_itself(kind: type[TallystickError]) -> None:
    body = {
        "type": kind.__name__,
        "message": "what",
        "expected": "this",
        "found": None,
        "hint": "so",
    }
    error = error_from(body, (kind,))
    unexpected = error_from(body)

    assert type(error) is kind
    assert type(unexpected) is (kind if kind in CHILD_ERRORS else RunFailedError)
    assert (error.message, error.expected, error.found, error.hint) == ("what", "this", None, "so")


@pytest.mark.parametrize(
    "name", ["NoSuchError", "annotations", "ClassVar", "Exception", "__doc__", "", None, 7, []]
)
def test_an_error_of_unknown_type_is_a_failed_run(name: Any) -> None:
    error = error_from({"type": name, "message": "what"})

    assert type(error) is RunFailedError
    assert str(error) == "what"


@pytest.mark.parametrize("body", [{}, {"type": 7, "message": [], "hint": {}}])
def test_an_error_without_words_is_a_failed_run(body: dict[str, Any]) -> None:
    assert str(error_from(body)) == "the child failed"


def test_the_words_of_an_error_are_bounded() -> None:
    error = error_from({"type": "InputError", "message": "m" * 10_000})

    assert type(error) is InputError
    assert len(str(error)) == 4000


def test_what_a_child_sent_out_of_form_is_no_evidence() -> None:
    with (
        pytest.raises(RunFailedError, match="sent a result that is malformed") as caught,
        well_formed("a result"),
    ):
        raise EvidenceError("result.x is missing", expected="text")
    assert (caught.value.expected, caught.value.found) == ("text", "result.x is missing")
    with pytest.raises(InputError), well_formed("a result"):
        raise InputError("something else")


def test_a_message_hides_its_body() -> None:
    assert "secret" not in repr(Message("text", {"bytes": "secret"}))
