"""Both halves of a receipt in words: what it proves, and what it does not."""

from __future__ import annotations

from typing import Literal

from tallystick.bundles.match import MATERIALISED
from tallystick.contracts.digests import no_bundle_digest
from tallystick.contracts.receipt import Receipt


def proves(
    receipt: Receipt,
    units: Literal["derived", "claimed"] = "derived",
    source: str = "missing",
    match: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Return what follows from ``receipt`` once its set is verified.

    ``units`` says whether the compute units were derived again (step 9), which needs the bundle;
    ``source`` is the status of the source link, ``match`` who was compared in step 12.
    """
    core, evidence = receipt.core, receipt.core.evidence
    tokens = f"{core.sampled_tokens} tokens after {core.prompt_tokens} prompt tokens"
    engine = f"{core.engine.name} {core.engine.version}, policy {core.runtime_class.policy}"
    level = receipt.observed.enforcement_level
    lines = [
        f"The signer states that model {core.model_digest} answered one request with {tokens}.",
        f"It names what ran: {engine}; sandbox {core.sandbox.profile}, enforced: {level}.",
        "Receipt and telemetry are, byte for byte, what was signed.",
    ]
    if core.bundle_digest != no_bundle_digest():
        lines.append(
            f"It names what was read: bundle {core.bundle_digest}, task {core.task_digest}."
        )
    if source == "verified" and MATERIALISED in match:
        lines.append("A source key that you trust signed the tile set of the bundle that you gave.")
    elif source == "verified":
        lines.append(
            "A source key that you trust signed the tile set; the signer states that it is that of"
            " the bundle."
        )
    if level != "none":
        lines.append(
            f"The signer states that it probed the engine's process, held at level {level}, before"
            " the model was opened, and that no channel that the level promises closed was open."
        )
    if units == "derived":
        lines.append(
            f"The model that the manifest describes is worth {core.canonical_compute_units} compute"
            " units for these counts (ruleset v3)."
        )
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


def does_not_prove(
    receipt: Receipt, units: Literal["derived", "claimed"] = "derived", source: str = "missing"
) -> tuple[str, ...]:
    """Return what does not follow from ``receipt``, however well its set verifies."""
    core, evidence = receipt.core, receipt.core.evidence
    lines = [
        "That the statement is true: a signer can lie, and only `replay` executes it again.",
        "That the answer is right, or the model unbiased.",
    ]
    if source == "missing":
        lines.append(
            "That the input is what its provider published: there is no source attestation."
        )
    elif source != "verified":
        lines.append(
            "That the input is what its provider published: the source attestation is signed by no"
            " key that you trust for it."
        )
    if units == "claimed":
        lines.append(
            f"That it is worth the {core.canonical_compute_units} compute units that it claims:"
            " they are derived again with the bundle."
        )
    lines.append("That a network rewards it: the public document says why it mints nothing.")
    if receipt.observed.enforcement_level == "none":
        lines.append("That nothing leaked or was read besides: no isolation was enforced.")
    else:
        lines.append(
            "That nothing leaked by channels that were not probed: timing, caches, the result,"
            " or a fault of the kernel; no hardware attests to the machine."
        )
    if evidence.state_root is None:
        lines.append("Anything about intermediate states: none were committed to.")
    if evidence.gemm_trace_root is not None or evidence.level == "graph":
        lines.append(
            "That no operation of the schedule is missing or invented: only a replay tells."
        )
    if evidence.gemm_trace_root is not None:
        lines.append(
            "Anything by the sketches alone: they cover a prefix of each product, 4 bits a value,"
            " and are no kernel trace."
        )
    return tuple(lines)
