"""Sealed bundles with fixed randomness: both implementations give these bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tallystick.attest.bundlekeys import AuditKey, BundleKey, derive_bundle_key, key_commitment
from tallystick.receipts.sealing import bundle_id, open_with, parse, public_digest, seal
from tests.golden import reference_sealing as reference
from tests.golden.write_sealing_vectors import content
from tests.support.vectors import spec_vectors

DOCUMENT = json.loads((spec_vectors() / "sealing.json").read_text(encoding="utf-8"))


def vectors() -> list[Any]:
    texts = ("name",)
    return [
        pytest.param(
            {key: value if key in texts else bytes.fromhex(value) for key, value in vector.items()},
            id=vector["name"],
        )
        for vector in DOCUMENT["vectors"]
    ]


def test_the_file_is_what_the_second_implementation_writes() -> None:
    assert content() == DOCUMENT


@pytest.mark.parametrize("vector", vectors())
def test_sealing_gives_the_envelope(vector: dict[str, Any]) -> None:
    key = AuditKey(vector["audit_key"])
    randomness = {"salt": vector["salt"], "nonce": vector["nonce"]}
    binding = vector["receipt_binding"]

    sealed = seal(
        vector["public"], vector["private"], receipt_binding=binding, key=key, **randomness
    )

    assert sealed == vector["envelope"]
    assert bundle_id(sealed) == vector["bundle_id"]
    assert public_digest(vector["public"]) == vector["public_digest"]
    derived = derive_bundle_key(key, salt=vector["salt"], receipt_binding=binding)
    assert derived == BundleKey(vector["bundle_key"])
    assert key_commitment(derived, vector["salt"]) == vector["key_commitment"]


@pytest.mark.parametrize("vector", vectors())
def test_the_envelope_opens(vector: dict[str, Any]) -> None:
    envelope = parse(vector["envelope"])

    assert open_with(envelope, AuditKey(vector["audit_key"])) == vector["private"]
    assert open_with(envelope, BundleKey(vector["bundle_key"])) == vector["private"]
    for field in ("salt", "receipt_binding", "key_commitment", "nonce", "public", "bundle_id"):
        assert getattr(envelope, field) == vector[field]
    parts = (vector["public"], vector["private"])
    assert reference.opened(vector["envelope"], vector["audit_key"]) == parts
