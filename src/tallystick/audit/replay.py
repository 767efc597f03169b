"""Execute a receipt again and compare every bit (docs/spec/replay.md).

No tolerance and no false alarm: either this machine can execute the receipt's runtime class, and
then every token and every committed state must come out equal, or it cannot, and then nothing is
said (IncomparableError, exit 3).
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from tallystick.attest.auditkeys import default_audit_key_path, read_audit_key
from tallystick.attest.bundlekeys import AuditKey, BundleKey
from tallystick.attest.trust import TrustPolicy
from tallystick.contracts.generation import Generation
from tallystick.contracts.opening import Opening
from tallystick.contracts.receipt import Core, Receipt
from tallystick.contracts.runtime import SEQUENTIAL, RowClass
from tallystick.errors import EvidenceError, IncomparableError, InputError
from tallystick.evidence.state_tree import first_difference, leaf_index, locate, row_name
from tallystick.execution import fingerprint as fingerprints
from tallystick.execution.calibrate import calibration_of
from tallystick.execution.chat import other_renderer
from tallystick.execution.jobs import ReplayJob
from tallystick.execution.knobs import knob_text
from tallystick.execution.launch import (
    InstalledEngine,
    OnProgress,
    find_engine,
    no_progress,
    run_job,
)
from tallystick.execution.schedule import MAX_FLOOR
from tallystick.models.add import hash_file
from tallystick.models.registry import (
    ModelFile,
    OpenModel,
    find_pin,
    open_model,
    pin_path,
    resolve,
    resolved,
)
from tallystick.receipts.documents import SetDocuments, find_id, read_documents
from tallystick.receipts.verify import VerifyContext, verify_with
from tallystick.store.home import home as default_home
from tallystick.store.home import user_path
from tallystick.store.sets import read_set

_CHECK = 4


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing that differs. ``position`` counts tokens of the sequence from 0.

    ``layer`` is a layer number, or None when it is the token sampled there that differs.
    """

    what: str
    position: int | None
    layer: int | None

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay found. ``exact`` of ``sampled`` generated positions are equal in every bit.

    ``signature`` is ``passed`` only when trust was given; ``states`` is ``not_committed`` when the
    receipt commits to no states, and then only tokens and output were compared.
    ``replay_ns`` is the time of the pass itself, ``rows`` how many rows it evaluated.
    """

    receipt_digest: str
    core_digest: str
    sampled: int
    exact: int
    rows: int
    states: Literal["equal", "differ", "not_committed"]
    signature: Literal["passed", "not_checked"]
    difference: Difference | None
    replay_ns: int

    @property
    def verified(self) -> bool:
        """True when nothing differs."""
        return self.difference is None

    @property
    def exit_code(self) -> int:
        """0 when every bit is equal, 1 when one is not."""
        return 0 if self.verified else EvidenceError.exit_code


def replay(
    path: Path,
    model: str,
    *,
    trust: TrustPolicy | None = None,
    key: AuditKey | BundleKey | None = None,
    threads: int | None = None,
    home: Path | None = None,
    on_progress: OnProgress = no_progress,
) -> ReplayReport:
    """Re-execute the receipt at ``path`` on ``model`` (a name or a path) and compare.

    The set is verified first, the signature against ``trust`` where it is given. ``key`` opens the
    private half; None tries the data folder's audit key. Raises EvidenceError when the set does not
    hold or the model is another one, IncomparableError when this machine cannot execute the
    receipt's runtime class, InputError when the private half is withheld or locked.
    """
    where = home or default_home()
    held = _open(read_set(path).files, trust, key or _known_key(where))
    documents, opening = held.documents, held.opening
    receipt, core = documents.receipt, documents.receipt.core
    _require_model(core, model, where, on_progress)
    engine = find_engine(where)
    _require_engine(core, engine)
    chosen = resolve(model, where, on_progress)
    with open_model(chosen) as opened:
        # Between the two looks at it, another file may have come to its place.
        _require_digest(core, opened.digest)
        _require_class(receipt, where, engine, opened, chosen, threads, on_progress)
        job = ReplayJob(
            setup=engine.setup(threads),
            model_fd=opened.fd,
            run=opening.request,
            row_class=core.runtime_class.decode_class,
            claimed_ids=opening.sampled_ids,
            credential_id=documents.compute.body.worker_credential_id.hex(),
            renderer=receipt.observed.host.renderer,
        )
        outcome = run_job(
            job, core.runtime_class.knobs, on_progress=on_progress, model_fd=opened.fd
        )
        opened.unchanged()
    found_run = outcome.generation()
    require_renderer(receipt.observed.host.renderer, opening, found_run)
    return ReplayReport(
        receipt_digest=documents.receipt_digest,
        core_digest=documents.core_digest,
        sampled=core.sampled_tokens,
        exact=_exact_positions(core, opening, found_run),
        rows=core.prompt_tokens + core.sampled_tokens - 1,
        states=_states(core, found_run),
        signature="not_checked" if trust is None else "passed",
        difference=compare(core, opening, found_run),
        replay_ns=found_run.timings.prefill,
    )


@dataclass(frozen=True, slots=True)
class _Opened:
    """A set that holds, its private half open."""

    documents: SetDocuments
    opening: Opening


def _open(
    files: Mapping[str, bytes], trust: TrustPolicy | None, key: AuditKey | BundleKey | None
) -> _Opened:
    """Check the set as `verify` does: signed by whom trust names, else by its own worker."""
    documents = read_documents(files, find_id(files), key)
    if documents.opening is None:
        raise InputError(
            "a replay needs the private half of the receipt",
            expected="the sealed bundle beside the receipt, and the key that opens it",
            found="no bundle" if documents.bundle is None else "a bundle, and no key",
            hint="ask the holder of the receipt for both; give the key with --bundle-key-file",
        )
    context = VerifyContext(
        trust=trust,
        now=datetime.now(UTC),
        key=key,
        network_id=documents.compute.body.network_id,
    )
    verify_with(files, context).require()
    return _Opened(documents, documents.opening)


def _known_key(home: Path) -> AuditKey | None:
    """Return the data folder's own audit key, if there is one: most replays are of own runs."""
    path = default_audit_key_path(home)
    return read_audit_key(path) if os.path.lexists(path) else None


