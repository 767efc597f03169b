"""The prompt of a receipt that is replayed: what is a verdict on it and what looks like one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tallystick.audit.replay import require_renderer
from tallystick.contracts.request import Chat
from tallystick.contracts.runtime import RowClass
from tallystick.errors import EvidenceError, IncomparableError
from tallystick.execution import chat
from tallystick.execution.jobs import EngineSetup, ReplayJob
from tallystick.execution.replay_child import prompt_of_receipt
from tests.support.documents import example_opening, example_run
from tests.support.fake_engine import FakeModel
from tests.support.sets import make_generation

TEMPLATE = "[{{ messages[0].content }}]"
BROKEN = "{{ 1 / 0 }}"
OTHER = "jinja2 0.1, Python 3.11"


def job_of(renderer: str, **changes: object) -> ReplayJob:
    plain = replace(
        example_run(), prompt="Hi", chat=Chat(None, None), policy="row-class", max_tokens=16
    )
    run = replace(plain, **changes)  # type: ignore[arg-type]
    setup = EngineSetup("", "", "", None, 1)
    return ReplayJob(setup, 3, run, RowClass(2, 512), (1,), "00" * 32, renderer)


def test_the_prompt_and_its_context() -> None:
    prompt, cells = prompt_of_receipt(FakeModel(template=TEMPLATE), job_of(OTHER))

    assert (prompt.text, cells) == ("[Hi]", 256)


def test_a_template_that_fails_is_a_verdict_only_by_the_same_renderer() -> None:
    model = FakeModel(template=BROKEN)
    with pytest.raises(EvidenceError, match="cannot have made"):
        prompt_of_receipt(model, job_of(chat.renderer()))
    with pytest.raises(IncomparableError, match="another renderer") as caught:
        prompt_of_receipt(model, job_of(OTHER))
    assert (caught.value.expected, caught.value.found) == (OTHER, chat.renderer())


def test_without_a_chat_there_is_no_renderer_to_blame() -> None:
    with pytest.raises(EvidenceError, match="cannot have made"):
        prompt_of_receipt(FakeModel(), job_of(OTHER, chat=None, prompt="x" * 2000))


def test_a_template_beyond_the_bounds_is_no_verdict() -> None:
    with pytest.raises(IncomparableError, match="too much memory"):
        prompt_of_receipt(FakeModel(template="{{ 'a' * 10 ** 10 }}"), job_of(chat.renderer()))


def test_another_rendering_is_a_verdict_only_by_the_same_renderer() -> None:
    opening = example_opening()
    found = make_generation(rendered_prompt="another")
    found = replace(found, host=replace(found.host, renderer="ours"))

    require_renderer("ours", opening, found)
    require_renderer("theirs", opening, replace(found, rendered_prompt=opening.rendered_prompt))
    with pytest.raises(IncomparableError) as caught:
        require_renderer("theirs", opening, found)
    assert (caught.value.expected, caught.value.found) == ("theirs", "ours")


def test_a_job_hides_what_is_private() -> None:
    shown = repr(job_of("none", prompt="a secret"))

    assert "secret" not in shown
    assert example_run().blind not in shown
    assert "claimed_ids" not in shown
