"""Commitments and nullifiers: each is the framed hash of exactly the listed parts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from tallystick.canonical.hashing import sha256
from tallystick.contracts import commitments as contract
from tallystick.errors import InputError

A, B, C = sha256(b"a"), sha256(b"b"), sha256(b"c")
IDS = (1, 2**31 - 1)
ENCODED = b"\x01\x00\x00\x00\xff\xff\xff\x7f"


def framed(domain: str, *parts: bytes) -> bytes:
    """Return the framed hash, made a second time."""
    name = domain.encode()
    data = len(name).to_bytes(2, "big") + name + b"\x00\x01" + len(parts).to_bytes(4, "big")
    for part in parts:
        data += len(part).to_bytes(8, "big") + part
    return hashlib.sha256(data).digest()


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (contract.local_network_id(), framed("palw.network", b"local")),
        (contract.request_commitment(A, b"{}"), framed("palw.request", A, b"{}")),
        (contract.job_nullifier(A, B, C), framed("palw.job-nullifier", A, B, C)),
        (
            contract.execution_nullifier(A, B, 1),
            framed("palw.execution-nullifier", A, B, b"\x01"),
        ),
        (contract.output_commitment_palw(A, IDS, B), framed("palw.output", A, ENCODED, B)),
        (contract.prompt_commitment_palw(A, IDS), framed("palw.prompt", A, ENCODED)),
        (contract.owner_commitment(A, B), framed("palw.owner", A, B)),
        (contract.empty_gemm_root(), framed("palw.no-gemm-trace")),
        (contract.empty_route_root(), framed("palw.no-expert-routes")),
        (contract.empty_state_root(), framed("tallystick.no-state-root")),
        (contract.no_trace_scheme(), framed("palw.no-trace-scheme")),
        (contract.state_evidence_root(A, B, C), framed("tallystick.state-evidence", A, B, C)),
        (
            contract.state_evidence_root(A, None, None),
            framed(
                "tallystick.state-evidence",
                A,
                framed("palw.no-expert-routes"),
                framed("palw.no-gemm-trace"),
            ),
        ),
    ],
)
def test_a_commitment_is_the_hash_of_its_parts(found: bytes, expected: bytes) -> None:
    assert found == expected


def test_absent_parts_have_roots_of_their_own() -> None:
    empty = {
        contract.empty_gemm_root(),
        contract.empty_route_root(),
        contract.empty_state_root(),
        contract.no_trace_scheme(),
    }
    assert len(empty) == 4


SALTED: dict[str, Callable[[bytes], bytes]] = {
    "request": lambda salt: contract.request_commitment(salt, b"{}"),
    "output": lambda salt: contract.output_commitment_palw(salt, IDS, A),
    "prompt": lambda salt: contract.prompt_commitment_palw(salt, IDS),
    "owner": lambda salt: contract.owner_commitment(salt, A),
}


@pytest.mark.parametrize("kind", SALTED)
@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_salt_has_32_bytes(kind: str, length: int) -> None:
    with pytest.raises(InputError, match="salt or nonce"):
        SALTED[kind](bytes(length))
