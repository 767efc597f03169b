"""Step 11: the private opening opens exactly the commitments of the receipt.

Error texts name fields, counts and commitments; no private value appears in them.
"""

from __future__ import annotations

import base64

from tallystick.bundles.match import (
    DECLARED,
    EXECUTED,
    check_source,
    declared_by,
    executed_by,
    require_match,
)
from tallystick.canonical.hashing import format_digest, sha256
from tallystick.contracts.digests import (
    output_commitment,
    prompt_commitment,
    request_and_run_digest,
)
from tallystick.contracts.opening import Opening
from tallystick.contracts.receipt import Core, Receipt
from tallystick.contracts.request import InferenceRun
from tallystick.contracts.sandbox_profile import at_least
from tallystick.contracts.scalars import base64_size
from tallystick.errors import EvidenceError
from tallystick.receipts.documents import SetDocuments
from tallystick.receipts.fields import require_equal
from tallystick.receipts.papers import required_level
from tallystick.receipts.steps_structure import timestamp_ns

_LEAF_CHECK_BYTES = 4


def check_openings(documents: SetDocuments, opening: Opening) -> str:
    """11 openings: request, prompt, tokens, output. Returns what was seen, in words."""
    receipt = documents.receipt
    require_equal("opening.receipt_digest", documents.receipt_digest, opening.receipt_digest)
    _check_counts(receipt.core, opening)
    _check_commitments(receipt, opening)
    _check_request(receipt, opening.request)
    _check_rendering(receipt.core, opening)
    _check_stop(receipt.core, opening.request)
    _check_disclosed(receipt.core, opening)
    core = receipt.core
    return f"{core.prompt_tokens} prompt and {core.sampled_tokens} sampled tokens, output, request"


def _check_counts(core: Core, opening: Opening) -> None:
    require_equal("opening.prompt_ids count", core.prompt_tokens, len(opening.prompt_ids))
    require_equal("opening.sampled_ids count", core.sampled_tokens, len(opening.sampled_ids))
    require_equal(
        "opening.leaf_checks length",
        _LEAF_CHECK_BYTES * core.evidence.state_leaves,
        base64_size(opening.leaf_checks),
    )


def _check_commitments(receipt: Receipt, opening: Opening) -> None:
    core, run = receipt.core, opening.request
    blind = bytes.fromhex(run.blind)
    request_digest, run_digest = request_and_run_digest(run)
    require_equal("core.request_digest", request_digest, core.request_digest)
    require_equal("observed.run_digest", run_digest, receipt.observed.run_digest)
    prompt = prompt_commitment(
        blind, core.chat_template_digest, opening.rendered_prompt, opening.prompt_ids
    )
    require_equal("core.prompt_commitment", prompt, core.prompt_commitment)
    output = output_commitment(blind, opening.sampled_ids, base64.b64decode(opening.output))
    require_equal("core.output_commitment", output, core.output_commitment)


def _check_request(receipt: Receipt, run: InferenceRun) -> None:
    """The declared and the executed run agree (the three-way match is part of it)."""
    core, observed = receipt.core, receipt.observed
    require_equal("observed.run_id", run.run_id, observed.run_id)
    require_equal("core.model_digest", run.model_digest, core.model_digest)
    require_match(DECLARED, declared_by(run), EXECUTED, executed_by(core))
    check_source(run)
    require_equal("core.runtime_class.policy", run.policy, core.runtime_class.policy)
    require_equal("core.sandbox.profile", run.sandbox_profile, core.sandbox.profile)
    if not at_least(observed.enforcement_level, run.enforcement):
        raise EvidenceError(
            "observed.enforcement_level is below what the request demands",
            expected=f"{run.enforcement} or stronger",
            found=observed.enforcement_level,
        )
    require_equal("core.disclosure", run.disclosure, core.disclosure)
    require_equal("core.evidence.level", required_level(run).name.lower(), core.evidence.level)
    if run.expires_at is not None and timestamp_ns(observed.end_time) > timestamp_ns(
        run.expires_at
    ):
        raise EvidenceError(
            "observed.end_time is after the request expired",
            expected=f"at most {run.expires_at}",
            found=observed.end_time,
        )


def _check_rendering(core: Core, opening: Opening) -> None:
    if (opening.request.chat is None) != (core.chat_template_digest is None):
        raise EvidenceError(
            "core.chat_template_digest is not what the request says",
            expected="a template digest exactly for a chat request",
        )
    if opening.request.chat is None and opening.rendered_prompt != opening.request.prompt:
        raise EvidenceError(
            "opening.rendered_prompt is not the request's prompt",
            expected="the prompt itself, since the request is no chat",
            found=f"another text, committed to by {core.prompt_commitment}",
        )


def _check_stop(core: Core, run: InferenceRun) -> None:
    if core.sampled_tokens > run.max_tokens:
        raise EvidenceError(
            "core.sampled_tokens is above the request's max_tokens",
            expected=f"at most {run.max_tokens}",
            found=str(core.sampled_tokens),
        )
    if core.stop_reason == "length":
        require_equal("core.sampled_tokens", run.max_tokens, core.sampled_tokens)
    if (run.seed is None) != (run.temperature == "0"):
        raise EvidenceError(
            "request.seed is not what the temperature says",
            expected="a seed exactly when the temperature is not 0",
        )


def _check_disclosed(core: Core, opening: Opening) -> None:
    if core.disclosed is None:
        return
    prompt = format_digest(sha256(opening.request.prompt.encode("utf-8")))
    require_equal("core.disclosed.prompt_digest", prompt, core.disclosed.prompt_digest)
    output = format_digest(sha256(base64.b64decode(opening.output)))
    require_equal("core.disclosed.output_digest", output, core.disclosed.output_digest)
