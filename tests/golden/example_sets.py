"""Artifact sets of every kind without an engine, with fixed randomness and invented values.

The states are invented too, but by a rule (``row``), so that a checker can recompute their roots.
"""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tallystick.bundles.match import no_bundle
from tallystick.canonical.hashing import format_digest, sha256
from tallystick.compute.architecture import (
    Architecture,
    DeltaNetMixer,
    ExpertFeedForward,
    decode_architecture,
)
from tallystick.compute.operations import (
    ExpertGemm,
    ExpertRoute,
    GatedDeltaNet,
    Gemm,
    KvCacheWrite,
    Operation,
    RmsNorm,
)
from tallystick.compute.schedule import ScheduledOperation
from tallystick.contracts.assignment import credential_id
from tallystick.contracts.generation import Generation
from tallystick.contracts.request import InferenceRun
from tallystick.contracts.runtime import RowClass, RuntimeClass
from tallystick.evidence.gemm_trace import gemm_root, make_trace
from tallystick.evidence.observed import ObservedEvidence, encode_observed
from tallystick.evidence.routes import ExpertRoutes, RouteBuilder, encode_routes
from tallystick.evidence.schedule import (
    OperationSchedule,
    ScheduleBuilder,
    SchedulePhase,
    pack_indexes,
)
from tallystick.evidence.state_tree import StateTree, leaf_count, row_digests
from tallystick.models.manifest import PinnedFacts, Runtime, build_manifest
from tallystick.receipts.build import BuiltSet, Sealing, SetInputs
from tallystick.telemetry.log import encode_log
from tests.support import sets
from tests.support.builds import build_set
from tests.support.manifests import family_facts

#: The audit key of every set here: an example that protects nothing.
AUDIT_KEY = sets.AUDIT_KEY
PROMPT_IDS = sets.PROMPT_IDS
SAMPLED_IDS = sets.SAMPLED_IDS[:3]
POSITIONS = len(PROMPT_IDS) + len(SAMPLED_IDS) - 1


@dataclass(frozen=True, slots=True)
class Kind:
    """What a run was asked for, of which model."""

    parts: tuple[str, ...]
    family: str = "qwen35moe"
    sequential: bool = False
    public: bool = False


KINDS: dict[str, Kind] = {
    "states and gemm of experts, sequential": Kind(("states", "gemm"), sequential=True),
    "all of experts, public": Kind(("states", "graph", "gemm"), public=True),
    "states of experts": Kind(("states",)),
    "gemm of experts, sequential": Kind(("gemm",), sequential=True),
    "states of a dense model": Kind(("states",), "gemma3"),
    "gemm of a dense model": Kind(("gemm",), "qwen2"),
    "graph of a dense model, sequential": Kind(("graph",), "llama", sequential=True),
    "nothing": Kind((), "gemma2", public=True),
}
COMMITTED = next(iter(KINDS))


def row(layer: int, position: int, values: int) -> bytes:
    """Return the float32 values of a row: layer + position / 16 + place / 4096, all exact."""
    start = layer + position / 16
    return struct.pack(f"<{values}f", *(start + place / 4096 for place in range(values)))


@cache
def example(name: str) -> BuiltSet:
    """Return the set called ``name``; the same bytes each time."""
    kind = KINDS[name]
    facts = replace(
        family_facts(kind.family),
        context_train=4096,
        chat_template_digest=sets.fake_digest("template"),
    )
    runtime = _runtime(kind)
    context = 4096 if kind.sequential else 256
    generation = sets.make_generation(
        context_tokens=context, layers=facts.layers, sampled_ids=SAMPLED_IDS
    )
    model = PinnedFacts(facts, sets.fake_digest("model"), 123_456_789, None)
    manifest = build_manifest(
        model, Runtime(sets.make_engine(), runtime, generation.platform, context)
    )
    run = _run(kind)
    generation = _rendered(run, generation)
    papers = sets.make_papers(run, manifest, sets.SIGNER, name)
    architecture = decode_architecture(manifest.model_profile.architecture)
    evidence = _evidence(kind, run, architecture, credential_id(papers.papers.credential))
    return build_set(
        SetInputs(
            run=run,
            generation=replace(generation, **evidence),
            runtime_class=runtime,
            engine=sets.make_engine(),
            manifest=manifest,
            papers=papers.papers,
            facts=sets.make_facts(),
            telemetry=encode_log(sets.make_events(len(SAMPLED_IDS))),
            materialised=no_bundle(run.model_digest),
        ),
        Sealing(
            AUDIT_KEY,
            sets.random_bytes(f"{name} salt", 32),
            sets.random_bytes(f"{name} nonce", 24),
            papers.prompt_nonce,
            papers.output_nonce,
        ),
        sets.SIGNER,
        sets.record_anywhere,
    )


def _runtime(kind: Kind) -> RuntimeClass:
    if not kind.sequential:
        rows = RowClass(2, 4)
        return sets.make_class(prompt_class=rows, decode_class=rows)
    one = RowClass(1, 1)
    return sets.make_class(policy="sequential", knobs=(), prompt_class=one, decode_class=one)


def _run(kind: Kind) -> InferenceRun:
    """Return the request: a chat that samples when it is public, else greedy and raw."""
    base = sets.make_public()[0] if kind.public else sets.make_run()
    if kind.sequential:
        base = replace(base, policy="sequential", parse_special=True)
    return replace(base, evidence=kind.parts)


def _rendered(run: InferenceRun, generation: Generation) -> Generation:
    if run.chat is None:
        return generation
    chat = sets.make_public()[1]
    return replace(
        generation,
        rendered_prompt=chat.rendered_prompt,
        chat_template_digest=chat.chat_template_digest,
    )


