"""What a supervisor asks an engine child to do: typed jobs, sealed into the child's input."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from tallystick.contracts.request import InferenceRun
from tallystick.contracts.residency import RingPlan
from tallystick.contracts.runtime import Knob, RowClass
from tallystick.contracts.types import (
    U32,
    Count,
    Digest,
    Hex32,
    IntRange,
    LongText,
    MaxLength,
    OneOf,
    ShortText,
    TokenId,
)
from tallystick.evidence.observer.records import OBSERVERS

Descriptor = Annotated[int, IntRange(0, 2**16)]


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """Which library to load, and the compiled observer if there is one (paths).

    ``digest`` is what the library file hashed to, ``identity`` what the kernel said of it then.
    """

    library: LongText
    digest: Digest
    identity: ShortText
    observer: LongText | None
    threads: Count


@dataclass(frozen=True, slots=True)
class Preload:
    """What a template loads before it forks children: the engine of ``setup``, and ``modules``."""

    setup: EngineSetup
    modules: Annotated[tuple[ShortText, ...], MaxLength(64)]


@dataclass(frozen=True, slots=True)
class GenerateJob:
    """Run ``run`` on the model behind ``model_fd`` and gather the evidence that it asks for.

    ``credential_id`` is that of the worker: its own root over the states is bound to it. A prompt
    of more than ``max_prompt_tokens``, which its scheduler set, is refused before it is evaluated.
    With a ``ring`` no more layers than its depth are kept in memory.
    """

    setup: EngineSetup
    model_fd: Descriptor
    run: InferenceRun = field(repr=False)
    row_class: RowClass
    credential_id: Hex32
    max_prompt_tokens: U32
    self_check: Annotated[str, OneOf(("no", "yes"))]
    ring: RingPlan | None = None


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """Re-execute ``run`` over the claimed ids and report everything that follows from them.

    The evidence is what the run asked for; ``credential_id`` is that of the worker who ran it, and
    ``renderer`` is what the receipt says rendered its prompt. ``transcript`` asks for one of the
    pass, in which the model's file is called ``file_name``. ``ring`` is this execution's own.
    """

    setup: EngineSetup
    model_fd: Descriptor
    run: InferenceRun = field(repr=False)
    row_class: RowClass
    claimed_ids: Annotated[tuple[TokenId, ...], MaxLength(1024)] = field(repr=False)
    credential_id: Hex32
    renderer: ShortText
    transcript: Annotated[str, OneOf(("none", "graph", "sketch"))] = "none"
    file_name: Annotated[str, MaxLength(1024)] = ""
    ring: RingPlan | None = None


@dataclass(frozen=True, slots=True)
class CalibrateJob:
    """Find the row class of one knob setting (the child's environment) for one model.

    No floor below ``min_floor`` is looked for.
    """

    setup: EngineSetup
    model_fd: Descriptor
    min_floor: Count


@dataclass(frozen=True, slots=True)
class FingerprintJob:
    """Run the numeric conformance suite under one knob setting (the child's environment)."""

    setup: EngineSetup
    knobs: Annotated[tuple[Knob, ...], MaxLength(4)]


@dataclass(frozen=True, slots=True)
class ObserveJob:
    """Generate under `sequential` and write a transcript; ``file_name`` is what it calls the file.

    ``prompt`` is private.
    """

    setup: EngineSetup
    model_fd: Descriptor
    file_name: Annotated[str, MaxLength(1024)]
    prompt: LongText = field(repr=False)
    max_tokens: Count
    observer: Annotated[str, OneOf(OBSERVERS)]
    output_bytes: Annotated[str, OneOf(("omit", "emit"))]


Job = GenerateJob | ReplayJob | CalibrateJob | FingerprintJob | ObserveJob
JOBS: dict[str, type[Job]] = {
    "generate": GenerateJob,
    "replay": ReplayJob,
    "calibrate": CalibrateJob,
    "fingerprint": FingerprintJob,
    "observe": ObserveJob,
}
