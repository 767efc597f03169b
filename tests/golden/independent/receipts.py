"""Compute receipts and the papers of their jobs. From docs/spec/compute-receipt.md."""

from __future__ import annotations

from typing import Any

from tests.golden.independent.basics import (
    ZERO,
    Reader,
    h,
    ids,
    require,
    require_key,
    same,
    signed,
)
from tests.golden.independent.evidence import (
    GEMM_TRACED,
    GRAPH,
    MAX_EVENTS,
    NO_GEMM,
    NO_SCHEME,
    STATE_COMMITTED,
)

Fields = dict[str, Any]
Layout = tuple[tuple[str, int], ...]

D = 32
BODY: Layout = (
    ("receipt_version", 2), ("network_id", D), ("request_commitment", D), ("scheduler_job_id", D),
    ("signed_assignment_id", D), ("replica_slot", 1), ("model_profile_id", D),
    ("runtime_class_id", D), ("runtime_manifest_hash", D), ("shape_profile_id", D),
    ("cu_ruleset_id", D), ("trace_scheme_id", D), ("trace_evidence", 1),
    ("operation_schedule_commitment", D), ("schedule_event_count", 8),
    ("canonical_compute_units", 8), ("prefill_tokens", 4), ("decode_tokens", 4),
    ("output_commitment", D), ("gemm_trace_root", D), ("trace_event_count", 8),
    ("owner_commitment", D), ("worker_credential_id", D), ("job_nullifier", D),
    ("execution_nullifier", D), ("job_class", 1), ("evidence_level", 1), ("timestamp", 8),
    ("issued_epoch", 8), ("expires_epoch", 8),
)  # fmt: skip
REQUEST: Layout = (
    ("version", 2), ("network_id", D), ("scheduler_job_id", D), ("request_commitment", D),
    ("model_profile_id", D), ("job_class", 1), ("required_evidence_level", 1),
    ("max_prefill_tokens", 4), ("max_decode_tokens", 4), ("replicas", 1), ("issued_epoch", 8),
    ("expires_epoch", 8),
)  # fmt: skip
ASSIGNMENT: Layout = (
    ("version", 2), ("network_id", D), ("scheduler_job_id", D), ("request_commitment", D),
    ("signed_request_id", D), ("replica_slot", 1), ("worker_key", D), ("job_class", 1),
    ("required_evidence_level", 1), ("issued_epoch", 8), ("expires_epoch", 8),
)  # fmt: skip
CREDENTIAL: Layout = (
    ("version", 2), ("network_id", D), ("worker_key", D), ("owner_commitment", D),
    ("issued_epoch", 8), ("expires_epoch", 8),
)  # fmt: skip
JOB_CLASSES = ("self_local", "replica_external", "replica_self_ordered", "solo_unpaid")
LEVELS = ("none", "graph", "gemm_traced", "state_committed")
TRACES = ("absent", "graph_fallback", "metal_kernel", "cuda_kernel_launch", "kernel_sketch")
KINDS = {
    "job_class": len(JOB_CLASSES), "evidence_level": len(LEVELS), "trace_evidence": len(TRACES),
    "required_evidence_level": len(LEVELS),
}  # fmt: skip
LOCAL = h("palw.network", b"local")


def read(layout: Layout, data: bytes, what: str) -> Fields:
    reader = Reader(data, what)
    found: Fields = {}
    for name, width in layout:
        if width == D:
            found[name] = reader.digest()
        elif name in KINDS:
            found[name] = reader.u8(KINDS[name])
        else:
            found[name] = reader.number(width)
    reader.end()
    return found


def encode(layout: Layout, values: Fields) -> bytes:
    return b"".join(
        values[name] if width == D else values[name].to_bytes(width, "little")
        for name, width in layout
    )


def slots(job_class: int) -> int:
    return 2 if JOB_CLASSES[job_class].startswith("replica") else 1


def read_receipt(palw: bytes) -> Fields:
    """Encoding, structure and ids."""
    require(len(palw) == 670, "compute receipt: its length")
    encoding = palw[:606]
    body = read(BODY, encoding, "compute receipt")
    _check_structure(body)
    _check_trace(body)
    return {
        **body,
        "encoding": encoding,
        "signature": palw[606:],
        "signing_digest": h("palw.receipt-signing", body["network_id"], encoding),
        "receipt_id": h("palw.receipt-id", encoding),
        "body_id": h("palw.receipt-body", encoding),
        "receipt_binding": h("palw.receipt-binding", palw),
    }


