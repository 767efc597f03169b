"""The geoai receipt, its telemetry, its opening, its attestation.

Written from docs/spec/{receipt,hashing,telemetry,verification,attestations,keys}.md.
"""

from __future__ import annotations

import base64
import re
from hashlib import sha256
from typing import Any

from tests.golden.independent.basics import (
    RefusedError,
    file_digest,
    h,
    ids,
    raw,
    require,
    require_key,
    same,
    signed,
    text,
)
from tests.golden.independent.documents import (
    SCHEMAS,
    canonical,
    document,
    jcs,
    milliseconds,
    parse,
)
from tests.golden.independent.evidence import STATE_COMMITTED
from tests.golden.independent.receipts import LEVELS, required_level
from tests.golden.independent.state import leaf_count

Fields = dict[str, Any]

OUTSIDE = ("run_id", "replica_slot", "expires_at", "network_id", "model_path", "blind")
NO_BUNDLE = text(h("tallystick.no-bundle"))
NO_SANDBOX = text(h("tallystick.sandbox-profile", b'{"level":"none","name":"none"}'))
EVENT = re.compile(
    rb'\{"event":"([A-Za-z]+)",(?:"index":(0|[1-9]\d{0,9}),|"layer":(0|[1-9]\d{0,9}),)?'
    rb'"monotonic_ns":"(0|[1-9]\d{0,19})",'
    rb'"rss":"(0|[1-9]\d{0,19})","seq":(0|[1-9]\d{0,9}),"wall_ns":"(0|[1-9]\d{0,19})"\}'
)
PAYLOAD_TYPE = "application/vnd.in-toto+json"
FRAME = [b"Init", b"Loading", b"LoadComplete", b"ShutdownComplete"]
LAYERS = {
    b"LayerEvicted": "evictions",
    b"PrefetchHit": "prefetch_hits",
    b"PrefetchMiss": "prefetch_misses",
    b"LayerInstalled": None,
}
INNER = (b"TokenEmitted", b"ArenaReset", *LAYERS)
MOST_LAYER_EVENTS = 2048


def read_core(data: bytes) -> Fields:
    """The receipt, its digests, and what its fields say of each other."""
    receipt = document("receipt", data, 256 << 10)
    core, observed = receipt["core"], receipt["observed"]
    core_digest = sha256(jcs(core)).digest()
    digest = h("geoai.receipt", core_digest, sha256(jcs(observed)).digest())
    _check_core(core)
    _check_observed(core, observed)
    return {
        "core": core,
        "observed": observed,
        "core_digest": core_digest,
        "digest": digest,
        "id": digest.hex()[:32],
        "bytes": data,
    }


def _check_core(core: Any) -> None:
    runtime = core["runtime_class"]
    identity = text(h("tallystick.runtime-class", jcs(runtime)))
    same("1: core.runtime_class_id", identity, core["runtime_class_id"])
    same("1: core.engine.library", runtime["engine_library"], core["engine"]["library"])
    rows = runtime["prompt_class"]
    same("1: core.runtime_class.decode_class", rows, runtime["decode_class"])
    require(rows["floor"] <= rows["max_rows"], "1: core.runtime_class.prompt_class")
    one = {"floor": 1, "max_rows": 1}
    require(runtime["policy"] != "sequential" or rows == one, "1: row class under sequential")
    needed = core["prompt_tokens"] + core["sampled_tokens"]
    require(needed <= core["context_tokens"], "1: core.context_tokens")
    same("1: core.disclosed", core["disclosure"] == "public", core["disclosed"] is not None)
    same("1: core.sandbox", {"profile": "none", "profile_digest": NO_SANDBOX}, core["sandbox"])
    _check_evidence(core)


def _check_evidence(core: Any) -> None:
    evidence = core["evidence"]
    level = LEVELS.index(evidence["level"])
    states = evidence["state_root"] is not None
    traced = evidence["gemm_trace_root"] is not None
    same("1: core.evidence.level", level == STATE_COMMITTED, states)
    require(states or traced == (evidence["level"] == "gemm_traced"), "1: core.evidence.level")
    routed = evidence["expert_route_root"] is not None
    require(not routed or states or traced, "1: core.evidence.expert_route_root")
    shape = (core["prompt_tokens"], core["sampled_tokens"], evidence["layers"])
    leaves = leaf_count(*shape) if states else 0
    same("1: core.evidence.state_leaves", str(leaves), evidence["state_leaves"])


