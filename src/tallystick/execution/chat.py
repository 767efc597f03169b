"""Render a model's own chat template, in the child, with nothing but the request to look at.

The template is the model's, so it is as untrusted as the model: it runs in a sandbox without
attributes that lead out, within bounds of time and memory, and sees no clock and no chance.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NoReturn

from tallystick.canonical.hashing import format_digest, sha256
from tallystick.contracts.request import Chat
from tallystick.errors import IncomparableError, InputError, TallystickError
from tallystick.sandbox.limits import bounded_work

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_RENDERED: Final = 4 * 1024 * 1024
RENDER_SECONDS: Final = 10.0
RENDER_MEMORY: Final = 256 * 1024 * 1024
# What is drawn anew at each rendering could not be rendered again.
_CHANCE_FILTERS: Final = ("random",)
_CHANCE_GLOBALS: Final = ("lipsum",)


def template_digest(template: str) -> str:
    """Return the sha256 of the template's UTF-8 bytes."""
    return format_digest(sha256(template.encode()))


def renderer() -> str:
    """Return what renders templates here, with the versions that can change a rendering."""
    try:
        version = importlib.metadata.version("jinja2")
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    return f"jinja2 {version}, Python {sys.version_info.major}.{sys.version_info.minor}"[:200]


def other_renderer(theirs: str, ours: str) -> IncomparableError:
    """Return the error for a rendering that differs, or fails, where the renderers differ too."""
    return IncomparableError(
        "the receipt's prompt was rendered by another renderer, and here it comes out otherwise",
        expected=theirs,
        found=ours,
        hint="replay with the versions of Python and jinja2 that the receipt names",
    )


def render(
    template: str,
    prompt: str,
    chat: Chat,
    *,
    bos: str,
    eos: str,
    seconds: float = RENDER_SECONDS,
    unable: type[TallystickError] = InputError,
) -> str:
    """Return the text of one user message (and a system message) with the reply begun.

    ``bos`` and ``eos`` are the texts of those tokens. ``strftime_now`` shows the request's clock
    in UTC, never this machine's. Raises InputError when the template refuses or fails, or takes
    more than ``seconds`` of computing or `RENDER_MEMORY` (docs/spec/execution.md). Where the bounds
    were too narrow, or nothing is installed that renders, it is ``unable`` instead: that says as
    much of this machine as of the template.
    """
    _require_renderer(unable)
    messages = [{"role": "user", "content": prompt}]
    if chat.system is not None:
        messages.insert(0, {"role": "system", "content": chat.system})
    try:
        with bounded_work(seconds=seconds, memory=RENDER_MEMORY):
            text = (
                _environment(template, chat)
                .from_string(template)
                .render(
                    messages=messages,
                    add_generation_prompt=True,
                    bos_token=bos,
                    eos_token=eos,
                    tools=None,
                    documents=None,
                )
            )
        text.encode()
    except InputError:
        raise
    except RecursionError:
        raise unable("the model's chat template goes too deep", hint="run without --chat") from None
    except TimeoutError:
        raise unable(
            "the model's chat template takes too long",
            expected=f"at most {seconds:g} s of computing",
            hint="run without --chat",
        ) from None
    except MemoryError:
        raise unable(
            "the model's chat template takes too much memory",
            expected=f"at most {RENDER_MEMORY >> 20} MiB",
            hint="run without --chat",
        ) from None
    except Exception as e:
        # Whatever a template provokes in its sandbox is its failure; the text may quote the prompt.
        raise InputError(
            "the model's chat template could not be rendered",
            found=type(e).__name__,
            hint="run without --chat, or use a model with a working template",
        ) from None
    if len(text) > MAX_RENDERED:
        raise InputError("the rendered prompt is too long", expected=f"{MAX_RENDERED} characters")
    return text


def _require_renderer(unable: type[TallystickError]) -> None:
    """Import it before the bounds hold: the import's time and memory are not the template's."""
    try:
        import jinja2.ext
        import jinja2.sandbox  # noqa: F401 - imported for the import itself
    except ImportError:
        raise unable(
            "chat templates cannot be rendered here",
            expected="the package jinja2",
            hint="pip install 'tallystick[engine]'",
        ) from None


def _environment(template: str, chat: Chat) -> ImmutableSandboxedEnvironment:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from tallystick.execution.chat_extension import GenerationBlocks

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlocks]
    )
    for name in _CHANCE_FILTERS:
        del environment.filters[name]
    for name in _CHANCE_GLOBALS:
        del environment.globals[name]
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refusal(template)
    environment.globals["strftime_now"] = _clock(chat)
    return environment


def _to_json(value: object, indent: int | None = None) -> str:
    """JSON as chat templates expect it: nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refusal(template: str) -> Callable[[object], NoReturn]:
    def raise_exception(message: object) -> NoReturn:
        text = str(message)
        # Only words of the template itself are shown: others may quote the prompt.
        own = f"'{text}'" in template or f'"{text}"' in template
        raise InputError(
            "the model's chat template refuses these messages", found=text[:200] if own else None
        )

    return raise_exception


def _clock(chat: Chat) -> Callable[[str], str]:
    def strftime_now(form: str) -> str:
        if chat.clock is None:
            raise InputError("the chat template asks for a clock and the request gives none")
        return datetime.fromtimestamp(chat.clock, UTC).strftime(form)

    return strftime_now
