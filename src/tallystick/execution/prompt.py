"""From a declared run to token ids and a context: what both generation and replay start with."""

from __future__ import annotations

from dataclasses import dataclass, field

from tallystick.contracts.manifest_parts import SEQUENTIAL_CONTEXT
from tallystick.contracts.request import InferenceRun
from tallystick.contracts.runtime import SEQUENTIAL, RowClass
from tallystick.engine.port import Model
from tallystick.errors import InputError, TallystickError
from tallystick.execution import chat
from tallystick.execution.schedule import context_cells


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt, the digest of the template that rendered it (if any), its token ids."""

    text: str = field(repr=False)
    template_digest: str | None
    ids: tuple[int, ...] = field(repr=False)


def prepare_prompt(
    model: Model, run: InferenceRun, *, unable: type[TallystickError] = InputError
) -> Prompt:
    """Render and tokenise the prompt of ``run``.

    Raises InputError when that is not possible, and ``unable`` where the reason may be this
    machine (:func:`tallystick.execution.chat.render`).
    """
    text, digest = run.prompt, None
    if run.chat is not None:
        template = model.chat_template()
        if template is None:
            raise InputError(
                "this model carries no chat template", hint="run without --chat for a raw prompt"
            )
        digest = chat.template_digest(template)
        bos, eos = model.special_piece("bos"), model.special_piece("eos")
        text = chat.render(template, run.prompt, run.chat, bos=bos, eos=eos, unable=unable)
        if run.add_special and model.adds_bos:
            # The tokenizer adds it: a template that writes it too would double it.
            text = text.removeprefix(bos)
    ids = model.tokenize(
        text.encode(), add_special=run.add_special, parse_special=run.parse_special
    )
    if not ids:
        raise InputError("the prompt has no tokens", hint="give a prompt that is not empty")
    return Prompt(text, digest, ids)


def context_of(model: Model, run: InferenceRun, prompt_tokens: int, row_class: RowClass) -> int:
    """Return the KV cells that ``run`` opens: what is asked for decides, not what is generated.

    Raises InputError when prompt and ``max_tokens`` are more than 4096 tokens under `sequential`,
    or else than the model was trained for.
    """
    sequential = run.policy == SEQUENTIAL
    limit = SEQUENTIAL_CONTEXT if sequential else model.context_train
    if prompt_tokens + run.max_tokens > limit:
        raise InputError(
            "prompt and generated tokens do not fit the context",
            expected=f"at most {limit} tokens in all",
            found=f"{prompt_tokens} prompt tokens + {run.max_tokens} to generate",
            hint="shorten the prompt or lower --n-predict",
        )
    if sequential:
        return SEQUENTIAL_CONTEXT
    return context_cells(prompt_tokens, run.max_tokens, row_class)


def require_ordered_length(prompt_tokens: int, most: int) -> None:
    """Raise InputError when a prompt has more tokens than its signed request allows."""
    if prompt_tokens > most:
        raise InputError(
            "the prompt has more tokens than the job's scheduler allows",
            expected=f"at most {most} (max_prefill_tokens of the request)",
            found=str(prompt_tokens),
            hint="nothing was generated; ask the scheduler for a job that allows them",
        )
