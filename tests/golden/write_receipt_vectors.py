"""Write docs/spec/vectors/compute_receipt.json anew, by the independent implementation only.

``python -m tests.golden.write_receipt_vectors``, and only before the encodings' versions are
released: afterwards vectors are added and never changed.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from nacl import bindings

from tests.golden.independent import bundles, evidence, receipts
from tests.golden.independent.basics import h
from tests.golden.independent.compute import ruleset_id
from tests.golden.independent.findings import shown
from tests.support.vectors import spec_vectors

Fields = dict[str, Any]

TIMESTAMP = 1_796_040_001_250
EPOCH = TIMESTAMP // 3_600_000
PROMPT_IDS, GENERATED_IDS = [1, 450, 77, 12, 2**31 - 1], [31, 8, 2]
BODY = b'{"max_tokens":3,"prompt":"example"}'
#: Name, job class, slot, evidence level, whether there is a trace, whether there are routes.
RECEIPTS = (
    ("nothing", 0, 0, evidence.NONE, False, False),
    ("graph", 3, 0, evidence.GRAPH, False, False),
    ("gemm", 0, 0, evidence.GEMM_TRACED, True, False),
    ("states", 0, 0, evidence.STATE_COMMITTED, False, False),
    ("states, routes and gemm, of the second replica", 1, 1, evidence.STATE_COMMITTED, True, True),
    ("states and routes, of a self-ordered replica", 2, 0, evidence.STATE_COMMITTED, False, True),
)


def value(label: str) -> bytes:
    """Return 32 bytes that stand for a digest, a salt, a nonce or a seed."""
    return sha256(f"example {label}".encode()).digest()


def public_key(label: str) -> bytes:
    return bindings.crypto_sign_seed_keypair(value(f"seed of the {label}"))[0]


def sign(label: str, message: bytes) -> bytes:
    secret = bindings.crypto_sign_seed_keypair(value(f"seed of the {label}"))[1]
    return bindings.crypto_sign(message, secret)[:64]


def hexed(fields: Fields) -> Fields:
    return {name: shown(name, item) for name, item in fields.items()}


def keys() -> Fields:
    return {
        name: {"seed": value(f"seed of the {name}"), "public_key": public_key(name)}
        for name in ("worker", "scheduler", "owner")
    }


def commitments() -> Fields:
    """Commitments with what they are of; nullifiers depend on a job, see papers."""
    core_digest = value("core")
    return {
        "request": {
            "nonce": value("request nonce"),
            "request_body": BODY.decode(),
            "request_commitment": h("palw.request", value("request nonce"), BODY),
        },
        "prompt": {
            "nonce": value("prompt nonce"),
            "ids": PROMPT_IDS,
            "prompt_commitment": receipts.prompt_commitment(value("prompt nonce"), PROMPT_IDS),
        },
        "output": {
            "nonce": value("output nonce"),
            "ids": GENERATED_IDS,
            "core_digest": core_digest,
            "output_commitment": receipts.output_commitment(
                value("output nonce"), GENERATED_IDS, core_digest
            ),
        },
        "owner": {
            "salt": value("owner salt"),
            "key": public_key("owner"),
            "owner_commitment": h("palw.owner", value("owner salt"), public_key("owner")),
        },
    }


def roots() -> Fields:
    states, routes, gemm = value("state root"), value("route root"), value("gemm root")
    composed = {
        "all": (states, routes, gemm),
        "states": (states, evidence.NO_ROUTES, evidence.NO_GEMM),
        "states and routes": (states, routes, evidence.NO_GEMM),
    }
    return {
        "local_network_id": receipts.LOCAL,
        "no_states": evidence.NO_STATES,
        "no_routes": evidence.NO_ROUTES,
        "no_gemm": evidence.NO_GEMM,
        "no_trace_scheme": evidence.NO_SCHEME,
        "trace_scheme_live": evidence.LIVE,
        "trace_scheme_sealing": evidence.SEALED,
        "state_evidence": {
            name: {
                **dict(zip(("state_root", "expert_route_root", "gemm_root"), parts, strict=True)),
                "gemm_trace_root": h("tallystick.state-evidence", *parts),
            }
            for name, parts in composed.items()
        },
    }


def papers(job_class: int, slot: int, level: int) -> Fields:
    """Request, assignment and credential of a job, signed, with names and nullifiers."""
    window = {"issued_epoch": EPOCH, "expires_epoch": EPOCH + 24}
    owner = commitments()["owner"]["owner_commitment"]
    credential = {
        "version": 1,
        "network_id": receipts.LOCAL,
        "worker_key": public_key("worker"),
        "owner_commitment": owner,
        **window,
    }
    job = {
        "version": 1,
        "network_id": receipts.LOCAL,
        "scheduler_job_id": value(f"job {job_class}"),
        "request_commitment": commitments()["request"]["request_commitment"],
        "job_class": job_class,
        "required_evidence_level": level,
        **window,
    }
    request = {
        **job,
        "model_profile_id": value("model profile"),
        "max_prefill_tokens": 4000,
        "max_decode_tokens": 1024,
        "replicas": receipts.slots(job_class),
    }
    signed_request = _signed("request", receipts.REQUEST, request)
    assignment = {
        **job,
        "signed_request_id": signed_request["id"],
        "replica_slot": slot,
        "worker_key": public_key("worker"),
    }
    encoding = receipts.encode(receipts.CREDENTIAL, credential)
    identity = h("palw.worker-credential", encoding)
    nullifier = receipts.job_nullifier(job)
    execution = {
        "job_nullifier": nullifier,
        "worker_credential_id": identity,
        "replica_slot": slot,
    }
    return {
        "credential": {"fields": credential, "encoding": encoding, "id": identity},
        "request": signed_request,
        "assignment": _signed("assignment", receipts.ASSIGNMENT, assignment),
        "job_nullifier": nullifier,
        "execution_nullifier": receipts.execution_nullifier(execution),
    }


def _signed(name: str, layout: receipts.Layout, fields: Fields) -> Fields:
    body = receipts.encode(layout, fields)
    digest = h(f"palw.{name}-signing", fields["network_id"], body)
    signature = sign("scheduler", digest)
    return {
        "fields": {field: fields[field] for field, _ in layout},
        "encoding": body,
        "signing_digest": digest,
        "signature": signature,
        "id": h(f"palw.signed-{name}", body, signature),
    }


def receipt(name: str, job_class: int, slot: int, level: int, traced: bool, routed: bool) -> Fields:
    """A receipt with its papers; digests of other documents stand for themselves."""
    job = papers(job_class, slot, level)
    parts = (
        value("state root"),
        value("route root") if routed else evidence.NO_ROUTES,
        value("gemm root") if traced else evidence.NO_GEMM,
    )
    body = {
        **{field: value(field) for field, width in receipts.BODY if width == receipts.D},
        **{field: job["request"]["fields"][field] for field in ("network_id", "scheduler_job_id")},
        "request_commitment": job["request"]["fields"]["request_commitment"],
        "model_profile_id": job["request"]["fields"]["model_profile_id"],
        "receipt_version": 1,
        "signed_assignment_id": job["assignment"]["id"],
        "replica_slot": slot,
        "cu_ruleset_id": ruleset_id(3),
        "trace_scheme_id": evidence.LIVE if traced else evidence.NO_SCHEME,
        "trace_evidence": int(traced),
        "schedule_event_count": 250_000,
        "canonical_compute_units": 2**64 - 1 if traced else 1,
        "prefill_tokens": len(PROMPT_IDS),
        "decode_tokens": len(GENERATED_IDS),
        "output_commitment": commitments()["output"]["output_commitment"],
        "gemm_trace_root": evidence.composed_root(level, *parts),
        "trace_event_count": 2466 if traced else 0,
        "owner_commitment": job["credential"]["fields"]["owner_commitment"],
        "worker_credential_id": job["credential"]["id"],
        "job_nullifier": job["job_nullifier"],
        "execution_nullifier": job["execution_nullifier"],
        "job_class": job_class,
        "evidence_level": level,
        "timestamp": TIMESTAMP,
        "issued_epoch": EPOCH,
        "expires_epoch": EPOCH + 24,
    }
    encoding = receipts.encode(receipts.BODY, body)
    digest = h("palw.receipt-signing", body["network_id"], encoding)
    palw = encoding + sign("worker", digest)
    names = ("signing_digest", "receipt_id", "body_id", "receipt_binding")
    found = receipts.read_receipt(palw)
    return {
        "name": name,
        "papers": job,
        "fields": {field: body[field] for field, _ in receipts.BODY},
        "palw": palw,
        **{key: found[key] for key in names},
    }


def edits() -> list[Fields]:
    """Edits of the first receipt's bytes that a decoder refuses, by name, offset and bytes."""
    places, at = {}, 0
    for field, width in receipts.BODY:
        places[field] = (at, width)
        at += width
    rows = [
        ("another version", "receipt_version", 2),
        ("a slot that the class does not have", "replica_slot", 1),
        ("an unknown job class", "job_class", 4),
        ("an unknown level", "evidence_level", 4),
        ("an unknown trace", "trace_evidence", 5),
        ("a trace at level none", "trace_evidence", 1),
        ("another epoch", "issued_epoch", EPOCH + 1),
        ("another end", "expires_epoch", EPOCH + 25),
        ("no prompt", "prefill_tokens", 0),
        ("no output", "decode_tokens", 0),
        ("no operations", "schedule_event_count", 0),
        ("too many operations", "schedule_event_count", 250_001),
        ("no price", "canonical_compute_units", 0),
        ("sketches without a trace", "trace_event_count", 1),
    ]
    found = [
        {"name": name, "offset": at, "bytes": number.to_bytes(width, "little")}
        for name, field, number in rows
        for at, width in [places[field]]
    ]
    for field, width in receipts.BODY:
        if width == receipts.D:
            zero = {"name": f"zero {field}", "offset": places[field][0], "bytes": bytes(32)}
            found.append(zero)
    for field in ("trace_scheme_id", "gemm_trace_root"):
        other = {"name": f"another {field}", "offset": places[field][0], "bytes": value("other")}
        found.append(other)
    return found


