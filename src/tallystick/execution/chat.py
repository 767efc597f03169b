"""Render a model's own chat template, in the child, with nothing but the request to look at."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, NoReturn

from tallystick.canonical.hashing import format_digest, sha256
from tallystick.contracts.request import Chat
from tallystick.errors import InputError

MAX_RENDERED = 4 * 1024 * 1024


def template_digest(template: str) -> str:
    """Return the sha256 of the template's UTF-8 bytes."""
    return format_digest(sha256(template.encode()))


def render(template: str, prompt: str, chat: Chat, *, bos: str, eos: str) -> str:
    """Return the text of one user message (and a system message) with the reply begun.

    ``strftime_now`` shows the request's clock in UTC, never this machine's. A leading BOS text is
    dropped where the tokenizer adds BOS itself: pass ``bos`` = "" for the template then.
    Raises InputError when the template refuses or fails.
    """
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _clock(chat)
    messages = [{"role": "user", "content": prompt}]
    if chat.system is not None:
        messages.insert(0, {"role": "system", "content": chat.system})
    try:
        text = environment.from_string(template).render(
            messages=messages, add_generation_prompt=True, bos_token=bos, eos_token=eos
        )
    except InputError:
        raise
    except (
        TemplateError,
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ) as e:
        raise InputError(
            "the model's chat template could not be rendered",
            found=type(e).__name__,
            hint="run without --chat, or use a model with a working template",
        ) from None
    if len(text) > MAX_RENDERED:
        raise InputError("the rendered prompt is too long", expected=f"{MAX_RENDERED} characters")
    return text


def _refuse(message: object) -> NoReturn:
    raise InputError("the model's chat template refuses these messages", found=str(message)[:200])


def _clock(chat: Chat) -> Any:
    def strftime_now(form: str) -> str:
        if chat.clock is None:
            raise InputError("the chat template asks for a clock and the request gives none")
        return datetime.fromtimestamp(chat.clock, UTC).strftime(form)

    return strftime_now
