"""Both halves of a receipt in words: what it proves, and what it does not."""

from __future__ import annotations

from tallystick.contracts.receipt import Receipt


def proves(receipt: Receipt) -> tuple[str, ...]:
    """Return what follows from ``receipt`` once its set is verified."""
    core, evidence = receipt.core, receipt.core.evidence
    tokens = f"{core.sampled_tokens} tokens after {core.prompt_tokens} prompt tokens"
    engine = f"{core.engine.name} {core.engine.version}, policy {core.runtime_class.policy}"
    level = receipt.observed.enforcement_level
    lines = [
        f"The signer states that model {core.model_digest} answered one request with {tokens}.",
        f"It names what ran: {engine}; sandbox {core.sandbox.profile}, enforced: {level}.",
        f"Model and counts are worth {core.canonical_compute_units} compute units (ruleset v3).",
        "Receipt and telemetry are, byte for byte, what was signed.",
    ]
    if evidence.state_root is not None:
        lines.append(
            f"The signer is bound to {evidence.state_leaves} intermediate states:"
            " `replay` recomputes them all, bit for bit."
        )
    if evidence.gemm_trace_root is not None:
        lines.append(
            "The signer is bound to a sketch of the first 64 elements of every matrix product."
        )
    if evidence.expert_route_root is not None:
        lines.append("The signer is bound to the experts that each layer chose for each token.")
    return tuple(lines)


def does_not_prove(receipt: Receipt) -> tuple[str, ...]:
    """Return what does not follow from ``receipt``, however well its set verifies."""
    evidence = receipt.core.evidence
    lines = [
        "That the statement is true: a signer can lie, and only `replay` executes it again.",
        "That the answer is right, or the model unbiased.",
        "That the input is what its provider published: there is no source attestation.",
    ]
    if receipt.observed.enforcement_level == "none":
        lines.append("That nothing leaked or was read besides: no isolation was enforced.")
    if evidence.state_root is None:
        lines.append("Anything about intermediate states: none were committed to.")
    if evidence.gemm_trace_root is not None:
        lines.append(
            "Anything by the sketches alone: they cover a prefix of each product, 4 bits a value,"
            " and are no kernel trace."
        )
    return tuple(lines)
