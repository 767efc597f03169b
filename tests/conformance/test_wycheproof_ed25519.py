"""Project Wycheproof's Ed25519 verification vectors: every one of them."""

from __future__ import annotations

import json
from typing import Any

from tallystick.attest.keys import PublicKey
from tallystick.errors import EvidenceError
from tests.support.vectors import vector_dir


def load() -> dict[str, Any]:
    path = vector_dir("wycheproof") / "ed25519_test.json"
    value: dict[str, Any] = json.loads(path.read_bytes())
    return value


def holds(key: PublicKey, test: dict[str, Any]) -> bool:
    try:
        key.verify(bytes.fromhex(test["sig"]), bytes.fromhex(test["msg"]))
    except EvidenceError:
        return False
    return True


def test_every_vector() -> None:
    document = load()
    seen = {"valid": 0, "invalid": 0}
    for group in document["testGroups"]:
        key = PublicKey.from_hex(group["publicKey"]["pk"])
        for test in group["tests"]:
            assert holds(key, test) == (test["result"] == "valid"), test["tcId"]
            seen[test["result"]] += 1
    assert seen == {"valid": 88, "invalid": 63}
    assert sum(seen.values()) == document["numberOfTests"]


def test_every_public_key_reads_and_writes_as_pem() -> None:
    groups = load()["testGroups"]
    assert groups
    for group in groups:
        key = PublicKey.from_hex(group["publicKey"]["pk"])
        assert PublicKey.from_pem(group["publicKeyPem"].encode()) == key
        assert key.pem() == group["publicKeyPem"]