def _require_model(core: Core, model: str, home: Path, on_progress: OnProgress) -> None:
    """Hash the file before anything parses or loads it."""
    pin = find_pin(model, home)
    path = resolved(user_path(model) if pin is None else pin_path(pin, home))
    _require_digest(core, hash_file(path, home, on_progress).digest)


def _require_digest(core: Core, found: str) -> None:
    if found != core.model_digest:
        raise EvidenceError(
            "the model is not the one of the receipt",
            expected=core.model_digest,
            found=found,
            hint="replay needs the very file that ran: same weights, same quantisation",
        )


def _require_engine(core: Core, engine: InstalledEngine) -> None:
    if engine.build.library != core.engine.library:
        raise IncomparableError(
            "the receipt was made by another engine build, so bits cannot be compared",
            expected=f"{core.engine.name} {core.engine.version}, {core.engine.library}",
            found=f"{engine.build.name} {engine.build.version}, {engine.build.library}",
            hint="install the build that the receipt names",
        )
    if engine.build != core.engine:
        raise EvidenceError(
            "the receipt gives its engine library a name or version that it does not have",
            expected=f"{engine.build.name} {engine.build.version}",
            found=f"{core.engine.name} {core.engine.version}",
        )


def _require_class(
    receipt: Receipt,
    home: Path,
    engine: InstalledEngine,
    opened: OpenModel,
    model: ModelFile,
    threads: int | None,
    on_progress: OnProgress,
) -> None:
    """The receipt's runtime class must be one that is exact here."""
    runtime = receipt.core.runtime_class
    here = fingerprints.current(home, engine, on_progress)
    if here.digest != runtime.fingerprint:
        parts = fingerprints.differing_parts(
            here.short_parts(), receipt.observed.host.fingerprint_parts
        )
        raise IncomparableError(
            "this machine computes with other bits than the receipt's, so nothing can be compared",
            expected=f"numeric fingerprint {runtime.fingerprint}",
            found=f"{here.digest}; differing parts: {', '.join(parts[:6]) or 'another suite'}",
            hint="replay on a machine with the same numeric fingerprint",
        )
    row_class = runtime.decode_class
    if runtime.policy == SEQUENTIAL:
        if runtime.knobs or row_class != RowClass(1, 1):
            raise IncomparableError(
                "the receipt names a row class that the sequential policy does not have",
                expected="one row at a time, no knob",
                found=f"{row_class.floor} to {row_class.max_rows} rows, {knob_text(runtime.knobs)}",
            )
        return
    calibration = calibration_of(
        home, opened, model.facts, engine, here, threads=threads, on_progress=on_progress
    )
    for exact in calibration.combinations:
        if exact.knobs == runtime.knobs and (
            exact.row_class.floor <= row_class.floor <= MAX_FLOOR
            and 2 * row_class.floor <= row_class.max_rows <= exact.row_class.max_rows
        ):
            return
    raise IncomparableError(
        "the receipt's row class is not exact for this model on this machine",
        expected=" or ".join(
            f"{c.row_class.floor} to {c.row_class.max_rows} rows with {knob_text(c.knobs)}"
            for c in calibration.combinations
        ),
        found=f"{row_class.floor} to {row_class.max_rows} rows with {knob_text(runtime.knobs)}",
        hint="the run was not executed under a calibrated class: ask for a new one",
    )


