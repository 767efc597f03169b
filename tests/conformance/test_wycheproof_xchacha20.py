"""Project Wycheproof's XChaCha20-Poly1305 vectors: every one, with the functions that seal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from nacl.exceptions import CryptoError
from nacl.exceptions import TypeError as NaclTypeError

from tallystick.receipts import sealing
from tests.golden import reference_sealing as reference
from tests.support.vectors import vector_dir

NONCE_BITS = 8 * sealing.NONCE_BYTES
# What sealing.py itself calls.
ENCRYPT = vars(sealing)["crypto_aead_xchacha20poly1305_ietf_encrypt"]
DECRYPT = vars(sealing)["crypto_aead_xchacha20poly1305_ietf_decrypt"]
Case = dict[str, Any]


@dataclass(frozen=True)
class Cipher:
    """One implementation; ``decrypt`` gives None when the tag does not hold."""

    encrypt: Callable[[bytes, bytes, bytes, bytes], bytes]
    decrypt: Callable[[bytes, bytes, bytes, bytes], bytes | None]


def ours_encrypt(key: bytes, nonce: bytes, bound: bytes, message: bytes) -> bytes:
    sealed: bytes = ENCRYPT(message, bound, nonce, key)
    return sealed


def ours_decrypt(key: bytes, nonce: bytes, bound: bytes, sealed: bytes) -> bytes | None:
    try:
        message: bytes = DECRYPT(sealed, bound, nonce, key)
    except CryptoError:
        return None
    return message


CIPHERS = (
    pytest.param(Cipher(ours_encrypt, ours_decrypt), id="the one we use"),
    pytest.param(Cipher(reference.encrypt, reference.decrypt), id="the second implementation"),
)


def cases(document: dict[str, Any]) -> Iterator[tuple[int, Case]]:
    """Yield the nonce's width in bits, and each case with its texts decoded."""
    texts = ("key", "iv", "aad", "msg", "ct", "tag")
    for group in document["testGroups"]:
        assert (group["keySize"], group["tagSize"]) == (256, 128)
        for test in group["tests"]:
            yield group["ivSize"], {**test, **{name: bytes.fromhex(test[name]) for name in texts}}


def load() -> dict[str, Any]:
    path = vector_dir("wycheproof") / "xchacha20_poly1305_test.json"
    value: dict[str, Any] = json.loads(path.read_bytes())
    return value


@pytest.mark.parametrize("cipher", CIPHERS)
def test_every_vector_of_our_nonce_width(cipher: Cipher) -> None:
    seen = {"valid": 0, "invalid": 0}
    for width, case in cases(load()):
        if width != NONCE_BITS:
            continue
        arguments = (case["key"], case["iv"], case["aad"])
        sealed = case["ct"] + case["tag"]
        valid = case["result"] == "valid"
        assert cipher.decrypt(*arguments, sealed) == (case["msg"] if valid else None), case["tcId"]
        if valid:
            assert cipher.encrypt(*arguments, case["msg"]) == sealed, case["tcId"]
        seen[case["result"]] += 1
    assert seen == {"valid": 246, "invalid": 60}


def test_every_other_nonce_width_is_refused() -> None:
    document = load()
    others = [case for width, case in cases(document) if width != NONCE_BITS]
    for case in others:
        with pytest.raises(NaclTypeError):
            ENCRYPT(case["msg"], case["aad"], case["iv"], case["key"])
        with pytest.raises(NaclTypeError):
            DECRYPT(case["ct"] + case["tag"], case["aad"], case["iv"], case["key"])
    assert len(others) == 9
    assert len(list(cases(document))) == document["numberOfTests"] == 315
