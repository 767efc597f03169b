"""The golden vectors: the project's code and a second implementation both have to give them."""

from __future__ import annotations

import base64
import json
from hashlib import sha256
from typing import Any

import pytest
from blake3 import blake3

from tallystick.canonical.hashing import domain_digest, frame
from tallystick.canonical.json import parse_canonical, parse_strict
from tallystick.canonical.merkle import MerkleFrontier
from tallystick.contracts import digests
from tallystick.contracts.codec import decode, encode
from tallystick.contracts.receipt import Receipt
from tallystick.contracts.request import InferenceRun
from tallystick.errors import EvidenceError
from tallystick.evidence.state_tree import StateTree, leaf_count, locate, row_digests
from tests.golden import reference
from tests.support.vectors import spec_vectors


def load(name: str) -> Any:
    return json.loads((spec_vectors() / name).read_text(encoding="utf-8"))


def named(vectors: list[dict[str, Any]], key: str) -> list[Any]:
    return [pytest.param(vector, id=str(vector[key])) for vector in vectors]


@pytest.mark.parametrize("index", range(len(load("hashing.json")["vectors"])))
def test_framed_hash(index: int) -> None:
    vector = load("hashing.json")["vectors"][index]
    parts = [bytes.fromhex(part) for part in vector["parts"]]
    arguments = (vector["domain"], vector["version"], parts)

    assert reference.framed(*arguments).hex() == vector["frame"]
    assert frame(*arguments).hex() == vector["frame"]
    assert domain_digest(*arguments) == vector["digest"]


def test_no_two_framed_hashes_are_equal() -> None:
    found = [vector["digest"] for vector in load("hashing.json")["vectors"]]

    assert len(set(found)) == len(found)


@pytest.mark.parametrize("vector", named(load("merkle.json")["vectors"], "leaves"))
def test_merkle_root(vector: dict[str, Any]) -> None:
    leaves = [sha256(b"\x00" + i.to_bytes(4, "little")).digest() for i in range(vector["leaves"])]
    one_by_one = MerkleFrontier()
    for leaf in leaves:
        one_by_one.append(leaf)

    assert reference.tree_root(leaves).hex() == vector["root"]
    assert one_by_one.root().hex() == vector["root"]
    at_once = MerkleFrontier()
    at_once.extend(leaves)
    assert at_once.root().hex() == vector["root"]


def shape_id(vector: dict[str, Any]) -> str:
    return f"P{vector['prompt_tokens']}-G{vector['sampled_tokens']}-L{vector['layers']}"


@pytest.mark.parametrize("vector", load("state-tree.json")["vectors"], ids=shape_id)
def test_state_tree_by_the_reference(vector: dict[str, Any]) -> None:
    blind = bytes.fromhex(vector["blind"])
    credential = bytes.fromhex(vector["credential_id"])
    shape = (vector["prompt_tokens"], vector["sampled_tokens"], vector["layers"])
    leaves, bound = [], []
    for row in vector["rows"]:
        place = (blind, row["layer"], row["position"])
        data = bytes.fromhex(row["row"])
        assert blake3(data).hexdigest() == row["row_digest"]
        assert reference.salt(*place).hex() == row["salt"]
        assert reference.state_leaf(*place, data).hex() == row["leaf"]
        leaves.append(bytes.fromhex(row["leaf"]))
        bound.append(reference.state_leaf(*place, data, credential))

    assert [(row["position"], row["layer"]) for row in vector["rows"]] == reference.row_order(
        *shape
    )
    assert reference.tree_root(leaves).hex() == vector["root"]
    assert reference.tree_root(bound).hex() == vector["credential_root"]


@pytest.mark.parametrize("vector", load("state-tree.json")["vectors"], ids=shape_id)
@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_state_tree_by_the_project(vector: dict[str, Any], chunk: int) -> None:
    blind = bytes.fromhex(vector["blind"])
    prompt, sampled, layers = (
        vector["prompt_tokens"],
        vector["sampled_tokens"],
        vector["layers"],
    )
    rows = {(row["position"], row["layer"]): row for row in vector["rows"]}
    tree = StateTree(blind, layers, prompt, credential_id=bytes.fromhex(vector["credential_id"]))
    for first in range(0, prompt + sampled - 1, chunk):
        positions = range(first, min(first + chunk, prompt + sampled - 1))
        blocks = [
            b"".join(
                bytes.fromhex(rows[position, layer]["row"])
                for position in positions
                if (position, layer) in rows
            )
            for layer in range(layers + 1)
        ]
        hidden = [row_digests(block, 8) for block in blocks[:-2]]
        last, logits = row_digests(blocks[-2], 8), row_digests(blocks[-1], 12)
        tree.push_digests(first, len(positions), hidden, last, logits)

    assert tree.count == leaf_count(prompt, sampled, layers) == len(rows)
    assert tree.root().hex() == vector["root"]
    assert base64.b64encode(tree.leaf_checks).decode() == vector["leaf_checks"]
    assert tree.worker_root().hex() == vector["credential_root"]
    for index, row in enumerate(vector["rows"]):
        assert locate(index, prompt, layers) == (row["position"], row["layer"])


