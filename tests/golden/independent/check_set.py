"""Check a whole artifact set with its audit key, statelessly: everything is computed again.

Written from docs/spec alone (artifact-set.md, verification.md and the pages that they name), and
importing nothing of the package. ``python -m tests.golden.independent.check_set FOLDER KEY
TRUSTED`` says whether a set holds: KEY is the file of its audit key, TRUSTED a public key in hex.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.golden.independent import bundles, evidence, public, receipts, state
from tests.golden.independent.basics import (
    ZERO,
    RefusedError,
    file_digest,
    key_id,
    merkle_root,
    raw,
    require,
    same,
    text,
)
from tests.golden.independent.core import (
    check_envelope,
    check_execution,
    check_opening,
    check_telemetry,
    read_core,
)
from tests.golden.independent.documents import document, milliseconds
from tests.golden.independent.manifests import read_manifest, require_fit, shape_of

Fields = dict[str, Any]
Files = Mapping[str, bytes]

STATE = "palw-state.sqlite3"
MEMBERS = (
    (".palw", "public"), (".json", "public"), (".geoai.json", "public"),
    (".exec.json", "public"), (".telemetry.jsonl", "public"), (".intoto.jsonl", "public"),
    (".palw.bundle", "private"), ("", "private"),
)  # fmt: skip
#: layer, position -> the bytes of a row of states.
Rows = Callable[[int, int], bytes]


def check_set(files: Files, audit_key: bytes, trusted: bytes, rows: Rows | None = None) -> Fields:
    """Return what was found, with everything recomputed; ``rows`` are the states, if known.

    ``trusted`` is the public key that has to have signed the execution link. Raises RefusedError.
    """
    members = _members(files)
    receipt = read_core(members[".geoai.json"])
    same("1: the set's id", receipt["id"], members["id"])
    execution = check_execution(members[".exec.json"], receipt)
    check_telemetry(members[".telemetry.jsonl"], receipt)
    body = receipts.read_receipt(members[".palw"])
    found = {"receipt": receipt, "body": body, **_bundle(members[".palw.bundle"], body, audit_key)}
    private = found["private"]
    found["opening"] = opening = check_opening(private["opening"], receipt)
    check_papers(found)
    check_manifest(found)
    check_evidence(found)
    check_openings(found)
    check_envelope(members[".intoto.jsonl"], receipt, execution, trusted)
    check_core(found, file_digest(members[".palw"]))
    version = found["manifest"]["facts"]["platform"]["program"]["version"]
    same("13: receipt_validator.version", version, execution["receipt_validator"]["version"])
    public.check_public(members[".json"], body, receipt, found)
    state.restore(members[""], accepted(found, members[".palw"]))
    if rows is not None:
        check_states(found, opening, rows)
    return found


def _members(files: Files) -> dict[str, Any]:
    """artifact-set.md: the marker names every file."""
    markers = [name for name in files if name.endswith(".complete")]
    same("1: one marker", 1, len(markers))
    name = markers[0].removesuffix(".complete")
    marker = document("receipt-set", files[markers[0]], 64 << 10)
    found: dict[str, Any] = {"id": name}
    same("1: the members", len(MEMBERS), len(marker["members"]))
    for (suffix, visibility), member in zip(MEMBERS, marker["members"], strict=True):
        own = name + suffix if suffix else STATE
        same("1: a member's name", (own, visibility), (member["name"], member["visibility"]))
        require(own in files, f"1: {suffix or STATE} is missing")
        same(f"1: the digest of {suffix or STATE}", file_digest(files[own]), member["digest"])
        found[suffix] = files[own]
    same("1: the marker's receipt", raw(marker["receipt_digest"]).hex()[:32], name)
    return found


def _bundle(data: bytes, body: Fields, audit_key: bytes) -> Fields:
    envelope = bundles.read_envelope(data)
    shown = bundles.read_public(envelope["public"])
    for where in (envelope, shown):
        same("1: receipt_binding", body["receipt_binding"], where["receipt_binding"])
    same("1: receipt_id", body["receipt_id"], shown["receipt_id"])
    key = bundles.bundle_key(audit_key, envelope)
    private = bundles.read_private(bundles.opened(envelope, key))
    same("2: network_id", receipts.LOCAL, body["network_id"])
    epoch = shown["verification_epoch"]
    require(epoch == body["issued_epoch"], "2: verification_epoch")
    names = ("verification_epoch", "scheduler_key", "prompt_commitment")
    return {
        **{name: shown[name] for name in names},
        "bundle_id": envelope["bundle_id"],
        "bundle_key": key,
        "private": private,
        "manifest": read_manifest(shown["manifest"]),
        "evidence": evidence.read_portable(shown["evidence"]),
    }


def check_papers(found: Fields) -> None:
    """Steps 3, 4 and 8."""
    body, private, opening = found["body"], found["private"], found["opening"]
    papers = private["papers"]
    opened = {
        "scheduler_key": found["scheduler_key"],
        "request_nonce": private["request_nonce"],
        "request_body": opening["request_body"],
        "run": opening["run"],
    }
    receipts.check_assignment(body, papers, opened)
    receipts.check_worker(body, papers, private["owner_key"], private["owner_salt"])
    receipts.check_nullifiers(body)
    worker = papers["credential"]["worker_key"]
    same("4: observed.worker_id", key_id(worker), found["receipt"]["observed"]["worker_id"])


def check_manifest(found: Fields) -> None:
    """Steps 6, 7 and 8, and the manifest's part of step 13."""
    body, manifest, core = found["body"], found["manifest"], found["receipt"]["core"]
    parts = {
        "model_profile_id": manifest["profile"]["id"],
        "runtime_class_id": manifest["runtime"]["id"],
        "runtime_manifest_hash": manifest["id"],
        "shape_profile_id": manifest["shape"]["id"],
    }
    for name, value in parts.items():
        same(f"6: {name}", value, body[name])
    same("7: cu_ruleset_id", manifest["cu_ruleset_id"], body["cu_ruleset_id"])
    require_fit(manifest["shape"], body["prefill_tokens"], body["decode_tokens"])
    runtime, context = core["runtime_class"], core["context_tokens"]
    same("13: core.runtime_class", runtime, manifest["runtime"]["class"])
    same("13: core.context_tokens", context, manifest["shape"]["context_tokens"])
    require(len(shape_of(runtime, context)) > 0, "13: shape")
    same("13: core.engine", manifest["facts"]["engine"], core["engine"])
    same("13: core.model_digest", text(manifest["profile"]["model_digest"]), core["model_digest"])
    template = core["chat_template_digest"]
    require(template in (None, manifest["facts"]["chat_template_digest"]), "13: chat template")


