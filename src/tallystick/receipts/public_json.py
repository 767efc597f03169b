"""Make the public document of a compute receipt, and hold one against what it repeats.

Everything comes from the signed body, the bundle's public part and the receipt's core: no private
value is looked at (docs/spec/public-receipt.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from tallystick.canonical.hashing import format_digest
from tallystick.canonical.json import JSONValue
from tallystick.compute.rules import RULES_V3
from tallystick.contracts.bundle import BundlePublic
from tallystick.contracts.codec import encode
from tallystick.contracts.compute_receipt import EvidenceLevel, TraceEvidence, receipt_id
from tallystick.contracts.public_receipt import (
    PUBLIC_RECEIPT_SCHEMA,
    Artifacts,
    ExpertRouteFigures,
    Mint,
    PrivacyFlags,
    PublicReceipt,
    SemanticScheduleFigures,
)
from tallystick.contracts.receipt import Core
from tallystick.contracts.request import PRODUCER
from tallystick.errors import EvidenceError
from tallystick.evidence.portable import ScheduleKind
from tallystick.evidence.routes import last_layer_from, route_rows
from tallystick.receipts.compute_case import ComputeCase, NotChecked, StepOutcome
from tallystick.receipts.mint import MintFacts, assess

_WHERE: Final = "public receipt"
# Named alike in the signed body and in the document.
_NUMBERS: Final = (
    "replica_slot",
    "prefill_tokens",
    "decode_tokens",
    "schedule_event_count",
    "trace_event_count",
    "canonical_compute_units",
    "timestamp",
    "issued_epoch",
    "expires_epoch",
)
_DIGESTS: Final = (
    "operation_schedule_commitment",
    "cu_ruleset_id",
    "trace_scheme_id",
    "model_profile_id",
    "runtime_class_id",
    "runtime_manifest_hash",
    "shape_profile_id",
)


@dataclass(frozen=True, slots=True)
class PublicNames:
    """Names that the document repeats: of the sealed bundle (raw), and of the geoai receipt.

    ``bundle_id`` is None where the bundle is withheld.
    """

    bundle_id: bytes | None
    receipt_digest: str


def public_receipt(case: ComputeCase, names: PublicNames) -> PublicReceipt:
    """Return the document of a receipt whose steps hold.

    Raises EvidenceError for a manifest or evidence that does not, and ValueError without the
    bundle.
    """
    public = case.documents.public
    if public is None or names.bundle_id is None:
        raise ValueError("the public document repeats values of the bundle")
    core = case.documents.core
    architecture = case.architecture(public)
    routes = core.evidence.expert_route_root
    return PublicReceipt(
        **_of_receipt(case, names),
        verification_bundle_id=format_digest(names.bundle_id),
        schedule_kind=case.evidence(public).kind.name.lower(),
        semantic_compute_units_v3=case.derived(public).semantic_units,
        semantic_schedule=_semantic_figures(case, public),
        expert_route=ExpertRouteFigures(routes, 0 if routes is None else _route_rows(case, public)),
        verification_epoch=public.verification_epoch,
        artifacts=_artifacts(case, public),
        mint=_mint(case, experts=architecture.has_experts),
    )


def _of_receipt(case: ComputeCase, names: PublicNames) -> dict[str, Any]:
    """Return the fields that follow from the signed body and the core alone."""
    body, core = case.body, case.documents.core
    return {
        "schema": PUBLIC_RECEIPT_SCHEMA,
        "producer": PRODUCER,
        "receipt_id": format_digest(receipt_id(body)),
        "receipt_digest": names.receipt_digest,
        "core_digest": case.documents.core_digest,
        "network_id": format_digest(body.network_id),
        "job_class": body.job_class.name.lower(),
        "evidence_level": body.evidence_level.name.lower(),
        "trace_evidence": body.trace_evidence.name.lower(),
        "prefill_graph_steps": body.prefill_tokens,
        "decode_graph_steps": body.decode_tokens - 1,
        "disclosure": core.disclosure,
        "privacy": privacy_flags(core, traced=body.trace_evidence is not TraceEvidence.ABSENT),
        **{name: getattr(body, name) for name in _NUMBERS},
        **{name: format_digest(getattr(body, name)) for name in _DIGESTS},
    }


def privacy_flags(core: Core, *, traced: bool) -> PrivacyFlags:
    """Return where each private value of a run is.

    With public disclosure the core carries plain digests of prompt and output, which a guess can be
    tested against; ids follow from the texts, so their flags say the same. ``traced`` is whether
    matrix products were sketched.
    """
    text = "sealed" if core.disclosed is None else "digest_published"
    routed = core.evidence.expert_route_root is not None
    return PrivacyFlags(
        prompt_text=text,
        prompt_token_ids=text,
        generated_token_ids=text,
        output_text=text,
        openings="sealed",
        owner_salt="sealed",
        signing_keys="withheld",
        gemm_trace="sealed" if traced else "not_gathered",
        expert_routes="sealed" if routed else "not_gathered",
    )


def check_public_receipt(
    found: PublicReceipt, case: ComputeCase, names: PublicNames
) -> StepOutcome:
    """Derive every field of the document again, as far as there is a bundle to derive it from.

    Raises EvidenceError naming the first field that differs, with the value that it should have.
    """
    whole = case.documents.public is not None
    expected = public_receipt(case, names) if whole else _without_bundle(found, case, names)
    if found != expected:
        path, wanted, given = next(_differences("", encode(expected), encode(found)))
        raise EvidenceError(
            f"{_WHERE}: {path} is not what receipt and bundle say", expected=wanted, found=given
        )
    if whole:
        return "every field of the public document derived again"
    return NotChecked("of the public document only what the receipts say was derived again")


def _without_bundle(found: PublicReceipt, case: ComputeCase, names: PublicNames) -> PublicReceipt:
    """Return what the document has to be, as far as body and core decide it.

    Open remain: the bundle's id, the figures of the semantic schedule and of the routes, the size
    of the model, and whether it has experts, which one of the gates depends on.
    """
    body, core = case.body, case.documents.core
    routes = core.evidence.expert_route_root
    experts = routes is not None or found.mint == _mint(case, experts=True)
    semantic = body.cu_ruleset_id == RULES_V3.ruleset_id
    observed = body.evidence_level is EvidenceLevel.GRAPH or body.trace_event_count > 0
    kind = found.schedule_kind
    if body.evidence_level is EvidenceLevel.NONE or observed:
        kind = (ScheduleKind.OBSERVED if observed else ScheduleKind.SEMANTIC).name.lower()
    return replace(
        found,
        **_of_receipt(case, names),
        schedule_kind=kind,
        semantic_compute_units_v3=body.canonical_compute_units
        if semantic
        else found.semantic_compute_units_v3,
        expert_route=ExpertRouteFigures(
            routes, 0 if routes is None else found.expert_route.route_event_count
        ),
        verification_epoch=body.issued_epoch,
        artifacts=Artifacts(
            engine_name=core.engine.name,
            engine_version=core.engine.version,
            engine_library=core.engine.library,
            model_digest=core.model_digest,
            model_bytes=found.artifacts.model_bytes,
        ),
        mint=_mint(case, experts=experts),
    )


def _mint(case: ComputeCase, *, experts: bool) -> Mint:
    routes = case.documents.core.evidence.expert_route_root
    return assess(MintFacts(case.body, experts=experts, routes=routes is not None))


def _differences(
    path: str, expected: JSONValue, found: JSONValue
) -> Iterator[tuple[str, str, str]]:
    """Yield path and both values of every difference, in the order of the document's fields."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key, value in expected.items():
            yield from _differences(f"{path}.{key}".lstrip("."), value, found[key])
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, (left, right) in enumerate(zip(expected, found, strict=True)):
            yield from _differences(f"{path}[{index}]", left, right)
    elif expected != found:
        yield path, _shown(expected), _shown(found)


def _shown(value: JSONValue) -> str:
    if isinstance(value, list):
        return f"{len(value)} items"
    return ascii(value)[:100] if isinstance(value, str) else str(value)


def _semantic_figures(case: ComputeCase, public: BundlePublic) -> SemanticScheduleFigures:
    semantic = case.derived(public).semantic
    return SemanticScheduleFigures(
        format_digest(semantic.commitment), semantic.operations, semantic.expert_routes
    )


def _route_rows(case: ComputeCase, public: BundlePublic) -> int:
    body = case.body
    return route_rows(
        len(case.architecture(public).layers),
        body.prefill_tokens,
        body.decode_tokens,
        last_from=last_layer_from(case.documents.core.runtime_class.policy, body.prefill_tokens),
    )


def _artifacts(case: ComputeCase, public: BundlePublic) -> Artifacts:
    manifest, engine = case.manifest(public), case.documents.core.engine
    profile = manifest.model_profile
    return Artifacts(
        engine_name=engine.name,
        engine_version=engine.version,
        engine_library=engine.library,
        model_digest=format_digest(profile.model_digest),
        model_bytes=profile.model_bytes,
    )