def parts() -> list[Fields]:
    """Both parts of two bundles; manifest, evidence, opening, routes and trace stand for any."""
    found = []
    for made, routes, trace in ((RECEIPTS[4], b"any routes", b""), (RECEIPTS[0], None, None)):
        case = receipt(*made)
        job = case["papers"]
        shown_parts = {"manifest": b"any manifest", "evidence": b"any evidence"}
        public = b"\1\0" + case["receipt_binding"] + case["receipt_id"]
        public += EPOCH.to_bytes(8, "little") + public_key("scheduler")
        public += commitments()["prompt"]["prompt_commitment"]
        public += b"".join(map(_sized, shown_parts.values()))
        private = b"\1\0"
        for name in ("request", "assignment"):
            private += job[name]["encoding"] + job[name]["signature"]
        private += job["credential"]["encoding"] + public_key("owner")
        private += b"".join(value(name.replace("_", " ")) for name in bundles.SALTS)
        private += _sized(b"any opening")
        for part in (routes, trace):
            private += b"\0" if part is None else b"\1" + _sized(part)
        found.append(
            {"receipt": made[0], "verification_epoch": EPOCH, **shown_parts}
            | {"opening": b"any opening", "expert_routes": routes, "gemm_trace": trace}
            | {"public_part": public, "private_part": private}
        )
    return found


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def content() -> Fields:
    """Return the content of the file."""
    return {
        "spec": "docs/spec/compute-receipt.md",
        "about": "receipts, papers, commitments; seeds and salts are examples that protect nothing",
        "note": "Bytes are hex, numbers of 64 bits decimal texts.",
        "keys": hexed(keys()),
        "commitments": hexed(commitments()),
        "roots": hexed(roots()),
        "receipts": [hexed(receipt(*made)) for made in RECEIPTS],
        "refused_edits_of_the_first": [hexed(edit) for edit in edits()],
        "bundle_parts": [hexed(part) for part in parts()],
    }


def text() -> str:
    return json.dumps(content(), indent=1) + "\n"


if __name__ == "__main__":
    path = spec_vectors() / "compute_receipt.json"
    path.write_text(text(), encoding="utf-8")
