"""One run, from a prompt to a signed set on disk: the supervisor's whole job."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.attest.auditkeys import (
    default_audit_key,
    default_audit_key_path,
    read_audit_key,
)
from tallystick.attest.bundlekeys import AuditKey
from tallystick.attest.keyfiles import commit_key, default_key
from tallystick.attest.keys import SigningKey
from tallystick.bundles.check import CheckedBundle
from tallystick.bundles.match import Materialised, no_bundle
from tallystick.canonical.hashing import format_digest, sha256
from tallystick.contracts.manifest_parts import ModelProfile
from tallystick.contracts.receipt import Receipt
from tallystick.contracts.request import InferenceRun
from tallystick.contracts.sandbox_profile import SandboxProfile
from tallystick.contracts.ticket import Ticket
from tallystick.execution.launch import (
    InstalledEngine,
    OnProgress,
    OnText,
    find_engine,
    no_progress,
    no_text,
)
from tallystick.execution.templates import Templates
from tallystick.models.manifest import (
    PinnedFacts,
    Runtime,
    build_manifest,
    model_profile,
    pinned_facts,
    require_pinned_engine,
)
from tallystick.models.registry import ModelFile, open_model, resolve
from tallystick.receipts.build import SealedSet, SetInputs, finish_set, seal_set
from tallystick.store.artifacts import OutputPlace, prepare, prepare_under
from tallystick.store.home import home as default_home
from tallystick.worker.declared import check_declared, materialised_for
from tallystick.worker.execute import (
    Executed,
    Prepared,
    Settled,
    Show,
    declared_profile,
    execute,
    named_profile,
    prepare_class,
)
from tallystick.worker.keys import SignerChoice, existing_key, require_apart
from tallystick.worker.papers import record_in
from tallystick.worker.publishing import Planned
from tallystick.worker.request import RunOptions
from tallystick.worker.sources import DeclaredOrder, Order, OwnOrder, TicketOrder


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished run. ``output`` and ``text`` are private unless the run was public.

    ``default_key_created`` and ``default_audit_key_created`` say that a signing key, and a key that
    opens the run's bundle, were made because there was none.
    """

    directory: Path
    receipt_id: str
    receipt_digest: str
    core_digest: str
    compute_receipt_id: str
    receipt: Receipt
    output: bytes = field(repr=False)
    seed: int | None
    signer: str
    default_key_created: bool
    default_audit_key_created: bool

    @property
    def text(self) -> str:
        """The output as text, undecodable bytes replaced."""
        return self.output.decode("utf-8", "replace")


Guard = Callable[[Planned], None]


def no_guard(_: Planned) -> None:
    """Guard nothing: whoever asked for the run waits for it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a set is made and with which keys: None chooses the defaults of the data folder.

    ``output_dir`` is new or empty and gets the set itself; else a folder named by its id is made
    in ``receipts``, or in the data folder's receipts. With ``templates`` the run's child is forked
    by one of them, and not started afresh. ``bundles`` are the directories in which the bundle of a
    run is looked for, by its digest; ``checked`` is the bundle itself where it was just checked.
    """

    output_dir: Path | None = None
    receipts: Path | None = None
    signer: SignerChoice = field(default_factory=SignerChoice)
    audit_key: Path | None = None
    home: Path | None = None
    templates: Templates | None = None
    bundles: tuple[Path, ...] = ()
    checked: CheckedBundle | None = None


def run(
    model: str,
    options: RunOptions,
    *,
    output_dir: Path | None = None,
    signer: SignerChoice | None = None,
    audit_key: Path | None = None,
    home: Path | None = None,
    on_text: OnText = no_text,
    on_progress: OnProgress = no_progress,
) -> RunResult:
    """Run ``model`` (a name or a path) as ``options`` say and leave a signed set of files.

    ``output_dir`` has to be new or empty; None chooses ``receipts/<id>`` in the data folder. The
    bundle is sealed with the 32-byte key in the file ``audit_key``; None takes the data folder's,
    made on first use. Raises UsageError, InputError, IncomparableError, UnavailableError or
    RunFailedError; then no receipt exists and nothing is left behind.
    """
    place = Place(
        output_dir=output_dir, signer=signer or SignerChoice(), audit_key=audit_key, home=home
    )
    return _run(model, OwnOrder(options), place, Show(on_text, on_progress))


def run_ticket(
    model: str,
    ticket: Ticket,
    *,
    threads: int | None = None,
    ring_depth: int = 0,
    place: Place | None = None,
    on_text: OnText = no_text,
    on_progress: OnProgress = no_progress,
) -> RunResult:
    """Execute one slot of a job that a scheduler ordered; the rest is as for :func:`run`.

    Raises InputError also when the ticket is for another worker, another model, or expired.
    """
    request = ticket.request
    options = RunOptions(
        prompt=request.prompt, policy=request.policy, threads=threads, ring_depth=ring_depth
    )
    order = TicketOrder(ticket, options)
    return _run(model, order, place or Place(), Show(on_text, on_progress))


