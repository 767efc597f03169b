"""YAML that people write: exactly what JSON can say, or refused with the line."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

from tallystick.canonical.yaml import MAX_DEPTH, parse_yaml
from tallystick.errors import InputError


def parse(text: str | bytes) -> Any:
    data = text.encode() if isinstance(text, str) else text
    return parse_yaml(data, max_bytes=4096, where="settings")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1", {"a": 1}),
        ("a: [x, -5, true, false, null, ~]", {"a": ["x", -5, True, False, None, None]}),
        (
            "a: yes\nb: no\nc: on\nd: True\ne: Null",
            dict(zip("abcde", ["yes", "no", "on", "True", "Null"], strict=True)),
        ),
        ("a: '5'\nb: \"null\"\nc: ''", {"a": "5", "b": "null", "c": ""}),
        ("# words\n---\n- a: {}\n  b: []\n", [{"a": {}, "b": []}]),
        ("a: |\n  two\n  lines\n", {"a": "two\nlines\n"}),
        ("a: src/data 7", {"a": "src/data 7"}),
    ],
)
def test_what_json_can_say_is_read(text: str, value: Any) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: 0x10", 2),
        ("a: 1.5", 1),
        ("a: 1e3", 1),
        ("a: 010", 1),
        ("a: 12:30:45", 1),
        ("a: 2026-11-30", 1),
        ("a: .inf", 1),
        ("a: +1", 1),
        ("a: 12345678901234567890", 1),
        ("a:", 1),
        ("a: &x 1\nb: *x", 1),
        ("a: !!python/object:os.system ls", 1),
        ("a: !x 1", 1),
        ("a: 1\na: 2", 2),
        ("1: a", 1),
        ("? [a]\n: 1", 1),
        ("a: {<<: {b: 1}}", 1),
        ("a: 1\n---\nb: 1", 2),
    ],
)
def test_anything_else_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(InputError, match=f"^settings: line {line} "):
        parse(text)


def test_what_is_no_yaml_is_refused() -> None:
    for text in ("a: [1", "\ta: 1", "a: 'x", "%YAML 9\n"):
        with pytest.raises(InputError, match="not YAML"):
            parse(text)
    with pytest.raises(InputError, match="empty"):
        parse("# nothing\n")
    with pytest.raises(InputError, match="UTF-8"):
        parse(b"\xff")
    with pytest.raises(InputError, match="too large"):
        parse("#" * 5000)


@pytest.mark.parametrize("escape", [r"\ud800", r"\udfff", r"\ud83d\ude00", r"\U0000d800"])
def test_half_of_a_surrogate_pair_is_refused(escape: str) -> None:
    for text in (f'a: "x{escape}"', f'"{escape}": 1'):
        with pytest.raises(InputError, match="line 1") as raised:
            parse(text)
        assert raised.value.found == "half of a surrogate pair"
    assert parse(r'a: "\U0001F600"') == {"a": "\U0001f600"}


@pytest.mark.parametrize(
    "text", [r'a: "\U00110000"', r'a: "\UFFFFFFFF"', f"%YAML 1.{'9' * 5000}\n--- a"]
)
def test_numbers_beyond_what_the_library_holds_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="not YAML"):
        parse_yaml(text.encode(), max_bytes=8192, where="settings")


@pytest.mark.parametrize("bracket", ["[", "{", "{a: "])
def test_many_brackets_are_refused_before_they_are_all_read(bracket: str) -> None:
    data = bracket.encode() * 60_000
    with pytest.raises(InputError, match="line 1"):
        parse_yaml(data, max_bytes=len(data), where="settings")


def test_depth_is_bounded() -> None:
    depth = MAX_DEPTH - 1
    assert parse("[" * depth + "1" + "]" * depth)
    with pytest.raises(InputError, match="line 1"):
        parse("[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == "yaml":
            raise ModuleNotFoundError(name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(InputError) as raised:
        parse("a: 1")
    assert raised.value.hint == "pip install 'tallystick[worker]'"