def check_evidence(found: Fields) -> None:
    """Steps 8, 9 and 10."""
    body, shown, manifest = found["body"], found["evidence"], found["manifest"]
    core, model = found["receipt"]["core"], manifest["profile"]["architecture"]
    claims = {
        "level": "evidence_level", "prefill": "prefill_tokens", "decode": "decode_tokens",
        "job_nullifier": "job_nullifier", "shape_profile_id": "shape_profile_id",
        "ruleset_id": "cu_ruleset_id",
    }  # fmt: skip
    for name, field in claims.items():
        same(f"9: {field}", shown[name], body[field])
    found["derived"] = derived = evidence.derive(shown, model)
    if shown["schedule"] is not None:
        evidence.check_policy(shown["schedule"], core["runtime_class"])
    same("9: commitment", derived["commitment"], body["operation_schedule_commitment"])
    same("9: schedule_event_count", derived["events"], body["schedule_event_count"])
    same("9: canonical_compute_units", derived["units"], body["canonical_compute_units"])
    require(body["trace_evidence"] <= 1, "10: trace_evidence")
    same("10: trace_evidence", shown["traced"], body["trace_evidence"] == 1)
    same("10: trace_scheme_id", shown["scheme"], body["trace_scheme_id"])
    same("10: trace_event_count", shown["trace_events"], body["trace_event_count"])
    roots = core_roots(core)
    for name, root in roots.items():
        same(f"10: {name}", root, shown[name])
    composed = evidence.composed_root(body["evidence_level"], *roots.values())
    same("10: gemm_trace_root", composed, body["gemm_trace_root"])
    routed = manifest["profile"]["experts"] > 0 and body["evidence_level"] >= 2
    same("10: routes", routed, core["evidence"]["expert_route_root"] is not None)
    same("10: layers", manifest["profile"]["layers"], core["evidence"]["layers"])
    check_private_evidence(found, model, roots)


def core_roots(core: Any) -> dict[str, bytes]:
    """compute-receipt.md#roots; in the order in which they are composed."""
    rows = (
        ("state_root", "state_root", evidence.NO_STATES),
        ("route_root", "expert_route_root", evidence.NO_ROUTES),
        ("gemm_root", "gemm_trace_root", evidence.NO_GEMM),
    )
    given = core["evidence"]
    return {
        name: empty if given[field] is None else raw(given[field]) for name, field, empty in rows
    }


