"""Steps 11 and 13 about the compute receipt: its openings, and the receipt it belongs to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from tallystick.canonical.hashing import format_digest, parse_digest, sha256
from tallystick.contracts.bundle import BundlePrivate, BundlePublic
from tallystick.contracts.commitments import output_commitment_palw, prompt_commitment_palw
from tallystick.contracts.digests import runtime_class_bytes
from tallystick.contracts.manifest_parts import shape_of
from tallystick.errors import EvidenceError
from tallystick.receipts.compute_case import (
    BUNDLE_WITHHELD,
    PRIVATE_LOCKED,
    ComputeCase,
    NotChecked,
    StepOutcome,
)
from tallystick.receipts.papers import require_same

_SALTS: Final = ("owner_salt", "request_nonce", "prompt_nonce", "output_nonce")
_EPOCH_START: Final = datetime(1970, 1, 1, tzinfo=UTC)


def check_palw_openings(case: ComputeCase) -> StepOutcome:
    """11 openings, the compute receipt's half: the prompt's commitment, counts, fresh nonces."""
    public, private = case.documents.public, case.documents.private
    if public is None:
        return NotChecked(BUNDLE_WITHHELD)
    if private is None:
        return NotChecked(PRIVATE_LOCKED)
    opening = case.opening(private)
    salts = {getattr(private, name) for name in _SALTS}
    if len(salts) != len(_SALTS) or bytes(32) in salts:
        raise EvidenceError(
            "the bundle's salts and nonces are not fresh",
            expected=f"{len(_SALTS)} different ones, none of them zero",
        )
    for name, ids in (
        ("prefill_tokens", opening.prompt_ids),
        ("decode_tokens", opening.sampled_ids),
    ):
        require_same(f"compute receipt: {name}", len(ids), getattr(case.body, name))
    require_same(
        "bundle.prompt_commitment",
        prompt_commitment_palw(private.prompt_nonce, opening.prompt_ids),
        public.prompt_commitment,
    )
    return "the prompt opens its commitment; both counts are those of the ids"


def check_core(case: ComputeCase) -> StepOutcome:
    """13 compute receipt against the core: each names the other, and they say the same."""
    public, private = case.documents.public, case.documents.private
    _check_claims(case)
    if public is None:
        return NotChecked(f"{BUNDLE_WITHHELD}: digest, counts and compute units hold")
    _check_manifest(case, public)
    if private is None:
        return NotChecked(f"{PRIVATE_LOCKED}: all but the output commitment holds")
    _check_output(case, private)
    return "output commitment, digest, counts and compute units bind receipt and core to each other"


def timestamp_ms(text: str) -> int:
    """Return a document's timestamp as milliseconds since the Unix epoch."""
    return (datetime.fromisoformat(text) - _EPOCH_START) // timedelta(milliseconds=1)


def _check_claims(case: ComputeCase) -> None:
    documents, body = case.documents, case.body
    core, observed = documents.core, documents.observed
    for name, expected, found in (
        (
            "observed.compute_receipt_digest",
            format_digest(sha256(documents.palw)),
            observed.compute_receipt_digest or "null",
        ),
        ("compute receipt: timestamp", timestamp_ms(observed.end_time), body.timestamp),
        ("core.prompt_tokens", body.prefill_tokens, core.prompt_tokens),
        ("core.sampled_tokens", body.decode_tokens, core.sampled_tokens),
        (
            "core.canonical_compute_units",
            body.canonical_compute_units,
            core.canonical_compute_units,
        ),
        ("core.evidence.level", body.evidence_level.name.lower(), core.evidence.level),
    ):
        require_same(name, expected, found)


def _check_manifest(case: ComputeCase, public: BundlePublic) -> None:
    """The manifest describes the run that the core is about."""
    core, manifest = case.documents.core, case.manifest(public)
    facts = case.facts(public)
    require_same(
        "core.model_digest", format_digest(manifest.model_profile.model_digest), core.model_digest
    )
    if manifest.runtime_class.runtime_class != runtime_class_bytes(core.runtime_class):
        raise EvidenceError(
            "core.runtime_class is not that of the manifest",
            expected=manifest.runtime_class_id.hex(),
            found=core.runtime_class_id,
        )
    if manifest.shape_profile != shape_of(core.runtime_class, core.context_tokens):
        raise EvidenceError(
            "core.context_tokens is not that of the manifest's shape",
            expected=str(manifest.shape_profile.context_tokens),
            found=str(core.context_tokens),
        )
    for name in ("name", "version", "library"):
        expected, found = getattr(facts.engine, name), getattr(core.engine, name)
        require_same(f"core.engine.{name}", expected, found)
    if core.chat_template_digest is not None:
        require_same(
            "core.chat_template_digest",
            facts.chat_template_digest or "null",
            core.chat_template_digest,
        )


def _check_output(case: ComputeCase, private: BundlePrivate) -> None:
    expected = output_commitment_palw(
        private.output_nonce,
        case.opening(private).sampled_ids,
        parse_digest(case.documents.core_digest),
    )
    require_same("compute receipt: output_commitment", expected, case.body.output_commitment)
