"""Prompt templates: the fields there are, and nothing that looks like more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.bundles.template import FIELDS, decode_text, render, template_fields
from tallystick.errors import InputError


def test_fields_are_replaced_once() -> None:
    assert render("{tile} {tile}: {description}", {"tile": "1/2/3", "description": "{z}"}) == (
        "1/2/3 1/2/3: {z}"
    )
    assert render("{{tile}} {{{tile}}}", {"tile": "t"}) == "{tile} {t}"
    assert template_fields("no fields") == frozenset()
    assert template_fields("".join(f"{{{name}}}" for name in FIELDS)) == frozenset(FIELDS)


@pytest.mark.parametrize(
    "template",
    [
        "{",
        "}",
        "a{tile",
        "{}",
        "{0}",
        "{tile!r}",
        "{tile:>9}",
        "{tile.real}",
        "{tile[0]}",
        "{ tile }",
        "{Tile}",
        "{prompt}",
        "{{tile}",
        "{tile\n}",
    ],
)
def test_other_braces_are_refused_with_their_line(template: str) -> None:
    with pytest.raises(InputError, match="brace in line 2 "):
        template_fields("first\n" + template)


def test_a_field_without_a_value_is_refused() -> None:
    with pytest.raises(InputError, match="asks for a description"):
        render("{tile} {description}", {"tile": "t"})


@pytest.mark.parametrize("text", ["", "{tile}" * 30])
def test_an_empty_or_endless_prompt_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="empty or too long"):
        render(text, {"tile": "t" * 50_000})


@given(st.text(), st.text(min_size=1))
def test_what_is_put_in_is_never_read(before: str, value: str) -> None:
    template = before.replace("{", "{{").replace("}", "}}") + "{tile}"
    assert render(template, {"tile": value}) == before + value


@pytest.mark.parametrize("data", [b"\xff", b"a\x00", b"x" * 11])
def test_texts_are_utf8_without_nul_and_bounded(data: bytes) -> None:
    with pytest.raises(InputError, match="the text"):
        decode_text(data, what="the text", max_bytes=10)