def _check_observed(core: Any, observed: Any) -> None:
    start, end = milliseconds(observed["start_time"]), milliseconds(observed["end_time"])
    took = {name: int(value) for name, value in observed["durations_ns"].items()}
    difference = (end - start) * 1_000_000 - took["total"]
    require(abs(difference) < 1_000_000, "1: observed.end_time")
    require(sum(took.values()) <= 2 * took["total"], "1: observed.durations_ns")
    fixed = {
        "enforcement_level": "none",
        "egress_audit": {"result": "not_run", "statement_digest": None},
        "gpu_memory": None,
    }
    for name, value in fixed.items():
        same(f"1: observed.{name}", value, observed[name])
    _check_layers(core, observed)
    own, common = observed["worker_state_root"], core["evidence"]["state_root"]
    same("1: observed.worker_state_root", common is None, own is None)
    require(own is None or own != common, "1: observed.worker_state_root is the core's")


def check_execution(data: bytes, receipt: Fields) -> Fields:
    """The execution envelope: documents.md#execenvelope, receipt.md#rules-between-fields."""
    found: Fields = document("exec-envelope", data, 64 << 10)
    core, observed = receipt["core"], receipt["observed"]
    chain, validator = found["provenance_chain"], found["receipt_validator"]
    sandbox = {"name": core["sandbox"]["profile"], "digest": core["sandbox"]["profile_digest"]}
    same("1: observed.exec_envelope_digest", file_digest(data), observed["exec_envelope_digest"])
    same("1: exec: model_digest", core["model_digest"], found["model_digest"])
    same("1: exec: sandbox_profile", sandbox, found["sandbox_profile"])
    same("1: exec: run_digest", observed["run_digest"], chain["run_digest"])
    same("1: exec: the validator", "tallystick", validator["name"])
    schema = file_digest((SCHEMAS / "receipt.schema.json").read_bytes())
    same("1: exec: the receipt's schema", schema, validator["schema_digest"])
    bundled = core["bundle_digest"] != NO_BUNDLE
    same("1: core.task_digest", bundled, core["task_digest"] != NO_BUNDLE)
    same("1: exec: manifest_digest", bundled, chain["manifest_digest"] is not None)
    require(bundled or chain["source_attestation_digest"] is None, "1: exec: source_attestation")
    return found


def _check_layers(core: Any, observed: Any) -> None:
    layers, depth, word = core["evidence"]["layers"], observed["ring_depth"], observed["residency"]
    evicted, hits, misses = (
        int(observed[name]) for name in ("evictions", "prefetch_hits", "prefetch_misses")
    )
    if depth == 0 or depth >= layers:
        same("1: observed.residency", "all_resident", word)
        same("1: observed: layers that stay", (0, 0, 0), (evicted, hits, misses))
        return
    require(word in ("ring", "unobservable"), "1: observed.residency")
    require(evicted % layers == 0, "1: observed.evictions")
    require(evicted >= layers * (1 + core["sampled_tokens"]), "1: observed.evictions")
    looks = evicted - layers if word == "ring" else 0
    same("1: observed.prefetch_hits and misses", looks, hits + misses)
    require(word == "ring" or hits == 0, "1: observed.prefetch_hits")


def _check_layer_events(events: list[Any], dropped: int, observed: Any) -> None:
    found = [event for event in events if event[0] in LAYERS]
    same("1: telemetry: a layer", found, [event for event in events if event[2] is not None])
    require(len(found) <= MOST_LAYER_EVENTS, "1: telemetry: events of layers")
    for name, field in LAYERS.items():
        count = sum(event[0] == name for event in found)
        if field is None:
            require(not count or observed["residency"] != "all_resident", f"1: telemetry: {name!r}")
            continue
        if not dropped and len(found) < MOST_LAYER_EVENTS:
            same(f"1: observed.{field}", str(count), observed[field])
        require(count <= int(observed[field]), f"1: observed.{field}")


def check_telemetry(data: bytes, receipt: Fields) -> None:
    """The events of the run."""
    core, observed = receipt["core"], receipt["observed"]
    same("1: observed.telemetry_digest", file_digest(data), observed["telemetry_digest"])
    require(data.endswith(b"\n"), "1: telemetry: its end")
    rows = [EVENT.fullmatch(line) for line in data[:-1].split(b"\n")]
    events = [row.groups() for row in rows if row is not None]
    same("1: telemetry: a line", len(rows), len(events))
    names = [event[0] for event in events]
    require({*names} <= {*FRAME, *INNER}, "1: telemetry: an event's name")
    tokens = [event for event in events if event[0] == b"TokenEmitted"]
    same("1: telemetry: an index", tokens, [event for event in events if event[1] is not None])
    numbers = [int(event[5]) for event in events]
    times = [int(event[3]) for event in events]
    indexes = [int(event[1]) for event in tokens]
    grows = numbers == sorted({*numbers}) and indexes == sorted({*indexes})
    require(grows and times == sorted(times), "1: telemetry: out of order")
    dropped = numbers[-1] + 1 - len(numbers)
    same("1: observed.dropped_events", str(dropped), observed["dropped_events"])
    _check_layer_events(events, dropped, observed)
    if not dropped:
        same("1: telemetry: its frame", FRAME, [*names[:3], names[-1]])
        require({*names[3:-1]} <= {*INNER}, "1: telemetry: its events")
        same("1: telemetry: token indexes", [*range(len(tokens))], indexes)
    least = core["sampled_tokens"] - dropped
    require(least <= len(tokens) <= core["sampled_tokens"], "1: core.sampled_tokens")


