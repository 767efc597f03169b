"""The engine child: one process, one job, no key."""

from __future__ import annotations

import base64
import os
import platform
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from tallystick.canonical.hashing import format_digest
from tallystick.contracts.codec import decode, encode
from tallystick.contracts.generation import Generation, HostFacts, Timings
from tallystick.contracts.request import InferenceRun
from tallystick.contracts.runtime import SEQUENTIAL
from tallystick.engine.libllama.adapter import LlamaModel
from tallystick.engine.port import Model
from tallystick.errors import EvidenceError, IncomparableError, InputError, RunFailedError
from tallystick.evidence.state_tree import StateTree
from tallystick.execution.chat import other_renderer, renderer
from tallystick.execution.child_engine import Engine, Reporter
from tallystick.execution.jobs import (
    JOBS,
    CalibrateJob,
    FingerprintJob,
    GenerateJob,
    ObserveJob,
    ReplayJob,
)
from tallystick.execution.prompt import Prompt, context_of, prepare_prompt
from tallystick.execution.sampling import parse_temperature
from tallystick.execution.session import Execution, Plan, Sampler, generate, re_execute
from tallystick.sandbox.channel import Channel, serve
from tallystick.telemetry.events import EventKind
from tallystick.telemetry.rss import resident_bytes

# Far below the supervisor's patience.
_BEAT_SECONDS: Final = 30.0


def _output(model: LlamaModel, ids: Sequence[int]) -> bytes:
    return b"".join(model.piece(token, special=False) for token in ids)


def _tree(run: InferenceRun, model: LlamaModel, prompt_tokens: int) -> StateTree:
    return StateTree(bytes.fromhex(run.blind), model.layers, prompt_tokens)


def _host(engine: Engine, run: InferenceRun, states: bool) -> HostFacts:
    return HostFacts(
        cpu=_cpu_name()[:200],
        cpu_features=engine.library.system_info()[:200],
        libc=" ".join(platform.libc_ver())[:200],
        kernel=f"{platform.system()} {platform.release()}"[:200],
        python=platform.python_version(),
        threads=1 if run.policy == SEQUENTIAL else engine.threads,
        observer=engine.observer if states else "none",
        renderer="none" if run.chat is None else renderer(),
    )


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def run_generate(job: GenerateJob, reporter: Reporter) -> Generation:
    """Generate, live evidence included; with ``self_check`` re-execute before reporting."""
    reporter.event(EventKind.INIT)
    rss_before = resident_bytes()
    engine = Engine(job.setup, job.model_fd, reporter)
    model, run = engine.model, job.run
    prepared = prepare_prompt(model, run)
    prompt = prepared.ids
    cells = context_of(model, run, len(prompt), job.row_class)
    plan = Plan(run.policy, job.row_class, cells, engine.threads)
    sampler = Sampler(parse_temperature(run.temperature), run.seed)
    states = "states" in run.evidence
    tree = _tree(run, model, len(prompt)) if states else None
    execution = Execution(model, plan, len(prompt), tree)
    clock = [time.monotonic_ns()]

    def on_token(index: int, token: int) -> None:
        if index == 0:
            clock.append(time.monotonic_ns())
        reporter.token(index, model.piece(token, special=False))

    sampled = generate(
        execution,
        model.is_end,
        plan,
        prompt,
        run.max_tokens,
        sampler,
        on_token,
        reporter.progress("prompt"),
    )
    clock.append(time.monotonic_ns())
    execution.close()
    reporter.event(EventKind.ARENA_RESET)
    checked = "not_run"
    if job.self_check == "yes":
        _self_check(engine, plan, run, prompt, sampled, sampler, tree, reporter)
        checked = "passed"
    clock.append(time.monotonic_ns())
    return Generation(
        rendered_prompt=prepared.text,
        chat_template_digest=prepared.template_digest,
        prompt_ids=prompt,
        sampled_ids=sampled,
        output=base64.b64encode(_output(model, sampled)).decode(),
        stop_reason="end_of_generation" if model.is_end(sampled[-1]) else "length",
        context_tokens=cells,
        layers=model.layers,
        state_root=None if tree is None else format_digest(tree.root()),
        state_leaves=0 if tree is None else tree.count,
        leaf_checks="" if tree is None else base64.b64encode(tree.leaf_checks).decode(),
        self_check=checked,
        timings=Timings(
            load=engine.load_ns,
            prefill=clock[1] - clock[0],
            decode=clock[2] - clock[1],
            seal=clock[3] - clock[2],
        ),
        rss_before=rss_before,
        host=_host(engine, run, states),
    )


