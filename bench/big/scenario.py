"""One run of the benchmark: run, verify and replay, with what each has to find."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.big.commands import Done, Program
from bench.big.geometry import Scale
from tallystick.attest.auditkeys import read_audit_key
from tallystick.compute.operations import Gemm
from tallystick.compute.semantic import semantic_units
from tallystick.contracts.layout import BUNDLE, COMPUTE_RECEIPT, PUBLIC_JSON, STATE
from tallystick.evidence.portable import decode_portable
from tallystick.evidence.state_tree import leaf_count
from tallystick.receipts.documents import SetDocuments, find_id, read_documents
from tallystick.store.sets import read_set

#: Matrix products of one evaluation of the 40-layer graph, at any width.
PRODUCTS: Final = 411


@dataclass(frozen=True, slots=True)
class Case:
    """What is run: a prompt that is ``prompt_tokens`` tokens long, and its evidence."""

    policy: str
    prompt: str
    prompt_tokens: int
    generated: int
    evidence: str

    @property
    def positions(self) -> int:
        """Number of positions that are evaluated."""
        return self.prompt_tokens + self.generated - 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was expected, and what was found."""

    what: str
    expected: object
    found: object

    @property
    def held(self) -> bool:
        """Whether they are the same."""
        return self.expected == self.found


@dataclass(frozen=True, slots=True)
class Outcome:
    """The three commands of a case, the set between them, and the findings."""

    case: Case
    run: Done
    verify: Done
    replay: Done
    documents: SetDocuments
    findings: tuple[Finding, ...]


def execute(case: Case, scale: Scale, program: Program, model: str, folder: Path) -> Outcome:
    """Run, verify by explicit paths and replay ``case``; the set is left in ``folder``."""
    place, audit = folder / f"set-{case.policy}", folder / "audit.key"
    sealing: tuple[str | Path, ...] = ("--audit-key-file", audit)
    ran = program.run(
        *("run", "--model", model, "--policy", case.policy, "--prompt-stdin"),
        *("--n-predict", str(case.generated), "--evidence", case.evidence),
        *(*sealing, "--output-dir", place, *program.computing),
        stdin=case.prompt,
    )
    set_id = str(ran.document["receipt_id"])
    verified = program.run(
        *("verify", *sealing),
        *("--receipt", place / COMPUTE_RECEIPT.name(set_id)),
        *("--bundle", place / BUNDLE.name(set_id)),
        *("--public-json", place / PUBLIC_JSON.name(set_id)),
        *("--state-db", place / STATE.name(set_id)),
    )
    replayed = program.run("replay", place, "--model", model, *sealing, *program.computing)
    files = read_set(place).files
    documents = read_documents(files, find_id(files), read_audit_key(audit, (place,)))
    findings = (
        *_of_the_run(case, scale, documents),
        *_of_the_verifier(verified.document),
        *_of_the_replay(case, replayed.document),
        *(_census(case, scale, documents) if "gemm" in case.evidence else ()),
    )
    return Outcome(case, ran, verified, replayed, documents, tuple(findings))


def _of_the_run(case: Case, scale: Scale, documents: SetDocuments) -> Iterator[Finding]:
    core, layers = documents.receipt.core, scale.numbers.layers
    prompt, generated = case.prompt_tokens, case.generated
    yield Finding("prompt tokens", prompt, core.prompt_tokens)
    yield Finding("generated tokens", generated, core.sampled_tokens)
    units = semantic_units(scale.architecture, prompt, generated).compute_units
    yield Finding("compute units", units, core.canonical_compute_units)
    if "states" in case.evidence:
        leaves = leaf_count(prompt, generated, layers)
        yield Finding("state leaves", leaves, core.evidence.state_leaves)


def _of_the_verifier(document: dict[str, Any]) -> Iterator[Finding]:
    (outcome,) = document["outcomes"]
    yield Finding("verdict of verify", "verified", outcome["verdict"])
    yield Finding("status of verify", "local_restored", outcome["status"])
    yield Finding("trust scope of verify", "embedded_local_snapshot", outcome["trust_scope"])


def _of_the_replay(case: Case, document: dict[str, Any]) -> Iterator[Finding]:
    yield Finding("generated positions that are bit-exact", case.generated, document["exact"])
    yield Finding("rows of the replay", case.positions, document["rows"])
    roots = ["states", "worker_states", "routes"]
    roots += ["schedule", "products"] if "gemm" in case.evidence else []
    for name in roots:
        yield Finding(f"{name} of the replay", "equal", document[name])


def _census(case: Case, scale: Scale, documents: SetDocuments) -> Iterator[Finding]:
    """What a step of the graph has, whatever its widths."""
    public, bundle = documents.public_json, documents.bundle
    routes = scale.numbers.layers * case.positions
    yield Finding("trace events", PRODUCTS * case.positions, public.trace_event_count)
    yield Finding("expert routes", routes, public.expert_route.route_event_count)
    assert bundle is not None
    schedule = decode_portable(bundle.public.evidence).schedule
    assert schedule is not None
    products = {
        index
        for index, scheduled in enumerate(schedule.operations)
        if isinstance(scheduled.operation, Gemm)
    }
    counts = {sum(index in products for index in step.indexes()) for step in schedule.steps}
    yield Finding("steps", case.positions, len(schedule.steps))
    yield Finding("matrix products of each step", {PRODUCTS}, counts)
