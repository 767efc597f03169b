"""Write docs/spec/vectors/sealing.json anew, by the second implementation only.

``python -m tests.golden.write_sealing_vectors``, and only before the envelope's version is
released: afterwards vectors are added and never changed.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from tests.golden import reference_sealing as reference
from tests.support.vectors import spec_vectors

CASES = (
    ("both parts", b"what everyone may read", b"\x00private\xff" * 9),
    ("nothing private", b"what everyone may read", b""),
    ("nothing public", b"", b"private"),
)


def secret(name: str, number: int, length: int = 32) -> bytes:
    return sha256(f"example {name} {number}".encode()).digest()[:length]


def vector(number: int, name: str, public: bytes, private: bytes) -> dict[str, Any]:
    audit_key, salt = secret("audit key", number), secret("bundle salt", number)
    binding, nonce = secret("receipt binding", number), secret("bundle nonce", number, 24)
    key = reference.bundle_key(audit_key, salt, binding)
    commitment = reference.key_commitment(key, salt)
    envelope = reference.sealed(public, private, binding, audit_key, salt, nonce)
    values = {
        "audit_key": audit_key,
        "salt": salt,
        "receipt_binding": binding,
        "nonce": nonce,
        "public": public,
        "private": private,
        "bundle_key": key,
        "key_commitment": commitment,
        "public_digest": reference.hashed("palw.bundle-public", public),
        "associated_data": reference.associated_data(public, binding, nonce, salt, commitment),
        "envelope": envelope,
        "bundle_id": reference.hashed("palw.bundle", envelope),
    }
    return {"name": name, **{field: value.hex() for field, value in values.items()}}


def content() -> dict[str, Any]:
    """Return the content of the file."""
    return {
        "spec": "docs/spec/bundle.md",
        "note": "All values are hex. The keys are examples and protect nothing.",
        "vectors": [vector(number, *case) for number, case in enumerate(CASES)],
    }


if __name__ == "__main__":
    path = spec_vectors() / "sealing.json"
    path.write_text(json.dumps(content(), indent=2) + "\n", encoding="utf-8")
