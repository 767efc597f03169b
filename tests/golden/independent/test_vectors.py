"""The independent checker over every vectors file of compute evidence."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest

from tests.golden.independent import bundles, compute, evidence, manifests, state, transcripts
from tests.golden.independent.basics import Reader, RefusedError, h, merkle_root, text, u32
from tests.golden.independent.core import NO_BUNDLE, NO_SANDBOX, chain_digest, request_body
from tests.golden.independent.documents import canonical, jcs, parse
from tests.support.vectors import spec_vectors


def load(name: str) -> Any:
    return json.loads((spec_vectors() / name).read_text(encoding="utf-8"))


def read_schedule(encoding: str) -> dict[str, Any]:
    reader = Reader(bytes.fromhex(encoding), "schedule")
    found = evidence.read_schedule(reader)
    reader.end()
    return found


def read_operation(encoding: str) -> compute.Op:
    reader = Reader(bytes.fromhex(encoding), "operation")
    found = compute.read_operation(reader)
    reader.end()
    return found


def test_compute_units() -> None:
    vectors = load("compute_units.json")
    for rules in vectors["rulesets"]:
        assert compute.payload(rules["version"]).decode() == rules["payload"]
        assert compute.ruleset_id(rules["version"]).hex() == rules["ruleset_id"]
    for vector in vectors["operations"]:
        operation = (vector["name"], *map(int, vector["fields"]))
        assert compute.encode_operation(operation).hex() == vector["encoding"]
        assert read_operation(vector["encoding"]) == operation
        for version in (1, 2):
            expected = vector[f"v{version}"]
            if expected is None:
                with pytest.raises(RefusedError):
                    compute.price(operation, version)
            else:
                assert compute.price(operation, version) == int(expected)
    (architecture,) = vectors["architectures"]
    model = compute.read_architecture(bytes.fromhex(architecture["encoding"]))
    assert model["id"].hex() == architecture["architecture_id"]
    for vector in vectors["semantic_units"]:
        n = int(vector["prefill"]) + int(vector["generated"])
        assert compute.multiply_accumulates(model, n) == int(vector["mac"])
        units = compute.semantic_units(model, int(vector["prefill"]), int(vector["generated"]))
        assert units == int(vector["compute_units"])
    for vector in vectors["semantic_schedules"]:
        numbers = (int(vector["prefill"]), int(vector["generated"]))
        commitment, operations = compute.semantic_schedule(model, *numbers)
        assert commitment.hex() == vector["commitment"]
        assert len(operations) == int(vector["operations"])
        routes = sum(operation[0] == "expert_route" for operation in operations)
        assert routes == int(vector["expert_routes"])


@pytest.mark.parametrize("encoding", load("compute_units.json")["refused_encodings"])
def test_refused_operations(encoding: str) -> None:
    with pytest.raises(RefusedError):
        read_operation(encoding)


@pytest.mark.parametrize("number", range(len(load("manifest.json")["manifests"])))
def test_manifests(number: int) -> None:
    vector = load("manifest.json")["manifests"][number]
    given, wanted = bytes.fromhex(vector["gives"]["manifest"]), vector["gives"]
    found = manifests.read_manifest(given)
    parts = ("profile", "runtime", "shape")
    ids = ("model_profile_id", "runtime_class_id", "shape_profile_id")
    assert [found[part]["id"].hex() for part in parts] == [wanted[name] for name in ids]
    assert found["id"].hex() == wanted["runtime_manifest_hash"]
    assert found["facts"]["platform"] == vector["platform"]
    shape = manifests.shape_of(vector["runtime_class"], vector["context_tokens"])
    assert shape.hex() == wanted["shape_profile"]
    for place in range(0, len(given), 61):
        edited = bytearray(given)
        edited[place] ^= 1
        with pytest.raises(RefusedError):
            _distinct(bytes(edited), found["id"])


def _distinct(data: bytes, identity: bytes) -> None:
    """Read a manifest; one that is in form has another name, which the receipt does not have."""
    if manifests.read_manifest(data)["id"] != identity:
        raise RefusedError("another manifest")


@pytest.mark.parametrize("number", range(len(load("sealing.json")["vectors"])))
def test_sealed_bundles(number: int) -> None:
    vector = load("sealing.json")["vectors"][number]
    envelope = bundles.read_envelope(bytes.fromhex(vector["envelope"]))
    names = ("salt", "receipt_binding", "key_commitment", "nonce", "public", "bundle_id")
    assert {name: envelope[name].hex() for name in names}.items() <= vector.items()
    key = bundles.bundle_key(bytes.fromhex(vector["audit_key"]), envelope)
    assert key.hex() == vector["bundle_key"]
    assert bundles.associated_data(envelope).hex() == vector["associated_data"]
    assert bundles.opened(envelope, key).hex() == vector["private"]
    for place in range(0, len(vector["envelope"]) // 2, 7):
        edited = bytearray.fromhex(vector["envelope"])
        edited[place] ^= 1
        with pytest.raises(RefusedError):
            bundles.opened(bundles.read_envelope(bytes(edited)), key)


@pytest.mark.parametrize("name", ["live", "sealed"])
def test_schedules_and_traces(name: str) -> None:
    vectors = load("evidence.json")
    vector, blind = vectors[name], bytes.fromhex(vectors["blind"])
    schedule = read_schedule(vector["schedule"])
    ruleset = bytes.fromhex(vectors["ruleset_id"])
    assert evidence.commitment(schedule, ruleset).hex() == vector["commitment"]
    assert schedule["events"] == int(vector["operations"])
    units = sum(compute.price(operation, 1) for operation in evidence.occurrences(schedule))
    assert units == int(vector["units_v1"])
    trace = evidence.read_trace(bytes.fromhex(vector["trace"]), schedule)
    assert trace["scheme"].hex() == vector["trace_scheme_id"]
    sketches = [trace["groups"][at : at + 32].hex() for at in range(4, len(trace["groups"]), 36)]
    assert sketches == vector["sketches"]
    assert evidence.gemm_root(blind, trace).hex() == vector["gemm_root"]


def test_routes() -> None:
    vectors = load("evidence.json")
    routes = evidence.read_routes(bytes.fromhex(vectors["routes"]["encoding"]))
    root = evidence.route_root(bytes.fromhex(vectors["blind"]), routes)
    assert root.hex() == vectors["routes"]["expert_route_root"]


@pytest.mark.parametrize("number", range(len(load("evidence.json")["portable"])))
def test_portable_evidence(number: int) -> None:
    vector = load("evidence.json")["portable"][number]
    found = evidence.read_portable(bytes.fromhex(vector["encoding"]))
    roots = (found["state_root"], found["route_root"], found["gemm_root"])
    assert evidence.composed_root(found["level"], *roots).hex() == vector["gemm_trace_root"]
    (architecture,) = load("compute_units.json")["architectures"]
    model = compute.read_architecture(bytes.fromhex(architecture["encoding"]))
    if found["schedule"] is None:
        derived = evidence.derive(found, model)
        assert derived["commitment"].hex() == vector["schedule_commitment"]
        assert str(derived["units"]) == str(vector["compute_units"])
    else:
        commitment = evidence.commitment(found["schedule"], found["ruleset_id"])
        assert commitment.hex() == vector["schedule_commitment"]


def test_the_transcript_gives_the_evidence() -> None:
    vectors = load("evidence.json")
    data = (spec_vectors() / "observer.jsonl").read_bytes()
    found = transcripts.adapt(data, used=2)
    assert found["schedule"].hex() == vectors["live"]["schedule"]
    assert found["trace"].hex() == vectors["live"]["trace"]
    roots = transcripts.roots(found, bytes.fromhex(vectors["blind"]), (1, 4, 2))
    assert roots["gemm_root"].hex() == vectors["live"]["gemm_root"]
    assert roots["routes"].hex() == vectors["routes"]["encoding"]
    assert roots["expert_route_root"].hex() == vectors["routes"]["expert_route_root"]


def test_the_transcript_of_a_pass_gives_the_evidence() -> None:
    vectors = load("evidence.json")
    wanted = vectors["pass"]
    data = (spec_vectors() / "observer-sealing.jsonl").read_bytes()
    found = transcripts.adapt(data, used=2)
    assert [(step["phase"], step["tokens"]) for step in found["steps"]] == [(2, 4), (2, 3), (2, 2)]
    assert found["schedule"].hex() == wanted["schedule"]
    assert found["trace"].hex() == wanted["trace"]
    roots = transcripts.roots(found, bytes.fromhex(vectors["blind"]), (2, 4, 2))
    assert roots["gemm_root"].hex() == wanted["gemm_root"]
    assert roots["routes"].hex() == wanted["routes"]["encoding"]
    assert roots["expert_route_root"].hex() == wanted["routes"]["expert_route_root"]


def test_hashes_and_trees() -> None:
    for vector in load("hashing.json")["vectors"]:
        parts = [bytes.fromhex(part) for part in vector["parts"]]
        found = h(vector["domain"], *parts, version=vector["version"])
        assert found.hex() == vector["digest"].removeprefix("sha256:")
    for vector in load("merkle.json")["vectors"]:
        leaves = [sha256(b"\0" + u32(leaf)).digest() for leaf in range(vector["leaves"])]
        assert merkle_root(leaves).hex() == vector["root"]


def test_digests_of_documents() -> None:
    vectors = load("digests.json")
    run, receipt, expected = vectors["run"], vectors["receipt"], vectors["expected"]
    blind, body = bytes.fromhex(run["blind"]), request_body(run)
    core_digest, observed_digest = (
        sha256(jcs(receipt[part])).digest() for part in ("core", "observed")
    )
    digest = h("geoai.receipt", core_digest, observed_digest)
    found = {
        "request_body": body.decode(),
        "derived_blind": h("tallystick.blind", bytes.fromhex(vectors["commit_key"]), body).hex(),
        "request_digest": text(h("tallystick.request", blind, body)),
        "run_digest": text(h("tallystick.run", blind, jcs(run))),
        "no_bundle_digest": NO_BUNDLE,
        "sandbox_profile_none": NO_SANDBOX,
        "core_digest": text(core_digest),
        "observed_digest": text(observed_digest),
        "receipt_digest": text(digest),
        "receipt_id": digest.hex()[:32],
        "chain_digest": text(chain_digest(receipt["core"])),
    }
    assert found.items() <= expected.items()
    assert parse(jcs(run), 1 << 20) == run


@pytest.mark.parametrize("number", range(len(load("state-tree.json")["vectors"])))
def test_state_trees(number: int) -> None:
    vector = load("state-tree.json")["vectors"][number]
    shape = (vector["prompt_tokens"], vector["sampled_tokens"], vector["layers"])
    rows = {(x["layer"], x["position"]): bytes.fromhex(x["row"]) for x in vector["rows"]}

    def row(layer: int, position: int) -> bytes:
        return rows[layer, position]

    leaves = state.leaves(bytes.fromhex(vector["blind"]), shape, row)
    assert [leaf.hex() for leaf in leaves] == [x["leaf"] for x in vector["rows"]]
    assert len(leaves) == state.leaf_count(*shape)
    assert merkle_root(leaves).hex() == vector["root"]
    credential = bytes.fromhex(vector["credential_id"])
    own = state.leaves(bytes.fromhex(vector["blind"]), shape, row, credential)
    assert merkle_root(own).hex() == vector["credential_root"]


@pytest.mark.parametrize("number", range(len(load("json.json")["vectors"])))
def test_documents(number: int) -> None:
    """Where a document of the set could be like the vector: none has a fraction."""
    vector = load("json.json")["vectors"][number]
    data = bytes.fromhex(vector["bytes"])
    try:
        canonical(data, 1 << 20)
    except RefusedError:
        taken = False
    else:
        taken = True
    assert taken is (vector["accepted"] and vector["canonical"]) or b"." in data or b"e" in data