def check_private_evidence(found: Fields, model: Any, roots: Mapping[str, bytes]) -> None:
    """Step 10, with the private part."""
    body, shown, private = found["body"], found["evidence"], found["private"]
    run, blind = found["opening"]["run"], found["opening"]["blind"]
    sequential = run["policy"] == "sequential"
    asked = bool({"graph", "gemm"} & {*run["evidence"]})
    same("10: schedule", asked, shown["schedule"] is not None)
    same("10: trace", shown["traced"], private["trace"] is not None)
    if private["trace"] is not None:
        trace = evidence.read_trace(private["trace"], shown["schedule"])
        same("10: gemm_root", evidence.gemm_root(blind, trace), roots["gemm_root"])
    routed = roots["route_root"] != evidence.NO_ROUTES
    same("10: routes", routed, private["routes"] is not None)
    if private["routes"] is not None:
        routes = evidence.read_routes(private["routes"])
        layer = model["layers"][0]
        figures = (len(model["layers"]), layer["experts"], layer["used"])
        same("10: figures", figures, tuple(routes[x] for x in ("layers", "experts", "used")))
        positions = body["prefill_tokens"] + body["decode_tokens"] - 1
        last_from = 0 if sequential else body["prefill_tokens"] - 1
        rows = evidence.route_rows(figures[0], positions, last_from)
        same("10: rows", rows, routes["rows"])
        same("10: expert_route_root", evidence.route_root(blind, routes), roots["route_root"])


def check_openings(found: Fields) -> None:
    """Step 11, the compute receipt's half."""
    private, opening, body = found["private"], found["opening"], found["body"]
    salts = {private[name] for name in bundles.SALTS}
    require(len(salts) == len(bundles.SALTS) and ZERO not in salts, "11: salts")
    same("11: prefill_tokens", body["prefill_tokens"], len(opening["prompt_ids"]))
    same("11: decode_tokens", body["decode_tokens"], len(opening["sampled_ids"]))
    prompt = receipts.prompt_commitment(private["prompt_nonce"], opening["prompt_ids"])
    same("11: prompt commitment", prompt, found["prompt_commitment"])


def check_core(found: Fields, palw_digest: str) -> None:
    """Step 13."""
    body, receipt, private = found["body"], found["receipt"], found["private"]
    core, observed = receipt["core"], receipt["observed"]
    same("13: compute_receipt_digest", palw_digest, observed["compute_receipt_digest"])
    same("13: timestamp", milliseconds(observed["end_time"]), body["timestamp"])
    same("13: prompt_tokens", body["prefill_tokens"], core["prompt_tokens"])
    same("13: sampled_tokens", body["decode_tokens"], core["sampled_tokens"])
    units = str(body["canonical_compute_units"])
    same("13: canonical_compute_units", units, core["canonical_compute_units"])
    level = receipts.LEVELS[body["evidence_level"]]
    same("13: evidence.level", level, core["evidence"]["level"])
    output = receipts.output_commitment(
        private["output_nonce"], found["opening"]["sampled_ids"], receipt["core_digest"]
    )
    same("13: output_commitment", output, body["output_commitment"])


def accepted(found: Fields, palw: bytes) -> Fields:
    """The row of the state store."""
    body = found["body"]
    names = (
        "receipt_id", "network_id", "job_nullifier", "replica_slot", "execution_nullifier",
        "request_commitment", "job_class", "issued_epoch", "expires_epoch",
    )  # fmt: skip
    return {
        **{name: body[name] for name in names},
        "slots": receipts.slots(body["job_class"]),
        "signed_receipt": palw,
        "bundle_id": found["bundle_id"],
        "timestamp_ms": body["timestamp"],
        "verification_epoch": found["verification_epoch"],
    }


def check_states(found: Fields, opening: Fields, rows: Rows) -> None:
    """state-tree.md: both roots and the leaf checks, from the rows themselves."""
    core, observed = found["receipt"]["core"], found["receipt"]["observed"]
    shape = (core["prompt_tokens"], core["sampled_tokens"], core["evidence"]["layers"])
    leaves = state.leaves(opening["blind"], shape, rows)
    same("states: state_root", text(merkle_root(leaves)), core["evidence"]["state_root"])
    checks = base64.b64encode(b"".join(leaf[:4] for leaf in leaves)).decode()
    same("states: leaf_checks", checks, opening["leaf_checks"])
    own = state.leaves(opening["blind"], shape, rows, found["body"]["worker_credential_id"])
    same("states: worker_state_root", text(merkle_root(own)), observed["worker_state_root"])


def main(folder: str, audit_key: str, key: str) -> int:
    files = {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}
    try:
        found = check_set(files, Path(audit_key).read_bytes(), bytes.fromhex(key))
    except RefusedError as error:
        # A program of its own, whose answer is what it prints.
        print(f"refused: {error}")  # noqa: T201
        return 1
    print(f"holds: {text(found['receipt']['digest'])}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
