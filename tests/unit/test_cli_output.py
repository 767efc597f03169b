"""What the command line prints, and how."""

from __future__ import annotations

import json

import pytest

from tallystick.canonical.json import JSONValue
from tallystick.cli.output import (
    asks_for_json,
    emit,
    note,
    print_error,
    printable,
    printable_text,
    table,
)
from tallystick.errors import InputError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines\tand a tab", "two\\x0alines\\x09and a tab"),
        ("a\x85b\u2028c\u2029d", "a\\x85b\\u2028c\\u2029d"),
        ("日本語 😀 ×", "日本語 😀 ×"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\rb\x08c\x7f\x9b", "a\\x0db\\x08c\\x7f\\x9b"),
        ("user\u202egpj.exe", "user\\u202egpj.exe"),
        ("\udc80", "\\udc80"),
    ],
)
def test_control_characters_are_made_visible(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_an_answer_keeps_its_lines() -> None:
    assert printable_text("a\n\tb\x1b\u2028") == "a\n\tb\\x1b\\u2028"


def test_each_part_of_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    error = InputError("no\rfile", expected="a\nb", found="x\x1b[2J", hint="y\u2028z")
    print_error(error, as_json=False)
    assert capsys.readouterr().err == (
        "error: no\\x0dfile\n  expected: a\\x0ab\n  found: x\\x1b[2J\n  what to do: y\\u2028z\n"
    )


@pytest.mark.parametrize(
    ("words", "environment", "asked"),
    [
        (["verify", "--json"], {}, True),
        (["verify"], {}, False),
        (["run", "--", "--json"], {}, False),
        (["verify"], {"TALLYSTICK_VERIFY_JSON": "true"}, True),
        (["verify"], {"TALLYSTICK_VERIFY_JSON": "0"}, False),
        (["keys", "show"], {"TALLYSTICK_KEYS_SHOW_JSON": "1"}, True),
        (["keys", "show"], {"TALLYSTICK_VERIFY_JSON": "1"}, False),
        ([], {"TALLYSTICK_JSON": "1"}, False),
    ],
)
def test_json_is_recognised_without_parsing(
    words: list[str], environment: dict[str, str], asked: bool
) -> None:
    assert asks_for_json(words, environment) is asked


def test_a_result_is_one_canonical_line_or_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"b": 1, "a": "\x1b"}, as_json=True, lines=["unused"])
    captured = capsys.readouterr()
    assert captured.out == '{"a":"\\u001b","b":1}\n'
    assert json.loads(captured.out) == {"a": "\x1b", "b": 1}
    emit({"b": 1}, as_json=False, lines=["b is \x1b 1"])
    assert capsys.readouterr().out == "b is \\x1b 1\n"


def test_json_repaints_no_terminal_and_means_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    document: JSONValue = {"cpu": "a\x9b31m\x7f\u202eb", "list": ["\u2066x"], "kept": "日本語 ×"}
    emit(document, as_json=True, lines=["unused"])
    shown = capsys.readouterr().out
    assert shown == ('{"cpu":"a\\u009b31m\\u007f\\u202eb","kept":"日本語 ×","list":["\\u2066x"]}\n')
    assert json.loads(shown) == document


def test_json_shows_undecodable_names(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"directory": "caf\udce9", "more": [{"x": "\udc80"}]}, as_json=True, lines=["unused"])
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"directory": "caf\\udce9", "more": [{"x": "\\udc80"}]}
    print_error(InputError("no", found="caf\udce9\x9b"), as_json=True)
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["found"] == "caf\\udce9\\x9b"


def test_words_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    note("created a key")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "created a key\n"


def test_a_table_aligns_its_values() -> None:
    assert table([("a", "1"), ("long name", "2"), ("empty", "")]) == [
        "a          1",
        "long name  2",
        "empty",
    ]
    assert table([]) == []
