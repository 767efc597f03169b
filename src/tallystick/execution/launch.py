"""The supervisor's side of an engine child: which engine, which environment, which messages."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Final

from tallystick.contracts.codec import decode, encode
from tallystick.contracts.egress import EgressReport
from tallystick.contracts.generation import Generation
from tallystick.contracts.runtime import EngineBuild, Knob
from tallystick.contracts.sandbox_profile import SandboxProfile
from tallystick.engine.compiled import ensure_observer
from tallystick.engine.libllama.locate import engine_build, library_path
from tallystick.errors import EvidenceError, RunFailedError, SandboxError, UsageError
from tallystick.execution.hearing import Hearing, counted
from tallystick.execution.jobs import (
    JOBS,
    EngineSetup,
    FingerprintJob,
    GenerateJob,
    Job,
    ObserveJob,
    ReplayJob,
)
from tallystick.execution.templates import Templates
from tallystick.models.digests import DigestCache
from tallystick.models.files import opened
from tallystick.sandbox.confinement import Confinement
from tallystick.sandbox.messages import CHILD_ERRORS, ErrorClasses, Message, well_formed
from tallystick.sandbox.process import Child
from tallystick.telemetry.bus import EventBus, LocalBus
from tallystick.telemetry.events import MAX_LAYER_EVENTS, Event

PROGRAM: Final = "tallystick.execution.child"
# A child that computes says so all the time (`Channel.keep_alive`): the deadline is on silence,
# and generous, because a busy machine or disk can hold up a good child for long.
IDLE_SECONDS: Final = 900.0
#: Events of a job besides one for each token: its beginning, its load, its end.
_OTHER_EVENTS: Final = 8
#: What a child says of its work; that it is alive, it may say whenever it is.
_WORK: Final = ("event", "text", "data", "progress", "result")
_DROPPED_PREFIXES: Final = ("GGML_", "LLAMA_", "OMP_", "GOMP_", "KMP_")
# Waiting threads spin for some microseconds, which spans the gaps between parts of a graph, and
# then sleep: endless spinning is several times slower on shared cores, sleeping at once a third
# slower on idle ones. No bit depends on it (docs/benchmarks.md).
# An engine that aborts would start a debugger on itself, whose words (values of variables among
# them) would reach the user's screen.
ENGINE_ENVIRONMENT: Final = {"GOMP_SPINCOUNT": "1000", "GGML_NO_BACKTRACE": "1"}

# Imported only when they are needed, for which it is too late in a sandbox.
_LAZY_MODULES: Final = ("jinja2.ext", "jinja2.sandbox", "importlib.metadata")

OnProgress = Callable[[str, int, int], None]
OnText = Callable[[bytes], None]


def no_progress(what: str, done: int, total: int) -> None:
    """Ignore progress."""


def no_text(text: bytes) -> None:
    """Ignore streamed output."""


@dataclass(frozen=True, slots=True)
class InstalledEngine:
    """The engine on this machine: its build (digest included), and the compiled observer if any."""

    build: EngineBuild
    library: Path
    identity: str
    observer: Path | None

    def setup(self, threads: int | None) -> EngineSetup:
        """Return what a child needs to load it; ``threads`` None takes every core we may use."""
        return EngineSetup(
            library=os.fspath(self.library),
            digest=self.build.library,
            identity=self.identity,
            observer=None if self.observer is None else os.fspath(self.observer),
            threads=threads or usable_cores(),
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """A child's result, what it told on the way, and its peak resident memory in bytes.

    ``stamped`` is how many events it had; those that are not in ``events`` were dropped. ``audit``
    is the report on its sandbox, None without one.
    """

    body: dict[str, Any] = field(repr=False)
    events: tuple[Event, ...]
    stamped: int
    peak_rss: int
    audit: EgressReport | None = None

    def generation(self) -> Generation:
        """Return the typed result of a generate or replay job. Raises RunFailedError."""
        with well_formed("a result"):
            return decode(Generation, self.body.get("generation"), where="generation")


def usable_cores() -> int:
    """Return the number of cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def find_engine(home: Path) -> InstalledEngine:
    """Return the installed engine, its library hashed (or known by the digest cache).

    Raises InputError when it is not installed, IncomparableError when it is not a pinned build.
    """
    path = library_path()
    with opened(path) as descriptor:
        hashed = DigestCache(home).digest_of(descriptor)
    return InstalledEngine(
        engine_build(hashed.digest),
        path,
        ":".join(map(str, astuple(hashed.identity))),
        ensure_observer(home / "cache"),
    )


def file_identity(path: str) -> str:
    """Return device, inode, size, mtime and ctime of the file at ``path``; "" without one."""
    try:
        info = os.stat(path)
    except OSError:
        return ""
    fields = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
    return ":".join(map(str, fields))


def _require_same_library(setup: EngineSetup) -> None:
    """The library is loaded by its path, which has to mean the file that was hashed."""
    found = file_identity(setup.library)
    if found != setup.identity:
        raise RunFailedError(
            "the engine library was replaced or changed since it was hashed",
            expected=setup.identity,
            found=found or "no file",
            hint="leave the installation alone while models run, and start again",
        )