def require_renderer(theirs: str, opening: Opening, found: Generation) -> None:
    """Another rendering is a verdict only where the same renderer made both."""
    ours = found.host.renderer
    if found.rendered_prompt != opening.rendered_prompt and ours != theirs:
        raise other_renderer(theirs, ours)


def _states(core: Core, found: Generation) -> Literal["equal", "differ", "not_committed"]:
    if core.evidence.state_root is None:
        return "not_committed"
    return "equal" if core.evidence.state_root == found.state_root else "differ"


def compare(core: Core, opening: Opening, found: Generation) -> Difference | None:
    """Return the first difference between what was claimed and what was computed again."""
    if found.rendered_prompt != opening.rendered_prompt:
        return Difference("the chat template renders another prompt", None, None)
    if found.chat_template_digest != core.chat_template_digest:
        return Difference("the model carries another chat template", None, None)
    if found.prompt_ids != opening.prompt_ids:
        index = _first_unequal(found.prompt_ids, opening.prompt_ids)
        return Difference(f"the prompt has another token at position {index}", index, None)
    if found.layers != core.evidence.layers:
        return Difference(
            f"the model has {found.layers} layers, the receipt says {core.evidence.layers}",
            None,
            None,
        )
    if found.context_tokens != core.context_tokens:
        return Difference(
            f"the request opens a context of {found.context_tokens} tokens, "
            f"the receipt says {core.context_tokens}",
            None,
            None,
        )
    candidates = [d for d in (_token(core, opening, found), _state(core, opening, found)) if d]
    if candidates:
        # A state that differs explains a token that differs at the same position.
        return min(candidates, key=lambda d: (d.position or 0, d.layer is None))
    if found.state_root != core.evidence.state_root:
        return Difference(
            "the state root differs, and the opening's leaf checks do not show where",
            None,
            None,
        )
    if base64.b64decode(found.output) != base64.b64decode(opening.output):
        return Difference("the output bytes are not the pieces of the sampled tokens", None, None)
    if found.stop_reason != core.stop_reason:
        return Difference(
            f"the generation stops by {found.stop_reason}, the receipt says {core.stop_reason}",
            None,
            None,
        )
    return None


def _token(core: Core, opening: Opening, found: Generation) -> Difference | None:
    if found.sampled_ids == opening.sampled_ids:
        return None
    index = _first_unequal(found.sampled_ids, opening.sampled_ids)
    position = core.prompt_tokens - 1 + index
    if index == len(found.sampled_ids):
        what = f"the generation is over at generated token {index - 1}, and the receipt goes on"
    else:
        what = f"generated token {index} does not follow from the logits at position {position}"
    return Difference(what, position, None)


def _state(core: Core, opening: Opening, found: Generation) -> Difference | None:
    """The root decides; the leaf checks, which nobody signed, only say where."""
    if found.state_root == core.evidence.state_root:
        return None
    index = first_difference(
        base64.b64decode(opening.leaf_checks), base64.b64decode(found.leaf_checks)
    )
    if index is None:
        return None
    layers = core.evidence.layers
    position, layer = locate(index, core.prompt_tokens, layers)
    return Difference(
        f"the committed state differs first at {row_name(position, layer, layers)}",
        position,
        layer,
    )


def _first_unequal(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return min(len(a), len(b))


def _exact_positions(core: Core, opening: Opening, found: Generation) -> int:
    """Count the generated positions whose token and (when committed) whose every state is equal."""
    claimed = base64.b64decode(opening.leaf_checks)
    computed = base64.b64decode(found.leaf_checks)
    prompt, layers = core.prompt_tokens, core.evidence.layers
    differ = found.state_root != core.evidence.state_root
    if differ and claimed == computed:
        return 0  # somewhere a state differs, and it is not known where
    exact = 0
    for i, (a, b) in enumerate(zip(opening.sampled_ids, found.sampled_ids, strict=False)):
        equal = a == b
        if equal and differ:
            first = leaf_index(prompt - 1 + i, 0, prompt, layers) * _CHECK
            last = first + (layers + 1) * _CHECK
            equal = claimed[first:last] == computed[first:last]
        exact += equal
    return exact
