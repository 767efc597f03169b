"""From a request to ids and a context: BOS once, flags as the request says, room for the run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tallystick.contracts.request import Chat, InferenceRun
from tallystick.contracts.runtime import RowClass
from tallystick.errors import InputError
from tallystick.execution.chat import template_digest
from tallystick.execution.prompt import context_of, prepare_prompt
from tests.support.documents import example_run
from tests.support.fake_engine import FakeModel

TEMPLATE = "{{ bos_token }}[{{ messages[0].content }}]"
DOUBLED = "{{ bos_token }}{{ bos_token }}x"


class Recording(FakeModel):
    """Keeps what the tokenizer was asked."""

    asked: tuple[bytes, bool, bool] = (b"", False, False)

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> tuple[int, ...]:
        self.asked = (text, add_special, parse_special)
        return super().tokenize(text, add_special=add_special, parse_special=parse_special)


def run_of(**changes: object) -> InferenceRun:
    plain = replace(example_run(), prompt="Hi", chat=None, policy="row-class")
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("add_special", [True, False])
@pytest.mark.parametrize("parse_special", [True, False])
def test_the_request_s_flags_reach_the_tokenizer(add_special: bool, parse_special: bool) -> None:
    model = Recording(adds_bos=True)
    found = prepare_prompt(model, run_of(add_special=add_special, parse_special=parse_special))

    assert model.asked == (b"Hi", add_special, parse_special)
    assert (found.text, found.template_digest) == ("Hi", None)
    assert found.ids == (ord("H") % 11, ord("i") % 11)


@pytest.mark.parametrize(
    ("adds_bos", "add_special", "template", "expected"),
    [
        (True, True, TEMPLATE, "[Hi]"),  # the tokenizer adds it, so the text must not
        (False, True, TEMPLATE, "<s>[Hi]"),
        (True, False, TEMPLATE, "<s>[Hi]"),  # nobody else would add it
        (True, True, "[{{ messages[0].content }}]", "[Hi]"),
        (True, True, DOUBLED, "<s>x"),  # what the template doubles itself stays doubled
    ],
)
def test_a_begin_token_is_not_doubled(
    adds_bos: bool, add_special: bool, template: str, expected: str
) -> None:
    model = Recording(adds_bos=adds_bos, template=template)
    found = prepare_prompt(model, run_of(chat=Chat(None, None), add_special=add_special))

    assert found.text == expected
    assert model.asked[0] == expected.encode()
    assert found.template_digest == template_digest(template)


def test_a_vocabulary_without_a_begin_token_takes_nothing_away() -> None:
    model = Recording(adds_bos=True, bos="", template=TEMPLATE)

    assert prepare_prompt(model, run_of(chat=Chat(None, None))).text == "[Hi]"


def test_a_raw_prompt_that_begins_with_the_text_of_a_begin_token_keeps_it() -> None:
    assert prepare_prompt(FakeModel(adds_bos=True), run_of(prompt="<s>Hi")).text == "<s>Hi"


def test_a_chat_needs_a_template() -> None:
    with pytest.raises(InputError, match="no chat template"):
        prepare_prompt(FakeModel(), run_of(chat=Chat(None, None)))


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(InputError, match="no tokens"):
        prepare_prompt(FakeModel(template="{# nothing #}"), run_of(chat=Chat(None, None)))


def test_a_prepared_prompt_hides_its_text() -> None:
    prompt = prepare_prompt(FakeModel(), run_of(prompt="secret"))

    assert "secret" not in repr(prompt)
    assert str(prompt.ids[0]) + "," not in repr(prompt)


@pytest.mark.parametrize(
    ("policy", "prompt_tokens", "cells"),
    [
        ("row-class", 1, 256),
        ("row-class", 1024 - 16, 1280),
        ("sequential", 1, 4096),
        ("sequential", 4096 - 16, 4096),
    ],
)
def test_the_context_follows_from_the_request(policy: str, prompt_tokens: int, cells: int) -> None:
    run = run_of(policy=policy, max_tokens=16)

    assert context_of(FakeModel(), run, prompt_tokens, RowClass(2, 512)) == cells
    # The end of a generation changes nothing: only what was asked for counts.


@pytest.mark.parametrize(("policy", "prompt_tokens"), [("row-class", 1009), ("sequential", 4081)])
def test_a_run_beyond_the_context_is_refused(policy: str, prompt_tokens: int) -> None:
    run = run_of(policy=policy, max_tokens=16)
    with pytest.raises(InputError, match="do not fit the context") as caught:
        context_of(FakeModel(), run, prompt_tokens, RowClass(2, 512))
    assert caught.value.exit_code == 4
