"""DSSE envelopes: what passes and, above all, what does not."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.bindings import (
    crypto_sign_ed25519ph_final_create,
    crypto_sign_ed25519ph_state,
    crypto_sign_ed25519ph_update,
    crypto_sign_seed_keypair,
)

from tallystick.attest import dsse
from tallystick.attest.keys import PublicKey, SigningKey
from tallystick.errors import EvidenceError

ALICE = SigningKey.from_seed(b"\x01" * 32)
BOB = SigningKey.from_seed(b"\x02" * 32)
EVE = SigningKey.from_seed(b"\x03" * 32)
KIND = dsse.PAYLOAD_TYPE
# Its base64 has both characters in which the alphabets differ, and padding.
PAYLOAD = b'{"a":"\xc3\xbb\xef\xbf\xbe\xef\xbf\xbf>>>???"}\n'


def envelope(*keys: SigningKey, payload: bytes = PAYLOAD, kind: str = KIND) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(dsse.sign(payload, kind, keys))
    return value


def check(value: object, *keys: PublicKey, threshold: int = 1) -> dsse.Verified:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return dsse.verify(data, payload_type=KIND, keys=keys, threshold=threshold)


def test_the_payload_comes_back_byte_for_byte_with_its_signer() -> None:
    result = check(envelope(ALICE), BOB.public, ALICE.public)
    assert result == dsse.Verified(PAYLOAD, (ALICE.public,))


def test_an_envelope_is_one_canonical_line() -> None:
    line = dsse.sign(PAYLOAD, KIND, [ALICE])
    assert b"\n" not in line
    assert json.dumps(json.loads(line), sort_keys=True, separators=(",", ":")).encode() == line
    assert envelope(ALICE)["signatures"][0]["keyid"] == ALICE.public.key_id


def test_both_base64_alphabets_are_accepted() -> None:
    value = envelope(ALICE)
    assert set("+/=") <= set(value["payload"] + value["signatures"][0]["sig"])
    value["payload"] = base64.urlsafe_b64encode(PAYLOAD).decode()
    raw = base64.b64decode(value["signatures"][0]["sig"])
    value["signatures"][0]["sig"] = base64.urlsafe_b64encode(raw).decode()
    assert check(value, ALICE.public).payload == PAYLOAD


@given(st.binary(max_size=300), st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_payload_and_type_round_trip(payload: bytes, kind: str) -> None:
    line = dsse.sign(payload, kind, [ALICE])
    assert dsse.verify(line, payload_type=kind, keys=[ALICE.public]).payload == payload
    with pytest.raises(EvidenceError):
        dsse.verify(line, payload_type=kind + " ", keys=[ALICE.public])


@pytest.mark.parametrize("keyid", [None, "", "other", EVE.public.key_id, 7, ["x"]])
def test_the_key_id_decides_nothing(keyid: object) -> None:
    value = envelope(ALICE)
    value["signatures"][0]["keyid"] = keyid
    assert check(value, ALICE.public).signers == (ALICE.public,)
    with pytest.raises(EvidenceError):
        check(value, EVE.public)


def test_an_absent_key_id_decides_nothing() -> None:
    value = envelope(ALICE)
    del value["signatures"][0]["keyid"]
    assert check(value, ALICE.public).signers == (ALICE.public,)


def test_unknown_fields_are_ignored() -> None:
    value = envelope(ALICE)
    value["extra"] = {"x": [1]}
    value["signatures"][0]["cert"] = "abc"
    assert check(value, ALICE.public).payload == PAYLOAD


def test_a_repeated_field_is_refused() -> None:
    line = dsse.sign(PAYLOAD, KIND, [ALICE])
    repeated = line.replace(b'{"payload":', b'{"payload":"AA==","payload":', 1)
    with pytest.raises(EvidenceError, match="repeats a key"):
        check(repeated, ALICE.public)


@pytest.mark.parametrize(
    "kind", ["text/plain", KIND.upper(), KIND + " ", " " + KIND, KIND + "; x=y", ""]
)
def test_a_valid_signature_over_another_payload_type_fails(kind: str) -> None:
    with pytest.raises(EvidenceError, match="payload type"):
        check(envelope(ALICE, kind=kind), ALICE.public)


def test_relabelling_the_payload_type_breaks_the_signature() -> None:
    value = envelope(ALICE, kind="text/plain")
    value["payloadType"] = KIND
    with pytest.raises(EvidenceError, match="not signed by the trusted keys"):
        check(value, ALICE.public)


def test_every_changed_bit_of_the_payload_fails() -> None:
    value = envelope(ALICE)
    for bit in range(8 * len(PAYLOAD)):
        changed = bytearray(PAYLOAD)
        changed[bit // 8] ^= 1 << bit % 8
        value["payload"] = base64.b64encode(bytes(changed)).decode()
        with pytest.raises(EvidenceError, match="not signed"):
            check(value, ALICE.public)


def test_no_signatures_never_pass() -> None:
    value = envelope(ALICE)
    value["signatures"] = []
    with pytest.raises(EvidenceError, match="not a DSSE envelope"):
        check(value, ALICE.public)
    with pytest.raises(ValueError, match="threshold"):
        check(envelope(ALICE), ALICE.public, threshold=0)


def test_no_keys_never_pass() -> None:
    with pytest.raises(EvidenceError, match="not signed"):
        check(envelope(ALICE))


def test_another_signer_fails() -> None:
    with pytest.raises(EvidenceError, match="not signed"):
        check(envelope(EVE), ALICE.public, BOB.public)


def test_two_distinct_signers_make_a_threshold_of_two() -> None:
    result = check(envelope(BOB, EVE, ALICE), ALICE.public, BOB.public, threshold=2)
    assert result.signers == (ALICE.public, BOB.public)


def test_two_signatures_by_one_key_count_once() -> None:
    value = envelope(ALICE, ALICE)
    value["signatures"][1]["keyid"] = "second id"
    with pytest.raises(EvidenceError, match="not signed"):
        check(value, ALICE.public, BOB.public, threshold=2)


def test_one_key_trusted_twice_counts_once() -> None:
    twice = (ALICE.public, PublicKey.from_raw(ALICE.public.raw))
    with pytest.raises(EvidenceError, match="not signed"):
        check(envelope(ALICE, ALICE), *twice, threshold=2)


def test_a_signature_by_another_algorithm_is_skipped() -> None:
    value = envelope(ALICE)
    value["signatures"].insert(0, {"sig": base64.b64encode(b"\x30" * 71).decode()})
    assert check(value, ALICE.public).signers == (ALICE.public,)


@pytest.mark.parametrize("message", [PAYLOAD, dsse.pae(KIND, PAYLOAD)])
def test_an_ed25519ph_signature_over_the_same_bytes_fails(message: bytes) -> None:
    _, secret = crypto_sign_seed_keypair(b"\x01" * 32)
    state = crypto_sign_ed25519ph_state()
    crypto_sign_ed25519ph_update(state, message)
    value = envelope(ALICE)
    prehashed = crypto_sign_ed25519ph_final_create(state, secret)
    value["signatures"][0]["sig"] = base64.b64encode(prehashed).decode()
    with pytest.raises(EvidenceError, match="not signed"):
        check(value, ALICE.public)


def test_a_signature_over_the_bare_payload_fails() -> None:
    value = envelope(ALICE)
    value["signatures"][0]["sig"] = base64.b64encode(ALICE.sign(PAYLOAD)).decode()
    with pytest.raises(EvidenceError, match="not signed"):
        check(value, ALICE.public)


@pytest.mark.parametrize(
    "payload",
    [
        "=",
        "QQ",
        "QQ=",
        "QR==",
        "QQ==\n",
        "Q Q=",
        "+/-_",
        "+_+_",
        "QQ==QQ==",
        "\u00e9A==",
        "====",
        5,
        None,
    ],
)
def test_other_spellings_of_base64_are_refused(payload: object) -> None:
    value = envelope(ALICE, payload=b"A")
    assert value["payload"] == "QQ=="
    value["payload"] = payload
    with pytest.raises(EvidenceError, match="not a DSSE envelope"):
        check(value, ALICE.public)


@pytest.mark.parametrize(
    "change",
    [
        {"payload": None},
        {"payloadType": None},
        {"payloadType": 1},
        {"signatures": None},
        {"signatures": {"sig": "QQ=="}},
        {"signatures": ["QQ=="]},
        {"signatures": [{"sig": 1}]},
        {"signatures": [{}]},
        {"signatures": [{"sig": "QQ"}]},
    ],
)
def test_malformed_envelopes_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(EvidenceError, match="not a DSSE envelope"):
        check({**envelope(ALICE), **change}, ALICE.public)


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b'"x"', b"{", b"\xff", b"\xef\xbb\xbf{}"])
def test_other_documents_are_refused(data: bytes) -> None:
    with pytest.raises(EvidenceError):
        check(data, ALICE.public)


def test_bounds() -> None:
    value = envelope(*[ALICE] * dsse.MAX_SIGNATURES)
    assert check(value, ALICE.public).signers == (ALICE.public,)
    value["signatures"].append(value["signatures"][0])
    with pytest.raises(EvidenceError, match="not a DSSE envelope"):
        check(value, ALICE.public)
    padding = b" " * (dsse.MAX_ENVELOPE_BYTES - len(dsse.sign(PAYLOAD, KIND, [ALICE])))
    fits = dsse.sign(PAYLOAD, KIND, [ALICE]) + padding
    assert check(fits, ALICE.public).payload == PAYLOAD
    with pytest.raises(EvidenceError, match="too large"):
        check(fits + b" ", ALICE.public)


def test_unsafe_payload_checks_form_only() -> None:
    value = envelope(EVE)
    value["signatures"][0]["sig"] = "QQ=="
    assert dsse.unsafe_payload(json.dumps(value).encode()) == PAYLOAD
    with pytest.raises(EvidenceError):
        dsse.unsafe_payload(b"{}")


def test_signing_needs_a_key() -> None:
    with pytest.raises(ValueError, match="at least one signature"):
        dsse.sign(PAYLOAD, KIND, [])
