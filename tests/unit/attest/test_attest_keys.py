"""Strict Ed25519 keys."""

from __future__ import annotations

import copy
import hashlib
import pickle

import pytest

from tallystick.attest.keys import PublicKey, SigningKey, signature_holds
from tallystick.errors import EvidenceError, InputError

# RFC 8032, section 7.1, test 2.
SEED = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
PUBLIC = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
SIGNATURE = bytes.fromhex(
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)
MESSAGE = b"\x72"
ORDER = 2**252 + 27742317777372353535851937790883648493

LOW_ORDER = (
    "00" * 32,
    "00" * 31 + "80",
    "01" + "00" * 31,
    "01" + "00" * 30 + "80",
    "ec" + "ff" * 30 + "7f",
    "ec" + "ff" * 31,
    "ed" + "ff" * 30 + "7f",
    "ed" + "ff" * 31,
    "ee" + "ff" * 30 + "7f",
    "ee" + "ff" * 31,
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
)


def test_signs_as_rfc_8032_says() -> None:
    key = SigningKey.from_seed(SEED)
    assert key.public.raw.hex() == PUBLIC
    assert key.sign(MESSAGE) == SIGNATURE
    key.public.verify(SIGNATURE, MESSAGE)


def test_each_changed_bit_of_a_signature_is_refused() -> None:
    key = PublicKey.from_hex(PUBLIC)
    for bit in range(512):
        changed = bytearray(SIGNATURE)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(EvidenceError):
            key.verify(bytes(changed), MESSAGE)


def test_another_message_is_refused() -> None:
    with pytest.raises(EvidenceError):
        PublicKey.from_hex(PUBLIC).verify(SIGNATURE, b"\x73")


@pytest.mark.parametrize("length", [0, 1, 63, 65, 128])
def test_a_signature_of_another_length_is_refused(length: int) -> None:
    # The extra byte of a longer one is the message's: a concatenation must not hide it.
    signature = (SIGNATURE + MESSAGE * 64)[:length]
    assert not signature_holds(bytes.fromhex(PUBLIC), signature, MESSAGE)
    assert not signature_holds(bytes.fromhex(PUBLIC), SIGNATURE + MESSAGE, b"")


def test_an_s_beyond_the_group_order_is_refused() -> None:
    s = int.from_bytes(SIGNATURE[32:], "little") + ORDER
    malleated = SIGNATURE[:32] + s.to_bytes(32, "little")
    assert not signature_holds(bytes.fromhex(PUBLIC), malleated, MESSAGE)


@pytest.mark.parametrize("encoding", LOW_ORDER)
def test_small_order_keys_are_refused(encoding: str) -> None:
    with pytest.raises(InputError, match="weak or invalid"):
        PublicKey.from_hex(encoding)


@pytest.mark.parametrize(
    "encoding",
    [
        "02" + "00" * 31,  # no point has this y
        (3 + 2**255 - 19).to_bytes(32, "little").hex(),  # y = 3, not reduced
    ],
)
def test_other_bad_encodings_are_refused(encoding: str) -> None:
    with pytest.raises(InputError):
        PublicKey.from_raw(bytes.fromhex(encoding))


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_keys_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(InputError, match="not an Ed25519 public key"):
        PublicKey.from_raw(b"\x01" * length)
    with pytest.raises(InputError, match="not an Ed25519 seed"):
        SigningKey.from_seed(b"\x01" * length)


@pytest.mark.parametrize(
    "text", [PUBLIC.upper(), PUBLIC[:-1], PUBLIC + "00", " " + PUBLIC, "", "é"]
)
def test_hex_has_one_spelling(text: str) -> None:
    with pytest.raises(InputError):
        PublicKey.from_hex(text)


def test_the_key_id_is_the_framed_hash_of_the_key() -> None:
    name = b"tallystick.key-id"
    framed = (
        len(name).to_bytes(2, "big")
        + name
        + (1).to_bytes(2, "big")
        + (1).to_bytes(4, "big")
        + (32).to_bytes(8, "big")
        + bytes.fromhex(PUBLIC)
    )
    expected = "ed25519:" + hashlib.sha256(framed).hexdigest()
    assert PublicKey.from_hex(PUBLIC).key_id == expected


def test_pem_round_trip_and_line_ends() -> None:
    key = PublicKey.from_hex(PUBLIC)
    pem = key.pem().encode()
    assert PublicKey.from_pem(pem) == key
    assert PublicKey.from_pem(pem.replace(b"\n", b"\r\n") + b"\n") == key


P256 = b"""-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEZ8s7Go7E1cxT1B9bVZp3cQ5rUuW2
dSnTSAdXbVPYWs6KoVwJD3iDBGfxvDqRPmE1NV1Tf9hpuXcyKZGtJcm1fw==
-----END PUBLIC KEY-----
"""


@pytest.mark.parametrize(
    "change",
    [
        lambda pem: b"",
        lambda pem: pem[:-20],
        lambda pem: pem + pem,
        lambda pem: b"comment\n" + pem,
        lambda pem: pem.replace(b"MCow", b"MCox"),
        lambda pem: pem.replace(b"\nMCow", b"\n MCow"),
        lambda pem: pem + b" " * 5000,
        lambda pem: P256,
    ],
)
def test_other_pem_files_are_refused(change: object) -> None:
    assert callable(change)
    with pytest.raises(InputError, match="not an Ed25519 public key file"):
        PublicKey.from_pem(change(PublicKey.from_hex(PUBLIC).pem().encode()))


def test_a_weak_key_in_a_pem_file_is_refused() -> None:
    import base64

    body = base64.b64encode(bytes.fromhex("302a300506032b6570032100") + bytes(32))
    pem = b"-----BEGIN PUBLIC KEY-----\n" + body + b"\n-----END PUBLIC KEY-----\n"
    with pytest.raises(InputError, match="weak or invalid"):
        PublicKey.from_pem(pem)


def test_a_private_pem_is_named_as_such() -> None:
    label = b"PRIVATE" + b" KEY"
    with pytest.raises(InputError, match="this is a private key") as caught:
        PublicKey.from_pem(b"-----BEGIN " + label + b"-----\nc2VjcmV0\n")
    assert "c2VjcmV0" not in str(caught.value)


def test_a_signing_key_shows_no_secret() -> None:
    key = SigningKey.from_seed(SEED)
    for text in (repr(key), str(key), f"{key}", repr([key])):
        assert key.public.key_id in text
        assert SEED.hex() not in text
        assert SEED.hex()[:8] not in text
    assert not hasattr(key, "__dict__")
    assert key.unsafe_seed() == SEED


def test_a_signing_key_is_neither_pickled_nor_copied() -> None:
    key = SigningKey.generate()
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            attempt(key)


def test_generated_keys_differ() -> None:
    assert SigningKey.generate().public != SigningKey.generate().public
