"""The adapter around a made-up library: what it takes from it, and what it refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import cffi
import pytest

from tallystick.engine.libllama.adapter import (
    LlamaModel,
    ObservedLlamaContext,
    has_cache,
)
from tallystick.engine.libllama.cdef import DECLARATIONS
from tallystick.engine.libllama.pins import STRUCT_SIZES
from tallystick.engine.port import Observation, Rows
from tallystick.errors import IncomparableError, InputError

FFI = cffi.FFI()
SEEN = Observation((), (), ())


def model_with_template(template: bytes | None) -> LlamaModel:
    model = object.__new__(LlamaModel)
    text: Any = FFI.NULL if template is None else FFI.new("char[]", template)
    model._ffi, model._handle = FFI, None
    model._lib = SimpleNamespace(llama_model_chat_template=lambda *_: text)
    return model


def test_a_chat_template_is_text() -> None:
    assert model_with_template(None).chat_template() is None
    assert model_with_template("é {{ x }}".encode()).chat_template() == "é {{ x }}"
    with pytest.raises(InputError, match="chat template is not text"):
        model_with_template(b"\xff {{ x }}").chat_template()


def observed(before: int, now: int, cache: str) -> ObservedLlamaContext:
    context = object.__new__(ObservedLlamaContext)
    context._observer = SimpleNamespace(take=lambda: SEEN, cache_writes=now)
    context._writes_before, context._has_cache = before, cache == "has a cache"
    return context


def test_a_cache_that_nobody_saw_is_not_taken_for_one_of_16_bit_floats() -> None:
    assert observed(3, 5, "has a cache").observation() == SEEN
    # Writes that an earlier context made say nothing about this one.
    with pytest.raises(IncomparableError, match="cannot be seen"):
        observed(3, 3, "has a cache").observation()


def test_a_recurrent_model_has_no_cache() -> None:
    for recurrent in (True, False):
        library: Any = SimpleNamespace(
            lib=SimpleNamespace(llama_model_is_recurrent=lambda _, answer=recurrent: answer)
        )
        assert has_cache(library, None) is not recurrent
    assert observed(0, 0, "has none").observation() == SEEN


def test_a_batch_hides_its_tokens() -> None:
    assert "12345" not in repr(Rows((12345,), (0,), (0,), (True,)))


def test_the_declarations_are_sound() -> None:
    ffi = cffi.FFI()
    ffi.cdef(DECLARATIONS)
    assert ffi.sizeof("struct ggml_tensor") == STRUCT_SIZES["ggml_tensor"]
