"""What a check found, as the values of the vectors file ``set.json``: bytes are hex."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from tests.golden.independent import bundles, state
from tests.golden.independent.basics import h, text
from tests.golden.independent.core import statement
from tests.golden.independent.receipts import ASSIGNMENT, BODY, CREDENTIAL, REQUEST

Fields = dict[str, Any]

MANIFEST = (
    "adapter_mapping_id", "kernel_graph_id", "kernel_algorithm_digest", "loaded_libraries_digest",
    "build_flags_digest", "wheel_digest", "environment_allowlist_digest", "runtime_device_digest",
    "runtime_program_digest", "build_provenance_digest",
)  # fmt: skip


#: Numbers of 64 bits are decimal texts: JSON numbers are exact to 2^53 only.
LARGE = {name for layout in (BODY, REQUEST) for name, width in layout if width == 8}
LARGE |= {"verification_epoch", "trace_events", "compute_units"}


def shown(name: str, value: Any) -> Any:
    """Return a value as a vectors file has it."""
    if isinstance(value, dict):
        return {key: shown(key, item) for key, item in value.items()}
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if name in LARGE else value


def picked(fields: Fields, names: Any) -> Fields:
    return {name: shown(name, fields[name]) for name in names}


def of(found: Fields, envelope: Fields, audit_key: bytes) -> Fields:
    """Return everything that was recomputed, by document."""
    receipt, body, manifest = found["receipt"], found["body"], found["manifest"]
    ids = ("signing_digest", "receipt_id", "body_id", "receipt_binding")
    return {
        "receipt_digest": text(receipt["digest"]),
        "core_digest": text(receipt["core_digest"]),
        "execution_statement": statement(receipt).decode(),
        "compute_receipt": {
            **picked(body, [*dict(BODY), "signature", *ids]),
        },
        "manifest": {
            "architecture_id": manifest["profile"]["architecture"]["id"].hex(),
            "model_profile_id": manifest["profile"]["id"].hex(),
            "runtime_class_id": manifest["runtime"]["id"].hex(),
            "shape_profile_id": manifest["shape"]["id"].hex(),
            "runtime_manifest_hash": manifest["id"].hex(),
            **picked(manifest, MANIFEST),
        },
        "evidence": _evidence(found),
        "bundle": _bundle(found, envelope, audit_key),
        "private": _private(found),
        "state_store": {"ddl_fingerprint": state.FINGERPRINT},
    }


def _evidence(found: Fields) -> Fields:
    shown_evidence, derived = found["evidence"], found["derived"]
    schedule = shown_evidence["schedule"]
    return {
        "schedule": {
            "operations": len(schedule["table"]),
            "steps": len(schedule["steps"]),
            "encoding": schedule["encoding"].hex(),
        },
        **picked(shown_evidence, ("trace_events", "state_root", "route_root", "gemm_root")),
        "semantic_schedule": {
            "commitment": derived["semantic"].hex(),
            "operations": derived["semantic_operations"],
            "expert_routes": derived["semantic_routes"],
        },
        "compute_units": str(derived["units"]),
    }


def _bundle(found: Fields, envelope: Fields, audit_key: bytes) -> Fields:
    names = ("salt", "receipt_binding", "key_commitment", "nonce", "bundle_id")
    return {
        "audit_key": audit_key.hex(),
        "bundle_key": found["bundle_key"].hex(),
        **picked(envelope, names),
        "public_digest": h("palw.bundle-public", envelope["public"]).hex(),
        "associated_data_sha256": sha256(bundles.associated_data(envelope)).hexdigest(),
        "public_bytes": len(envelope["public"]),
        "ciphertext_bytes": len(envelope["ciphertext"]),
        **picked(found, ("verification_epoch", "scheduler_key", "prompt_commitment")),
    }


def _private(found: Fields) -> Fields:
    private = found["private"]
    papers = private["papers"]
    layouts = {"request": REQUEST, "assignment": ASSIGNMENT, "credential": CREDENTIAL}
    signed = ("signature", "message", "id")
    extra = {"request": signed, "assignment": signed, "credential": ("id",)}
    return {
        **{
            name: picked(papers[name], [*dict(layout), *extra[name]])
            for name, layout in layouts.items()
        },
        **picked(private, ("owner_key", *bundles.SALTS)),
        "opening": private["opening"].decode(),
        **picked(private, ("routes", "trace")),
    }