def request_body(run: Any) -> bytes:
    return jcs({name: value for name, value in run.items() if name not in OUTSIDE})


def check_opening(data: bytes, receipt: Fields) -> Fields:
    """Step 11: the opening opens the commitments of the receipt."""
    opening = document("opening", data, 64 << 20)
    core, observed, run = receipt["core"], receipt["observed"], opening["request"]
    blind, output = bytes.fromhex(run["blind"]), base64.b64decode(opening["output"])
    body = request_body(run)
    template = b"" if core["chat_template_digest"] is None else raw(core["chat_template_digest"])
    rendered = opening["rendered_prompt"]
    prompt_ids, sampled = opening["prompt_ids"], opening["sampled_ids"]
    prompt = h("tallystick.prompt", blind, template, rendered.encode(), ids(prompt_ids))
    expected = {
        "receipt_digest": (text(receipt["digest"]), opening["receipt_digest"]),
        "prompt_ids": (core["prompt_tokens"], len(prompt_ids)),
        "sampled_ids": (core["sampled_tokens"], len(sampled)),
        "leaf_checks": (
            4 * int(core["evidence"]["state_leaves"]),
            len(base64.b64decode(opening["leaf_checks"])),
        ),
        "request_digest": (text(h("tallystick.request", blind, body)), core["request_digest"]),
        "run_digest": (text(h("tallystick.run", blind, jcs(run))), observed["run_digest"]),
        "prompt_commitment": (text(prompt), core["prompt_commitment"]),
        "output_commitment": (
            text(h("tallystick.output", blind, ids(sampled), output)),
            core["output_commitment"],
        ),
    }
    for name, (wanted, found) in expected.items():
        same(f"11: {name}", wanted, found)
    _check_declared(receipt, run)
    same("11: chat_template_digest", run["chat"] is None, core["chat_template_digest"] is None)
    require(run["chat"] is not None or rendered == run["prompt"], "11: rendered_prompt")
    if core["disclosed"] is not None:
        plain = (file_digest(run["prompt"].encode()), file_digest(output))
        same("11: disclosed", plain, tuple(core["disclosed"][x] for x in DISCLOSED))
    return {**opening, "run": run, "request_body": body, "blind": blind, "output_bytes": output}


DISCLOSED = ("prompt_digest", "output_digest")


def _check_declared(receipt: Fields, run: Any) -> None:
    core, observed = receipt["core"], receipt["observed"]
    pairs = {
        "run_id": (run["run_id"], observed["run_id"]),
        "model_digest": (run["model_digest"], core["model_digest"]),
        "model": (core["model_digest"], run["model"]["expectedDigest"]),
        "dataset": (core["bundle_digest"], run["dataset"]["expectedDigest"]),
        "prompt_path": (core["bundle_digest"] == NO_BUNDLE, run["prompt_path"] is None),
        "tile": (run["split"] is None, run["tile"] is None),
        "task": (core["task_digest"], run["task"]["expectedDigest"]),
        "policy": (run["policy"], core["runtime_class"]["policy"]),
        "sandbox_profile": (run["sandbox_profile"], core["sandbox"]["profile"]),
        "enforcement": (observed["enforcement_level"], run["enforcement"]),
        "disclosure": (run["disclosure"], core["disclosure"]),
        "evidence": (LEVELS[required_level(run)], core["evidence"]["level"]),
        "seed": (run["temperature"] == "0", run["seed"] is None),
    }
    for name, (declared, executed) in pairs.items():
        same(f"11: {name}", declared, executed)
    require(core["sampled_tokens"] <= run["max_tokens"], "11: sampled_tokens")
    ended = core["stop_reason"] != "length" or core["sampled_tokens"] == run["max_tokens"]
    require(ended, "11: stop_reason")
    if run["expires_at"] is not None:
        late = milliseconds(observed["end_time"]) > milliseconds(run["expires_at"])
        require(not late, "11: expires_at")


def _resource(name: str, digest: str) -> Fields:
    return {"name": name, "digest": {"sha256": digest[7:]}}


def chain_digest(core: Any) -> bytes:
    """hashing.md#documents."""
    return h(
        "tallystick.chain",
        *(raw(core[x]) for x in ("bundle_digest", "model_digest", "task_digest")),
        sha256(jcs(core["engine"])).digest(),
        raw(core["sandbox"]["profile_digest"]),
        raw(core["output_commitment"]),
    )