def dropped_environment() -> tuple[str, ...]:
    """Return the names of the operator's variables that would have changed the engine."""
    return tuple(sorted(name for name in os.environ if name.startswith(_DROPPED_PREFIXES)))


def run_job(
    job: Job,
    knobs: tuple[Knob, ...],
    *,
    on_progress: OnProgress = no_progress,
    on_text: OnText = no_text,
    model_fd: int | None = None,
    sandbox: SandboxProfile | None = None,
    templates: Templates | None = None,
    bus: EventBus | None = None,
) -> Outcome:
    """Run one job in a child of its own and return its outcome; the child is gone then.

    Its events go over ``bus`` as they arrive; no subscriber to that can hold the run up.

    With a ``sandbox`` the child locks itself and is audited before it opens the model. With
    ``templates`` it is forked by one of them, which has loaded the engine before. Raises
    SandboxError where that is not possible, or not as tight as promised; what the child reports;
    and RunFailedError when it dies or falls silent, or when the engine library is not (any more)
    the file that was hashed.
    """
    _require_same_library(job.setup)
    name = next(name for name, kind in JOBS.items() if isinstance(job, kind))
    environment = ENGINE_ENVIRONMENT | {knob.name: knob.value for knob in knobs}
    most_events = _most_events(job)
    result: dict[str, Any] | None = None
    modules = _modules(name)
    template = None if templates is None else templates.of(job.setup, environment, modules)
    # Subscribed before there is a child, which loads as soon as it is there.
    with Hearing(bus or LocalBus(), most_events) as hearing:
        child = Child(
            PROGRAM,
            {"op": name, "job": encode(job)},
            environment=environment,
            pass_fds=() if model_fd is None else (model_fd,),
            confinement=None if sandbox is None else _confinement(sandbox, job, modules, model_fd),
            template=template,
        )
        with child:
            for message in child.messages(idle_timeout=IDLE_SECONDS, errors=_errors(job)):
                if result is not None and message.kind in _WORK:
                    raise RunFailedError("the child went on after its result", found=message.kind)
                if message.kind == "result":
                    result = message.body
                elif message.kind == "event":
                    hearing.take(message.body)
                else:
                    _pass_on(message, on_progress, on_text)
                hearing.collect()
    if result is None:
        raise RunFailedError("the child ended without a result")
    _require_same_library(job.setup)
    events, stamped = hearing.events(), hearing.count(result)
    peak = hearing.peak(child.peak_rss, final=child.peak_is_final)
    return Outcome(result, events, stamped, peak, child.audit)


def _pass_on(message: Message, on_progress: OnProgress, on_text: OnText) -> None:
    body = message.body
    if message.kind == "text":
        on_text(_text(body))
    elif message.kind == "data":
        on_text(message.data)
    elif message.kind == "progress":
        what = str(body.get("what"))[:40]
        on_progress(what, counted(body, "done"), counted(body, "total"))


def _most_events(job: Job) -> int:
    tokens = job.run.max_tokens if isinstance(job, GenerateJob) else 0
    ring = isinstance(job, GenerateJob | ReplayJob) and job.ring is not None
    return _OTHER_EVENTS + tokens + MAX_LAYER_EVENTS * ring


def _modules(name: str) -> tuple[str, ...]:
    """Return what a child imports for a job of the kind ``name``."""
    return (f"tallystick.execution.{name}_child", *_LAZY_MODULES)


def _confinement(
    sandbox: SandboxProfile, job: Job, modules: tuple[str, ...], model_fd: int | None
) -> Confinement:
    """Return what holds the child of ``job``, and what it needs inside besides the runtime."""
    if isinstance(job, FingerprintJob):
        raise SandboxError(
            "a numeric fingerprint is not taken in a sandbox",
            expected="a job on somebody's model",
            found="one that writes small models of this program's own",
            hint="run it without a profile: it reads no file from elsewhere",
        )
    setup = job.setup
    loaded = (Path(setup.library), *([] if setup.observer is None else [Path(setup.observer)]))
    return Confinement(
        profile=sandbox,
        files=loaded,
        libraries=loaded,
        modules=modules,
        model_size=0 if model_fd is None else os.fstat(model_fd).st_size,
    )


def _errors(job: Job) -> ErrorClasses:
    """Return what a child may report of ``job``.

    Only a replay has evidence to judge; how large evidence or a transcript would be, only the
    child sees.
    """
    if isinstance(job, ReplayJob):
        judged = (*CHILD_ERRORS, EvidenceError)
        return judged if job.transcript == "none" else (*judged, UsageError)
    if isinstance(job, GenerateJob | ObserveJob):
        return (*CHILD_ERRORS, UsageError)
    return CHILD_ERRORS


def _text(body: dict[str, Any]) -> bytes:
    text = body.get("bytes")
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise RunFailedError("the child sent malformed text")
