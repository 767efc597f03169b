"""The public document, derived again. From docs/spec/public-receipt.md."""

from __future__ import annotations

from typing import Any

from tests.golden.independent.basics import same, text
from tests.golden.independent.documents import document
from tests.golden.independent.evidence import NO_ROUTES, STATE_COMMITTED, route_rows
from tests.golden.independent.receipts import JOB_CLASSES, LEVELS, LOCAL, TRACES, slots

Fields = dict[str, Any]

NUMBERS = (
    "schedule_event_count", "trace_event_count", "canonical_compute_units", "timestamp",
    "issued_epoch", "expires_epoch",
)  # fmt: skip
DIGESTS = (
    "operation_schedule_commitment", "cu_ruleset_id", "trace_scheme_id", "model_profile_id",
    "runtime_class_id", "runtime_manifest_hash", "shape_profile_id", "network_id",
)  # fmt: skip
EXTERNAL = {
    "network.authority": "needs a deployed authority that registers workers and schedulers",
    "network.global_nullifier": "needs a ledger in which a nullifier can be used once",
    "network.epoch_beacon": "needs epochs that a beacon gives, not the worker's own clock",
    "network.bond": "needs a bond that a false receipt forfeits",
    "network.second_replica": "needs the receipt of another worker for the same job",
    "hardware.attestation": "needs hardware that attests what ran on it",
    "hardware.generations": "needs equal results on several generations of machines",
    "model.genesis": "needs a network that has registered this model at its start",
}


def reasons(body: Fields) -> list[str]:
    """Mint: why it is not eligible."""
    several = slots(body["job_class"]) == 2
    rows = (
        (not body["trace_evidence"], "no trace of matrix products was made"),
        (
            body["trace_evidence"],
            "graph-fallback sketches of a prefix of each product, not bound to any kernel",
        ),
        (body["evidence_level"] < 2, "no value that was computed is committed to"),
        (body["network_id"] == LOCAL, "local network id: no network knows this receipt"),
        (True, "not anchored: no network authority has accepted or dated it"),
        (True, "not bonded: nobody loses anything if it is false"),
        (body["job_class"] == 0, "self-ordered: the worker scheduled the job itself"),
        (not several, "no replica: no second worker executed the job"),
        (several, "replica not matched here: one receipt alone cannot show it"),
    )
    return [reason for applies, reason in rows if applies]


def gates(body: Fields, derived: Fields) -> list[Fields]:
    """Mint: the gates of a mainnet."""
    v3, routed = derived["ruleset"] == 3, derived["routed"]
    states = body["evidence_level"] == STATE_COMMITTED

    def gate(name: str, met: bool, because: str, lacking: str) -> Fields:
        return {
            "name": f"compute.{name}",
            "status": "met" if met else "unmet",
            "reason": because if met else lacking,
        }

    routes = gate(
        "expert_routes",
        routed or not derived["experts"],
        "the chosen experts are committed to, and replay chooses them again"
        if derived["experts"]
        else "the model has no experts",
        "the chosen experts were not committed to",
    )
    return [
        gate(
            "semantic_units",
            v3,
            "priced from the model and its token counts (ruleset v3)",
            "priced operation by operation, by an older ruleset",
        ),
        gate(
            "canonical_operations",
            v3,
            "no generic operation: ruleset v3 refuses them",
            "the ruleset takes generic operations",
        ),
        gate(
            "semantic_schedule",
            True,
            "the schedule is regenerated from the pinned architecture by every verifier",
            "",
        ),
        routes,
        gate(
            "states",
            states,
            "residual states are committed to, and replay recomputes them bit for bit",
            "states were not committed to",
        ),
        gate("kernel_trace", False, "", "no trace is bound to the kernels that ran"),
        *(
            {"name": name, "status": "external", "reason": reason}
            for name, reason in EXTERNAL.items()
        ),
    ]


def privacy(core: Any, body: Fields) -> Fields:
    shown = "sealed" if core["disclosed"] is None else "digest_published"
    names = ("prompt_text", "prompt_token_ids", "generated_token_ids", "output_text")
    routed = core["evidence"]["expert_route_root"] is not None
    return {
        **dict.fromkeys(names, shown),
        "openings": "sealed",
        "owner_salt": "sealed",
        "signing_keys": "withheld",
        "gemm_trace": "sealed" if body["trace_evidence"] else "not_gathered",
        "expert_routes": "sealed" if routed else "not_gathered",
    }


def expected(body: Fields, receipt: Fields, bundle: Fields) -> Fields:
    """Every field. ``bundle`` has what its public part says: manifest, evidence, derived."""
    core, evidence, derived = receipt["core"], bundle["evidence"], bundle["derived"]
    profile, root = bundle["manifest"]["profile"], core["evidence"]["expert_route_root"]
    layers, positions = profile["layers"], body["prefill_tokens"] + body["decode_tokens"] - 1
    sequential = core["runtime_class"]["policy"] == "sequential"
    last_from = 0 if sequential else body["prefill_tokens"] - 1
    rows = 0 if root is None else route_rows(layers, positions, last_from)
    facts = {
        "ruleset": evidence["ruleset"],
        "routed": evidence["route_root"] != NO_ROUTES,
        "experts": profile["experts"],
    }
    names = ("replica_slot", "prefill_tokens", "decode_tokens")
    found_gates = gates(body, facts)
    return {
        "schema": "misaka.palw.public-receipt.v2",
        "producer": "tallystick",
        "receipt_id": text(body["receipt_id"]),
        "verification_bundle_id": text(bundle["bundle_id"]),
        "receipt_digest": text(receipt["digest"]),
        "core_digest": text(receipt["core_digest"]),
        "job_class": JOB_CLASSES[body["job_class"]],
        "evidence_level": LEVELS[body["evidence_level"]],
        "trace_evidence": TRACES[body["trace_evidence"]],
        "prefill_graph_steps": body["prefill_tokens"],
        "decode_graph_steps": body["decode_tokens"] - 1,
        "schedule_kind": "semantic" if evidence["schedule"] is None else "observed",
        "semantic_compute_units_v3": str(derived["semantic_units"]),
        "semantic_schedule": {
            "commitment": text(derived["semantic"]),
            "operations": str(derived["semantic_operations"]),
            "expert_route_ops": str(derived["semantic_routes"]),
        },
        "expert_route": {"root": root, "route_event_count": str(rows)},
        "verification_epoch": str(bundle["verification_epoch"]),
        "artifacts": {
            **{f"engine_{name}": core["engine"][name] for name in ("name", "version", "library")},
            "model_digest": text(profile["model_digest"]),
            "model_bytes": str(profile["model_bytes"]),
        },
        "disclosure": core["disclosure"],
        "mint": {
            "mint_class": "local_self_consistent_v0_1",
            "eligible": False,
            "weight": "0",
            "ineligible_reasons": reasons(body),
            "mainnet_ready": all(gate["status"] == "met" for gate in found_gates),
            "mainnet_gates": found_gates,
        },
        "privacy": privacy(core, body),
        **{name: body[name] for name in names},
        **{name: str(body[name]) for name in NUMBERS},
        **{name: text(body[name]) for name in DIGESTS},
    }


def check_public(data: bytes, body: Fields, receipt: Fields, bundle: Fields) -> None:
    found = document("public-receipt", data, 64 << 10)
    for name, value in expected(body, receipt, bundle).items():
        same(f"13: public document: {name}", value, found[name])