def test_digests_by_the_project() -> None:
    vector = load("digests.json")
    run = decode(InferenceRun, vector["run"])
    receipt = decode(Receipt, vector["receipt"])
    blind = bytes.fromhex(run.blind)
    prompt, output = vector["prompt"], vector["output"]
    rendered, ids = prompt["rendered"], prompt["ids"]
    template = prompt["chat_template_digest"]
    body = digests.request_body(run)

    assert encode(run) == vector["run"]
    assert encode(receipt) == vector["receipt"]
    assert vector["expected"] == {
        "request_body": body.decode(),
        "derived_blind": digests.derive_blind(bytes.fromhex(vector["commit_key"]), body).hex(),
        "request_digest": digests.request_digest(run),
        "run_digest": digests.run_digest(run),
        "prompt_commitment": digests.prompt_commitment(blind, template, rendered, ids),
        "prompt_commitment_without_template": digests.prompt_commitment(blind, None, rendered, ids),
        "output_commitment": digests.output_commitment(
            blind, output["ids"], bytes.fromhex(output["bytes"])
        ),
        "no_bundle_digest": digests.no_bundle_digest(),
        "sandbox_profile_none": digests.sandbox_profile_digest("none", "none"),
        "runtime_class_id": digests.runtime_class_id(receipt.core.runtime_class),
        "core_digest": digests.core_digest(receipt.core),
        "observed_digest": digests.observed_digest(receipt.observed),
        "receipt_digest": digests.receipt_digest(receipt),
        "receipt_id": digests.receipt_id(digests.receipt_digest(receipt)),
        "chain_digest": digests.chain_digest(receipt.core),
    }


def test_request_digests_by_the_reference() -> None:
    vector = load("digests.json")
    run, expected = vector["run"], vector["expected"]
    outside = {"run_id", "replica_slot", "expires_at", "network_id", "model_path", "blind"}
    blind = bytes.fromhex(run["blind"])
    jcs = reference.plain_jcs
    body = jcs({name: value for name, value in run.items() if name not in outside})
    ids = reference.little_ids(vector["prompt"]["ids"])
    template = reference.raw(vector["prompt"]["chat_template_digest"])
    text = vector["prompt"]["rendered"].encode()
    output = bytes.fromhex(vector["output"]["bytes"])
    named = reference.named
    commit_key = bytes.fromhex(vector["commit_key"])

    assert body.decode() == expected["request_body"]
    assert named("tallystick.blind", commit_key, body)[7:] == expected["derived_blind"]
    assert named("tallystick.request", blind, body) == expected["request_digest"]
    assert named("tallystick.run", blind, jcs(run)) == expected["run_digest"]
    assert named("tallystick.prompt", blind, template, text, ids) == expected["prompt_commitment"]
    assert (
        named("tallystick.prompt", blind, b"", text, ids)
        == expected["prompt_commitment_without_template"]
    )
    assert named("tallystick.output", blind, ids, output) == expected["output_commitment"]


def test_receipt_digests_by_the_reference() -> None:
    vector = load("digests.json")
    core, observed = vector["receipt"]["core"], vector["receipt"]["observed"]
    expected = vector["expected"]
    jcs, raw, named = reference.plain_jcs, reference.raw, reference.named
    core_hash, observed_hash = sha256(jcs(core)).digest(), sha256(jcs(observed)).digest()
    receipt = named("geoai.receipt", core_hash, observed_hash)
    chain = named(
        "tallystick.chain",
        raw(core["bundle_digest"]),
        raw(core["model_digest"]),
        raw(core["task_digest"]),
        sha256(jcs(core["engine"])).digest(),
        raw(core["sandbox"]["profile_digest"]),
        raw(core["output_commitment"]),
    )
    profile = jcs({"name": "none", "level": "none"})

    assert named("tallystick.no-bundle") == expected["no_bundle_digest"]
    assert named("tallystick.sandbox-profile", profile) == expected["sandbox_profile_none"]
    assert (
        named("tallystick.runtime-class", jcs(core["runtime_class"]))
        == expected["runtime_class_id"]
    )
    assert raw(expected["core_digest"]) == core_hash
    assert raw(expected["observed_digest"]) == observed_hash
    assert receipt == expected["receipt_digest"]
    assert raw(receipt).hex()[:32] == expected["receipt_id"]
    assert chain == expected["chain_digest"]


@pytest.mark.parametrize("vector", named(load("json.json")["vectors"], "name"))
def test_strict_json(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["bytes"])
    if not vector["accepted"]:
        with pytest.raises(EvidenceError):
            parse_strict(data, max_bytes=10_000)
        return
    value = parse_strict(data, max_bytes=10_000)
    assert value == json.loads(data)
    if vector["canonical"]:
        assert parse_canonical(data, max_bytes=10_000) == value
    else:
        with pytest.raises(EvidenceError, match="canonical"):
            parse_canonical(data, max_bytes=10_000)
