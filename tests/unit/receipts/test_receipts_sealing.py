"""Sealed bundles: what opens them, what is refused, and as what."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, replace
from hashlib import sha256
from typing import Any

import pytest

from tallystick.attest.bundlekeys import AuditKey, BundleKey
from tallystick.contracts.bundle import MAX_BUNDLE
from tallystick.errors import EvidenceError, InputError
from tallystick.receipts.sealing import (
    MAGIC,
    NONCE_BYTES,
    SALT_BYTES,
    TAG_BYTES,
    bundle_id,
    bundle_key_of,
    open_with,
    parse,
    seal,
)

KEY = AuditKey(sha256(b"audit key").digest())
OTHER_KEY = AuditKey(sha256(b"another audit key").digest())
SALT, BINDING = sha256(b"salt").digest(), sha256(b"receipt").digest()
NONCE = sha256(b"nonce").digest()[:NONCE_BYTES]
PUBLIC, PRIVATE = b"public part", b"the private part, sealed"
RANDOMNESS: dict[str, bytes] = {"salt": SALT, "nonce": NONCE}
HEADER = len(MAGIC) + 2
FIELDS = HEADER + SALT_BYTES + 32 + 32 + NONCE_BYTES
PUBLIC_AT = FIELDS + 4
CIPHERTEXT_AT = PUBLIC_AT + len(PUBLIC) + 4


def sealed(private: bytes = PRIVATE, **changes: Any) -> bytes:
    values: dict[str, Any] = {"receipt_binding": BINDING, "key": KEY, **RANDOMNESS, **changes}
    return seal(PUBLIC, private, **values)


SEALED = sealed()


def with_byte(place: int, value: int) -> bytes:
    return SEALED[:place] + bytes([value]) + SEALED[place + 1 :]


def refusal(data: bytes, key: AuditKey | BundleKey = KEY) -> str:
    with pytest.raises(EvidenceError) as caught:
        open_with(parse(data), key)
    return caught.value.message


def test_both_parts_come_back() -> None:
    envelope = parse(SEALED)

    assert (envelope.public, open_with(envelope, KEY)) == (PUBLIC, PRIVATE)
    assert (envelope.salt, envelope.nonce, envelope.receipt_binding) == (SALT, NONCE, BINDING)
    assert envelope.bundle_id == bundle_id(SEALED)
    assert PRIVATE not in SEALED


def test_empty_parts_come_back() -> None:
    envelope = parse(seal(b"", b"", receipt_binding=BINDING, key=KEY, **RANDOMNESS))

    assert (envelope.public, open_with(envelope, KEY)) == (b"", b"")


def test_a_derived_key_opens_its_bundle_and_no_other() -> None:
    derived = bundle_key_of(parse(SEALED), KEY)
    assert open_with(parse(SEALED), derived) == PRIVATE

    for other in (
        sealed(salt=sha256(b"other salt").digest()),
        sealed(receipt_binding=sha256(b"other receipt").digest()),
        sealed(key=OTHER_KEY),
    ):
        assert refusal(other, derived) == "the bundle was sealed with another key"


def test_a_key_of_one_kind_is_not_taken_for_the_other() -> None:
    assert refusal(SEALED, BundleKey(KEY.raw)) == "the bundle was sealed with another key"
    derived = bundle_key_of(parse(SEALED), KEY)
    assert refusal(SEALED, AuditKey(derived.raw)) == "the bundle was sealed with another key"


def test_another_key_is_told_apart_from_damage() -> None:
    assert refusal(SEALED, OTHER_KEY) == "the bundle was sealed with another key"
    assert refusal(with_byte(len(SEALED) - 1, SEALED[-1] ^ 1)) == "the sealed bundle is damaged"


def expected_refusals(place: int) -> tuple[str, ...]:
    """Return what a changed byte at ``place`` may be refused as."""
    another_key = HEADER <= place < HEADER + SALT_BYTES + 32 + 32
    length = FIELDS <= place < PUBLIC_AT or CIPHERTEXT_AT - 4 <= place < CIPHERTEXT_AT
    if place < len(MAGIC):
        return ("this is not a sealed bundle",)
    if place < HEADER:
        return ("sealed bundle: unknown version",)
    if another_key:
        return ("the bundle was sealed with another key",)
    if length:
        return ("sealed bundle: ",)
    return ("the sealed bundle is damaged",)


def test_every_changed_byte_is_refused_as_what_it_is() -> None:
    for place, old in enumerate(SEALED):
        for bit in (0x01, 0x80):
            message = refusal(with_byte(place, old ^ bit))
            assert message.startswith(expected_refusals(place)), place


def test_every_truncation_and_extension_is_refused_before_a_key_is_used() -> None:
    for length in range(len(SEALED)):
        with pytest.raises(EvidenceError, match="sealed bundle"):
            parse(SEALED[:length])
    with pytest.raises(EvidenceError, match="bytes after the end"):
        parse(SEALED + b"\x00")


def test_a_ciphertext_has_at_least_its_tag() -> None:
    short = SEALED[: CIPHERTEXT_AT - 4] + (TAG_BYTES - 1).to_bytes(4, "little") + bytes(15)
    with pytest.raises(EvidenceError, match="shorter than its tag"):
        parse(short)


@pytest.mark.parametrize("place", [FIELDS, CIPHERTEXT_AT - 4])
def test_an_announced_length_beyond_the_bound_is_refused(place: int) -> None:
    for length in (MAX_BUNDLE + 1, 0xFFFFFFFF):
        edited = SEALED[:place] + length.to_bytes(4, "little") + SEALED[place + 4 :]
        with pytest.raises(EvidenceError, match="too many bytes"):
            parse(edited)


def test_the_whole_has_a_bound() -> None:
    room = MAX_BUNDLE - CIPHERTEXT_AT - TAG_BYTES
    largest = sealed(bytes(room))
    assert len(largest) == MAX_BUNDLE
    assert len(open_with(parse(largest), KEY)) == room

    with pytest.raises(InputError, match="too large to be sealed"):
        sealed(bytes(room + 1))
    with pytest.raises(EvidenceError, match="too long"):
        parse(largest + b"\x00")


@pytest.mark.parametrize("name", ["salt", "nonce", "receipt_binding"])
def test_randomness_and_binding_have_one_length(name: str) -> None:
    for value in (b"", bytes(23), bytes(33)):
        with pytest.raises(InputError, match="has another length"):
            sealed(**{name: value})


def test_parts_of_two_bundles_under_one_key_do_not_mix() -> None:
    first = parse(SEALED)
    second = parse(sealed(nonce=sha256(b"other nonce").digest()[:NONCE_BYTES]))
    assert open_with(second, KEY) == PRIVATE

    for mixed in (
        replace(first, ciphertext=second.ciphertext),
        replace(first, nonce=second.nonce),
        replace(first, public=PUBLIC + b"."),
    ):
        with pytest.raises(EvidenceError, match="damaged"):
            open_with(mixed, KEY)


@pytest.mark.parametrize("kind", [AuditKey, BundleKey])
def test_keys_are_checked_hidden_and_not_copied(kind: type[AuditKey | BundleKey]) -> None:
    secret = sha256(b"secret").digest()
    key = kind(secret)

    assert repr(key) == str(key) == f"<{kind.__name__}>"
    for bad in (b"", bytes(31), bytes(33), bytes(32)):
        with pytest.raises(InputError):
            kind(bad)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            duplicate(key)
    with pytest.raises(FrozenInstanceError):
        key.raw = secret  # type: ignore[misc]


def test_neither_part_is_in_the_repr() -> None:
    text = repr(parse(SEALED))
    assert "public part" not in text
    assert "ciphertext" not in text
    assert "bundle_id" in text
