"""The DSSE specification's own example.

Its signature is ECDSA P-256, which this project does not verify: the vector checks the
pre-authentication encoding and the reading of envelopes, not a signature.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tallystick.attest import dsse
from tallystick.attest.keys import SigningKey
from tallystick.errors import EvidenceError
from tests.support.vectors import vector_dir


@pytest.fixture
def vector() -> dict[str, Any]:
    value: dict[str, Any] = json.loads((vector_dir("dsse") / "pae_vector.json").read_bytes())
    return value


def test_pre_authentication_encoding(vector: dict[str, Any]) -> None:
    encoded = dsse.pae(vector["payload_type"], vector["serialized_body"].encode())
    assert encoded == vector["pae"].encode()


def test_lengths_count_bytes() -> None:
    assert dsse.pae("é", b"\x00\xff") == b"DSSEv1 2 \xc3\xa9 2 \x00\xff"
    assert dsse.pae("", b"") == b"DSSEv1 0  0 "


def test_the_envelope_is_read(vector: dict[str, Any]) -> None:
    envelope = json.dumps(vector["envelope"]).encode()
    assert dsse.unsafe_payload(envelope) == vector["serialized_body"].encode()


def test_the_foreign_signature_is_skipped(vector: dict[str, Any]) -> None:
    key = SigningKey.generate()
    envelope = vector["envelope"]

    def verify() -> dsse.Verified:
        return dsse.verify(
            json.dumps(envelope).encode(),
            payload_type=vector["payload_type"],
            keys=[key.public],
        )

    with pytest.raises(EvidenceError, match="not signed by the trusted keys"):
        verify()
    payload = vector["serialized_body"].encode()
    own = json.loads(dsse.sign(payload, vector["payload_type"], [key]))
    envelope["signatures"] += own["signatures"]
    assert verify() == dsse.Verified(payload, (key.public,))