def run_declared(
    model: str,
    declared: InferenceRun,
    *,
    threads: int | None = None,
    ring_depth: int = 0,
    place: Place | None = None,
    guard: Guard = no_guard,
    show: Show | None = None,
) -> RunResult:
    """Execute a declared run; the rest is as for :func:`run`. ``show`` None shows nobody anything.

    ``guard`` is called with what is to be written when everything is signed, right before: what it
    raises leaves no set. Raises InputError also when the model is not the declared one or the
    bundle is not in ``place``, EvidenceError when the bundle is not what it or the run declares; no
    model has been loaded then.
    """
    options = RunOptions(
        prompt=declared.prompt, policy=declared.policy, threads=threads, ring_depth=ring_depth
    )
    order = DeclaredOrder(declared, options)
    return _run(model, order, place or Place(), show or Show(), guard)


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys that sign and seal; None for one that is yet to be made, at the last moment."""

    signer: SigningKey | None
    audit: AuditKey | None


@dataclass(frozen=True, slots=True)
class _Sealed:
    """What is left of a run when it is sealed. ``output`` is the answer, for whoever asked."""

    contents: SealedSet
    output: bytes = field(repr=False)
    seed: int | None
    signer: SigningKey
    signer_created: bool
    audit: AuditKey
    audit_created: bool


def _run(model: str, order: Order, where: Place, show: Show, guard: Guard = no_guard) -> RunResult:
    order.require_sound()
    # Before anything is made, and long before a model is loaded.
    bundle = materialised_for(order.request, where.bundles, where.checked)
    home = where.home or default_home()
    if where.output_dir is not None:
        require_apart(home, where.output_dir)
    # A key inside the output is told as that, not as an output that is not empty.
    audit = _existing_audit_key(where.audit_key, home, where.output_dir)
    with _claim(where, home) as place:
        keys = _Keys(existing_key(where.signer, home), audit)
        sealed = _sealed(model, order, bundle, where, place.directory, keys, show)
        # From here on the answer is all that is held of what the run read, wrote and drew.
        record = record_in(place.directory)
        built = finish_set(sealed.contents, sealed.signer, sealed.audit, record)
        marker = format_digest(sha256(built.marker.data))
        guard(Planned(built.receipt_id, built.receipt_digest, marker))
        directory = place.write(built.members, built.marker)
    return RunResult(
        directory=directory,
        receipt_id=built.receipt_id,
        receipt_digest=built.receipt_digest,
        core_digest=built.core_digest,
        compute_receipt_id=built.compute_receipt_id,
        receipt=built.receipt,
        output=sealed.output,
        seed=sealed.seed,
        signer=sealed.signer.public.key_id,
        default_key_created=sealed.signer_created,
        default_audit_key_created=sealed.audit_created,
    )


def _sealed(
    model: str,
    order: Order,
    bundle: Materialised | None,
    where: Place,
    directory: Path,
    keys: _Keys,
    show: Show,
) -> _Sealed:
    """Settle, execute and seal; whatever is private is gone on return, but for the answer."""
    home = where.home or default_home()
    engine = find_engine(home)
    declared = order.request
    name = None if declared is None else declared.sandbox_profile
    held = named_profile(name, order.options.sandbox)
    chosen = resolve(model, home, show.on_progress, held)
    with open_model(chosen) as opened:
        pinned, profile = _held_model(chosen, engine)
        run, sandbox = _declared(order, chosen, home)
        # Made now that all is there that has to be.
        signer, created = (keys.signer, False) if keys.signer else default_key(home)
        # Papers that cannot give a receipt are refused here, before any engine is started.
        papers = order.papers(
            run, signer.public, profile.model_profile_id, profile.native_context_tokens
        )
        settled = Settled(run, papers, order.options, pinned, engine, sandbox)
        prepared = prepare_class(
            home, opened, chosen, engine, order.options, sandbox, show.on_progress
        )
        executed = execute(settled, opened, prepared, show, where.templates)
    # Made now that there is something to seal.
    audit, made = (keys.audit, False) if keys.audit else default_audit_key(home, directory)
    inputs = _inputs(settled, prepared, executed, bundle or no_bundle(chosen.digest))
    return _Sealed(
        contents=seal_set(inputs, settled.papers.sealing(audit), signer),
        output=base64.b64decode(executed.generation.output),
        seed=run.seed,
        signer=signer,
        signer_created=created,
        audit=audit,
        audit_created=made,
    )


def _held_model(model: ModelFile, engine: InstalledEngine) -> tuple[PinnedFacts, ModelProfile]:
    """Hold model and engine to the pin, before anything runs; without units it stops here too."""
    pinned = pinned_facts(model)
    profile = model_profile(pinned)
    require_pinned_engine(pinned, engine.build)
    return pinned, profile


def _declared(order: Order, model: ModelFile, home: Path) -> tuple[InferenceRun, SandboxProfile]:
    """Return the run and what has to hold it."""
    run = order.declared(model, commit_key(home))
    check_declared(run)  # reading a large model for its digest takes its time
    return run, declared_profile(run, order.options.sandbox)


def _inputs(
    settled: Settled, prepared: Prepared, executed: Executed, materialised: Materialised
) -> SetInputs:
    runtime = Runtime(
        settled.engine.build,
        prepared.runtime_class,
        executed.generation.platform,
        executed.generation.context_tokens,
    )
    return SetInputs(
        run=settled.run,
        generation=executed.generation,
        runtime_class=prepared.runtime_class,
        engine=settled.engine.build,
        manifest=build_manifest(settled.model, runtime),
        papers=settled.papers.papers,
        facts=executed.facts,
        telemetry=executed.telemetry,
        materialised=materialised,
        audit=executed.audit,
    )


def _claim(where: Place, home: Path) -> OutputPlace:
    if where.output_dir is not None:
        return prepare(where.output_dir)
    return prepare_under(where.receipts or home / "receipts")


def require_keys(where: Place) -> None:
    """Raise InputError where a run in this place would: a key that is named is missing or bad.

    A default key that is yet to be made is fine.
    """
    home = where.home or default_home()
    existing_key(where.signer, home)
    _existing_audit_key(where.audit_key, home, where.receipts)


def _existing_audit_key(path: Path | None, home: Path, output: Path | None) -> AuditKey | None:
    """Return the key in the file ``path``, or the default one; None when that is yet to be made."""
    default = default_audit_key_path(home)
    if path is None and not os.path.lexists(default):
        return None
    return read_audit_key(path or default, (output or home / "receipts",))