def statement(receipt: Fields) -> bytes:
    """attestations.md: the execution statement that the receipt determines."""
    core, observed, name = receipt["core"], receipt["observed"], receipt["id"]
    subjects: list[Fields] = [
        {"name": "receipt", "digest": {"tallystickReceipt": receipt["digest"].hex()}},
        {"name": "core", "digest": {"sha256": receipt["core_digest"].hex()}},
        _resource(f"{name}.geoai.json", file_digest(receipt["bytes"])),
        _resource(f"{name}.palw", observed["compute_receipt_digest"]),
    ]
    if core["disclosed"] is not None:
        subjects.append(_resource("output", core["disclosed"]["output_digest"]))
    asked = ("request_digest", "bundle_digest", "task_digest", "model_digest", "disclosure")
    definition = {
        "buildType": "tag:tallystick,2026:inference/v1",
        "externalParameters": {key: core[key] for key in asked},
        "internalParameters": {
            "chain_digest": text(chain_digest(core)),
            **{key: core[key] for key in ("runtime_class_id", "engine", "sandbox")},
            **{key: observed[key] for key in ("enforcement_level", "egress_audit")},
        },
        "resolvedDependencies": [
            _resource("model", core["model_digest"]),
            _resource("engine", core["engine"]["library"]),
        ],
    }
    details = {
        "builder": {"id": "tag:tallystick,2026:worker/v1"},
        "metadata": {
            "invocationId": observed["run_id"],
            "startedOn": observed["start_time"],
            "finishedOn": observed["end_time"],
        },
        "byproducts": [_resource(f"{name}.telemetry.jsonl", observed["telemetry_digest"])],
    }
    return jcs(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": subjects,
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": {"buildDefinition": definition, "runDetails": details},
        }
    )


def check_envelope(data: bytes, receipt: Fields, execution: Fields, key: bytes) -> None:
    """Step 12: an envelope signed by ``key``, about exactly this receipt, and the source's."""
    named = execution["provenance_chain"]["source_attestation_digest"]
    due = 1 if named is None else 2
    require(data.endswith(b"\n") and data.count(b"\n") == due, "12: the envelopes")
    lines = data[:-1].split(b"\n")
    if named is not None:
        same("12: the source attestation", named, file_digest(lines[-1]))
        check_source(lines[-1])
    envelope = parse(lines[0], 1 << 20)
    require({"payloadType", "payload", "signatures"} <= {*envelope}, "12: an envelope")
    same("12: payloadType", PAYLOAD_TYPE, envelope["payloadType"])
    payload = _decoded(envelope["payload"])
    kind = PAYLOAD_TYPE.encode()
    pae = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    require_key(key, "12: the trusted key")
    require(all("sig" in each for each in envelope["signatures"]), "12: a signature")
    signatures = [_decoded(each["sig"]) for each in envelope["signatures"]]
    require(1 <= len(signatures) <= 32, "12: signatures")
    require(any(signed(key, each, pae) for each in signatures), "12: the signature")
    canonical(payload, 64 << 10)
    same("12: the statement", statement(receipt), payload)


def check_source(line: bytes) -> None:
    """attestations.md#source-statement: it agrees with itself; whose it is, is not looked at."""
    envelope = parse(line, 1 << 20)
    same("12: source: payloadType", PAYLOAD_TYPE, envelope["payloadType"])
    statement = canonical(_decoded(envelope["payload"]), 512 << 10)
    same("12: source: its keys", STATEMENT_KEYS, {*statement})
    same("12: source: predicateType", SOURCE_TYPE, statement["predicateType"])
    (subject,) = statement["subject"]
    listed = statement["predicate"]["digests"]
    if listed is not None:
        paths = [each["path"].encode() for each in listed]
        require(bool(paths) and paths == sorted({*paths}), "12: source: the order")
        parts = (
            part
            for path, each in zip(paths, listed, strict=True)
            for part in (
                path,
                int(each["size"]).to_bytes(8, "little"),
                bytes.fromhex(each["sha256"]),
            )
        )
        digest = h("tallystick.tile-set", *parts).hex()
        same("12: source: the tile set", digest, subject["digest"]["tallystickTileSet"])


STATEMENT_KEYS = {"_type", "subject", "predicateType", "predicate"}
SOURCE_TYPE = "tag:tallystick,2026:source/v1"


def _decoded(value: str) -> bytes:
    try:
        found = base64.b64decode(value, altchars=b"-_" if set(value) & set("-_") else None)
    except ValueError:
        raise RefusedError("12: base64") from None
    encode = base64.urlsafe_b64encode if set(value) & set("-_") else base64.b64encode
    same("12: base64", value, encode(found).decode())
    return found