def _check_structure(body: Fields) -> None:
    same("structure: receipt_version", 1, body["receipt_version"])
    for name, width in BODY:
        require(width != D or body[name] != ZERO, f"structure: {name}")
    require(body["replica_slot"] < slots(body["job_class"]), "structure: replica_slot")
    same("structure: issued_epoch", body["timestamp"] // 3_600_000, body["issued_epoch"])
    same("structure: expires_epoch", body["issued_epoch"] + 24, body["expires_epoch"])
    for name in ("prefill_tokens", "decode_tokens", "canonical_compute_units"):
        require(body[name] >= 1, f"structure: {name}")
    events = body["schedule_event_count"]
    require(1 <= events <= MAX_EVENTS, "structure: schedule_event_count")
    require(body["trace_event_count"] <= events, "structure: trace_event_count")


def _check_trace(body: Fields) -> None:
    level, traced = body["evidence_level"], body["trace_evidence"] != 0
    require(level > GRAPH or not traced, "structure: a trace at a level without one")
    require(level != GEMM_TRACED or traced, "structure: no trace at gemm_traced")
    same("structure: trace_event_count", traced, body["trace_event_count"] >= 1)
    same("structure: trace_scheme_id", traced, body["trace_scheme_id"] != NO_SCHEME)
    same("structure: gemm_trace_root", level <= GRAPH, body["gemm_trace_root"] == NO_GEMM)


def read_papers(request: bytes, assignment: bytes, credential: bytes) -> Fields:
    """Request, assignment, credential: encodings, names and what was signed."""
    found: Fields = {
        "request": read(REQUEST, request[:-64], "request"),
        "assignment": read(ASSIGNMENT, assignment[:-64], "assignment"),
        "credential": read(CREDENTIAL, credential, "credential"),
    }
    for name, paper in found.items():
        same(f"{name}: version", 1, paper["version"])
    for name, data in (("request", request), ("assignment", assignment)):
        paper = found[name]
        paper["signature"] = data[-64:]
        paper["message"] = h(f"palw.{name}-signing", paper["network_id"], data[:-64])
        paper["id"] = h(f"palw.signed-{name}", data[:-64], data[-64:])
    found["credential"]["id"] = h("palw.worker-credential", credential)
    return found


def job_nullifier(body: Fields) -> bytes:
    names = ("network_id", "scheduler_job_id", "request_commitment")
    return h("palw.job-nullifier", *(body[name] for name in names))


def execution_nullifier(body: Fields) -> bytes:
    parts = [body["job_nullifier"], body["worker_credential_id"], bytes([body["replica_slot"]])]
    return h("palw.execution-nullifier", *parts)


def required_level(run: Any) -> int:
    parts = run["evidence"]
    if "states" in parts:
        return STATE_COMMITTED
    return GEMM_TRACED if "gemm" in parts else int("graph" in parts)


def check_assignment(body: Fields, papers: Fields, opened: Fields) -> None:
    """Step 3. ``opened`` has the scheduler's key, the request nonce, and the run and its body."""
    request, assignment, run = papers["request"], papers["assignment"], opened["run"]
    key = opened["scheduler_key"]
    require_key(key, "3: the scheduler's key")
    for paper in (request, assignment):
        require(signed(key, paper["signature"], paper["message"]), "3: the scheduler's signature")
    committed = h("palw.request", opened["request_nonce"], opened["request_body"])
    same("3: request_commitment", committed, body["request_commitment"])
    for name in ("network_id", "scheduler_job_id", "request_commitment", "job_class"):
        same(f"3: {name}", [body[name]] * 2, [request[name], assignment[name]])
    same("3: model_profile_id", body["model_profile_id"], request["model_profile_id"])
    require(run["network_id"] in (None, body["network_id"].hex()), "3: the run's network_id")
    same("3: signed_request_id", request["id"], assignment["signed_request_id"])
    same("3: signed_assignment_id", assignment["id"], body["signed_assignment_id"])
    same("3: replica_slot", body["replica_slot"], assignment["replica_slot"])
    require(run["replica_slot"] in (None, body["replica_slot"]), "3: the run's replica_slot")
    same("3: replicas", slots(body["job_class"]), request["replicas"])
    level = body["evidence_level"]
    for paper in (request, assignment):
        same("3: required_evidence_level", level, paper["required_evidence_level"])
    same("3: evidence_level", required_level(run), level)
    same("3: trace_evidence", "gemm" in run["evidence"], body["trace_evidence"] != 0)
    require(body["prefill_tokens"] <= request["max_prefill_tokens"], "3: prefill_tokens")
    most = min(request["max_decode_tokens"], run["max_tokens"])
    require(body["decode_tokens"] <= most, "3: decode_tokens")
    for paper in (request, assignment):
        _check_window("3", paper, body)
    require(request["issued_epoch"] <= assignment["issued_epoch"], "3: the assignment's window")
    require(assignment["expires_epoch"] <= request["expires_epoch"], "3: the assignment's window")


def _check_window(step: str, paper: Fields, body: Fields) -> None:
    inside = paper["issued_epoch"] <= body["issued_epoch"] < paper["expires_epoch"]
    require(inside, f"{step}: a window")


def check_worker(body: Fields, papers: Fields, owner_key: bytes, owner_salt: bytes) -> None:
    """Step 4."""
    credential = papers["credential"]
    same("4: worker_credential_id", credential["id"], body["worker_credential_id"])
    for name in ("network_id", "owner_commitment"):
        same(f"4: {name}", body[name], credential[name])
    _check_window("4", credential, body)
    require_key(owner_key, "4: the owner's key")
    same("4: owner_commitment", h("palw.owner", owner_salt, owner_key), body["owner_commitment"])
    same("4: worker_key", credential["worker_key"], papers["assignment"]["worker_key"])
    key = credential["worker_key"]
    require_key(key, "4: the worker's key")
    require(signed(key, body["signature"], body["signing_digest"]), "4: the signature")


def check_nullifiers(body: Fields) -> None:
    """Step 8."""
    same("8: job_nullifier", job_nullifier(body), body["job_nullifier"])
    same("8: execution_nullifier", execution_nullifier(body), body["execution_nullifier"])


def prompt_commitment(nonce: bytes, prompt_ids: list[int]) -> bytes:
    return h("palw.prompt", nonce, ids(prompt_ids))


def output_commitment(nonce: bytes, generated: list[int], core_digest: bytes) -> bytes:
    return h("palw.output", nonce, ids(generated), core_digest)