def _evidence(
    kind: Kind, run: InferenceRun, model: Architecture, credential: bytes
) -> dict[str, Any]:
    """Return the fields of a Generation about the evidence that was asked for."""
    blind = bytes.fromhex(run.blind)
    found: dict[str, Any] = {
        **sets.no_evidence(), "state_root": None, "state_leaves": 0, "leaf_checks": ""
    }  # fmt: skip
    if "states" in kind.parts:
        found |= _states(model, blind, credential)
    if {"graph", "gemm"} & {*kind.parts}:
        found |= _observed(kind, model, blind)
    experts = model.layers[0].feed_forward
    if isinstance(experts, ExpertFeedForward) and {"states", "gemm"} & {*kind.parts}:
        routes = _routes(kind, len(model.layers), experts)
        found["routes"] = base64.b64encode(encode_routes(routes)).decode()
        found["expert_route_root"] = format_digest(routes.root(blind))
    return found


def _states(model: Architecture, blind: bytes, credential: bytes) -> dict[str, Any]:
    layers, prompt = len(model.layers), len(PROMPT_IDS)
    tree = StateTree(blind, layers, prompt, credential_id=credential)
    for position in range(POSITIONS):
        due = position >= prompt - 1

        def digests(layer: int, values: int, position: int = position) -> list[bytes]:
            return row_digests(row(layer, position, values), 4 * values)

        tree.push_digests(
            position,
            1,
            [digests(layer, model.hidden) for layer in range(layers - 1)],
            digests(layers - 1, model.hidden) if due else [],
            digests(layers, model.vocabulary) if due else [],
        )
    return {
        "state_root": format_digest(tree.root()),
        "worker_state_root": format_digest(tree.worker_root()),
        "state_leaves": leaf_count(prompt, len(SAMPLED_IDS), layers),
        "leaf_checks": base64.b64encode(tree.leaf_checks).decode(),
    }


def _observed(kind: Kind, model: Architecture, blind: bytes) -> dict[str, Any]:
    schedule = _schedule(kind, model)
    trace = None
    if "gemm" in kind.parts:
        trace = make_trace(schedule, _sketches(schedule))
    encoded = encode_observed(ObservedEvidence(schedule, trace))
    return {
        "observed_evidence": base64.b64encode(encoded).decode(),
        "schedule_events": schedule.events,
        "gemm_trace_root": None if trace is None else format_digest(gemm_root(blind, trace)),
        "trace_events": 0 if trace is None else trace.events,
    }


def _sketches(schedule: OperationSchedule) -> list[bytes]:
    """Return invented sketches, without digits for elements that a product does not have."""
    found: list[bytes] = []
    for step in schedule.steps:
        for operation in (schedule.operations[index].operation for index in step.indexes()):
            if isinstance(operation, Gemm):
                elements = operation.m * operation.n * operation.batch
                digits = sha256(b"sketch %d" % len(found)).hex()[:elements]
                found.append(bytes.fromhex(digits.ljust(64, "0")))
    return found


def _schedule(kind: Kind, model: Architecture) -> OperationSchedule:
    """Return a schedule of all positions: a step each, or two chunks of a sealing pass."""
    builder = ScheduleBuilder()
    if kind.sequential:
        steps = [(SchedulePhase.PREFILL, number, 1) for number in range(len(PROMPT_IDS))]
        steps += [(SchedulePhase.DECODE, number, 1) for number in range(len(SAMPLED_IDS) - 1)]
    else:
        steps = [(SchedulePhase.SEALING, 0, 4), (SchedulePhase.SEALING, 1, POSITIONS - 4)]
    position = 0
    for phase, number, tokens in steps:
        places = [builder.place(item) for item in _operations(model, tokens)]
        builder.add(phase, number, position, tokens, pack_indexes(places))
        position += tokens
    return builder.finish()


def _operations(model: Architecture, tokens: int) -> list[ScheduledOperation]:
    """Return the operations of one evaluation: a few of each layer."""
    hidden = model.hidden
    found: list[ScheduledOperation] = []
    for stage, layer in enumerate(model.layers, 1):
        forward = layer.feed_forward
        operations: list[Operation] = [
            RmsNorm(hidden, tokens),
            Gemm(hidden, tokens, hidden, 1),
            KvCacheWrite(2 * hidden * tokens),
        ]
        if isinstance(forward, ExpertFeedForward):
            operations += [
                Gemm(forward.experts, tokens, hidden, 1),
                ExpertRoute(tokens, forward.experts, forward.used),
                ExpertGemm(forward.width, tokens, hidden, forward.experts, forward.used),
            ]
        found += [ScheduledOperation(stage, operation) for operation in operations]
        if isinstance(layer.mixer, DeltaNetMixer):
            found.append(ScheduledOperation(0, GatedDeltaNet(tokens, 2, 16, 16)))
    found.append(ScheduledOperation(0, Gemm(model.vocabulary, tokens, hidden, 1)))
    return found


def _routes(kind: Kind, layers: int, experts: ExpertFeedForward) -> ExpertRoutes:
    """Return routes in which each layer's choice moves on by one with each position."""
    last_from = 0 if kind.sequential else len(PROMPT_IDS) - 1
    builder = RouteBuilder(layers, experts.experts, experts.used, last_from=last_from)
    for position in range(POSITIONS):
        rows = [
            pack_indexes([(layer + position + i) % experts.experts for i in range(experts.used)])
            for layer in range(layers)
        ]
        builder.push(position, 1, [*rows[:-1], rows[-1] * builder.rows_due(position, 1)])
    return builder.finish()