def _self_check(
    engine: Engine,
    plan: Plan,
    run: InferenceRun,
    prompt: Sequence[int],
    sampled: Sequence[int],
    sampler: Sampler,
    live: StateTree | None,
    reporter: Reporter,
) -> None:
    """The sealing pass: every token must follow from its own logits, every state must be equal."""
    tree = None if live is None else _tree(run, engine.model, len(prompt))
    execution = Execution(engine.model, plan, len(prompt), tree)
    derived = re_execute(execution, plan, prompt, sampled, sampler, reporter.progress("self-check"))
    execution.close()
    for index, (claimed, found) in enumerate(zip(sampled, derived, strict=True)):
        if claimed != found:
            raise RunFailedError(
                "self-check failed: a token does not follow from its own logits",
                found=f"generated token {index}",
                hint="recalibrate the model: tallystick model calibrate",
            )
    if live is not None and tree is not None and live.root() != tree.root():
        raise RunFailedError(
            "self-check failed: the batched pass gave another state root than the generation",
            hint="recalibrate the model: tallystick model calibrate",
        )


def run_replay(job: ReplayJob, reporter: Reporter) -> Generation:
    """Re-execute the claimed ids; the result holds what follows, not what was claimed."""
    reporter.event(EventKind.INIT)
    rss_before = resident_bytes()
    engine = Engine(job.setup, job.model_fd, reporter)
    model, run = engine.model, job.run
    prepared, cells = _prompt_of_receipt(model, job)
    prompt = prepared.ids
    plan = Plan(run.policy, job.row_class, cells, engine.threads)
    if not 1 <= len(job.claimed_ids) <= run.max_tokens:
        raise EvidenceError(
            "the receipt has another number of tokens than its request allows",
            expected=f"1 to {run.max_tokens}",
            found=str(len(job.claimed_ids)),
        )
    if max(job.claimed_ids) >= model.vocabulary:
        raise EvidenceError("a sampled id is beyond the model's vocabulary")
    sampler = Sampler(parse_temperature(run.temperature), run.seed)
    tree = _tree(run, model, len(prompt)) if job.states == "yes" else None
    execution = Execution(model, plan, len(prompt), tree)
    started = time.monotonic_ns()
    derived = re_execute(
        execution, plan, prompt, job.claimed_ids, sampler, reporter.progress("replay")
    )
    spent = time.monotonic_ns() - started
    execution.close()
    ended = next((i for i, token in enumerate(derived) if model.is_end(token)), None)
    if ended is not None:
        # A generation is over with its first end token, whatever the claim goes on to say.
        derived = derived[: ended + 1]
    return Generation(
        rendered_prompt=prepared.text,
        chat_template_digest=prepared.template_digest,
        prompt_ids=prompt,
        sampled_ids=derived,
        output=base64.b64encode(_output(model, derived)).decode(),
        stop_reason="length" if ended is None else "end_of_generation",
        context_tokens=cells,
        layers=model.layers,
        state_root=None if tree is None else format_digest(tree.root()),
        state_leaves=0 if tree is None else tree.count,
        leaf_checks="" if tree is None else base64.b64encode(tree.leaf_checks).decode(),
        self_check="not_run",
        timings=Timings(load=engine.load_ns, prefill=spent, decode=0, seal=0),
        rss_before=rss_before,
        host=_host(engine, run, tree is not None),
    )


def _prompt_of_receipt(model: Model, job: ReplayJob) -> tuple[Prompt, int]:
    """Return the prompt and the context of a run that a receipt says was made."""
    run = job.run
    try:
        prepared = prepare_prompt(model, run, unable=IncomparableError)
        return prepared, context_of(model, run, len(prepared.ids), job.row_class)
    except InputError as error:
        if run.chat is not None and job.renderer != renderer():
            raise other_renderer(job.renderer, renderer()) from None
        raise EvidenceError(
            "this model cannot have made the receipt's run",
            expected=error.expected,
            found="; ".join(filter(None, (error.message, error.found))),
        ) from None


def _handle(request: Any, channel: Channel) -> None:
    op = request["op"]
    job = decode(JOBS[op], request["job"], where=op)
    channel.keep_alive(_BEAT_SECONDS)
    reporter = Reporter(channel)
    if isinstance(job, GenerateJob):
        channel.send("result", {"generation": encode(run_generate(job, reporter))})
    elif isinstance(job, ReplayJob):
        channel.send("result", {"generation": encode(run_replay(job, reporter))})
    elif isinstance(job, CalibrateJob):
        from tallystick.execution.calibrate_child import run_calibrate

        channel.send("result", run_calibrate(job, reporter))
    elif isinstance(job, FingerprintJob):
        from tallystick.execution.fingerprint_child import run_fingerprint

        channel.send("result", run_fingerprint(job, reporter))
    elif isinstance(job, ObserveJob):
        from tallystick.execution.observe_child import run_observe

        channel.send("result", run_observe(job, reporter))
    else:
        raise RunFailedError("unknown job")


if __name__ == "__main__":
    os.umask(0o077)
    sys.setrecursionlimit(2000)
    serve(_handle)
