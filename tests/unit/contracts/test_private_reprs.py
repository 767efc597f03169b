"""No private value stands in a ``repr``, from where it would get into logs and tracebacks."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from tallystick import contracts
from tallystick.contracts.codec import decode_bytes, encode_bytes
from tallystick.contracts.generation import Generation
from tallystick.contracts.opening import Opening
from tallystick.contracts.request import Chat, InferenceRun
from tallystick.worker.request import RunOptions
from tests.support.documents import every_example, example_opening, example_run
from tests.support.sets import make_generation

PRIVATE = {
    InferenceRun: {"prompt", "blind"},
    Chat: {"system"},
    Opening: {"rendered_prompt", "prompt_ids", "sampled_ids", "output", "leaf_checks"},
    Generation: {
        "rendered_prompt",
        "prompt_ids",
        "sampled_ids",
        "output",
        "leaf_checks",
        "routes",
        "observed_evidence",
    },
    RunOptions: {"prompt", "system"},
}
NAMES = set().union(*PRIVATE.values())


def private_run() -> InferenceRun:
    return replace(
        example_run(),
        prompt="private prompt",
        chat=Chat(system="private system text", clock=7),
        blind="5ec2e7" * 10 + "5ec2",
    )


def private_opening() -> Opening:
    return replace(
        example_opening(),
        request=private_run(),
        rendered_prompt="private rendered text",
        prompt_ids=(90001, 90002),
        sampled_ids=(90003, 90004),
        output="cHJpdmF0ZSBvdXRwdXQ=",
        leaf_checks="cHJpdmF0ZSBsZWF2ZXM=",
    )


def private_documents() -> list[Any]:
    opening = private_opening()
    generation = make_generation(
        rendered_prompt=opening.rendered_prompt,
        prompt_ids=opening.prompt_ids,
        sampled_ids=opening.sampled_ids,
        output=opening.output,
        leaf_checks=opening.leaf_checks,
        routes="cHJpdmF0ZSByb3V0ZXM=",
        observed_evidence="cHJpdmF0ZSBza2V0Y2hlcw==",
    )
    options = RunOptions(prompt="private prompt", system="private system text")
    return [opening, generation, private_run(), options, *every_example()]


def private_values(value: Any) -> Iterator[Any]:
    """Yield the private values of a document, at any depth."""
    if is_dataclass(value):
        for field in fields(value):
            inner = getattr(value, field.name)
            if field.name in PRIVATE.get(type(value), ()):
                yield from inner if isinstance(inner, tuple) else (inner,)
            else:
                yield from private_values(inner)


@pytest.mark.parametrize("document", private_documents(), ids=lambda value: type(value).__name__)
def test_a_repr_shows_no_private_value(document: Any) -> None:
    shown = repr(document)
    assert type(document).__name__ in shown
    for value in private_values(document):
        if value is not None and len(str(value)) > 4:  # shorter ones are in digests by chance
            assert str(value) not in shown


def test_there_was_something_to_hide() -> None:
    found = {str(value) for value in private_values(private_opening())}
    assert {"private prompt", "private system text", "90001", "90004"} <= found
    assert len(found) == 10


def test_every_field_of_a_private_name_is_hidden() -> None:
    shown = set()
    for info in pkgutil.iter_modules(contracts.__path__, f"{contracts.__name__}."):
        for value in vars(importlib.import_module(info.name)).values():
            if isinstance(value, type) and is_dataclass(value):
                shown |= {(value, f.name) for f in fields(value) if f.repr and f.name in NAMES}
    assert shown == set()


def test_hidden_fields_still_decide_equality_and_are_written() -> None:
    opening = private_opening()
    data = encode_bytes(opening)
    assert decode_bytes(Opening, data, max_bytes=1 << 20) == opening
    for name in PRIVATE[Opening]:
        other = replace(opening, **{name: getattr(example_opening(), name)})
        assert other != opening
        assert encode_bytes(other) != data
    assert replace(private_run(), prompt="another") != private_run()
