"""The C2SP CCTV vectors: edge cases of the two points of an Ed25519 signature.

The signature rule equals ed25519-dalek's ``verify_strict``, as the vectors' README describes it.
The key rule refuses, beyond that, each key that has a low-order component.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from tallystick.attest.keys import PublicKey, signature_holds
from tallystick.errors import EvidenceError, InputError
from tests.support.vectors import vector_dir

# What verify_strict refuses. A residue needs the cofactored equation, and a re-encoded k hashes
# another encoding than the one given; neither satisfies RFC 8032's cofactorless equation.
REFUSED_BY_VERIFY_STRICT = {
    "low_order_A",
    "low_order_R",
    "non_canonical_A",
    "non_canonical_R",
    "low_order_residue",
    "reencoded_k",
}
REFUSED_KEYS = {"low_order_A", "non_canonical_A", "low_order_component_A"}


def load() -> list[dict[str, Any]]:
    path = vector_dir("cctv_ed25519") / "ed25519vectors.json"
    vectors: list[dict[str, Any]] = json.loads(path.read_bytes())
    assert len(vectors) == 914
    return vectors


def flags(vector: dict[str, Any]) -> set[str]:
    return set(vector["flags"] or ())


def test_the_signature_rule_is_verify_strict() -> None:
    verdicts: Counter[bool] = Counter()
    for vector in load():
        expected = not flags(vector) & REFUSED_BY_VERIFY_STRICT
        found = signature_holds(
            bytes.fromhex(vector["key"]), bytes.fromhex(vector["sig"]), vector["msg"].encode()
        )
        assert found == expected, vector["number"]
        verdicts[found] += 1
    assert verdicts == {True: 43, False: 871}


def test_the_key_rule_refuses_each_key_outside_the_prime_order_group() -> None:
    verdicts: Counter[bool] = Counter()
    for vector in load():
        verdicts[key_is_accepted(vector["key"])] += 1
        assert key_is_accepted(vector["key"]) == (not flags(vector) & REFUSED_KEYS)
    assert verdicts == {True: 28, False: 886}


def test_both_rules_together() -> None:
    accepted = [vector["number"] for vector in load() if is_accepted(vector)]
    plain = [vector["number"] for vector in load() if not flags(vector)]
    assert len(plain) == 1
    assert accepted == plain


def key_is_accepted(text: str) -> bool:
    try:
        PublicKey.from_hex(text)
    except InputError:
        return False
    return True


def is_accepted(vector: dict[str, Any]) -> bool:
    try:
        key = PublicKey.from_hex(vector["key"])
        key.verify(bytes.fromhex(vector["sig"]), vector["msg"].encode())
    except (InputError, EvidenceError):
        return False
    return True
