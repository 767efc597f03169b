"""Commitments, nullifiers and roots of the compute receipt (docs/spec/compute-receipt.md).

Pure functions over raw bytes: digests are 32 bytes, integers little-endian. Salts and nonces are
private; what comes out may be published.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tallystick.canonical.hashing import domain_hash, ids_bytes
from tallystick.errors import InputError

SALT_BYTES: Final = 32


def local_network_id() -> bytes:
    """Return the id of the network of one machine: nothing outside it is claimed."""
    return domain_hash("palw.network", 1, [b"local"])


def request_commitment(request_nonce: bytes, request_body: bytes) -> bytes:
    """Commit to what was asked for; ``request_body`` is that of contracts.digests."""
    return domain_hash("palw.request", 1, [_salt(request_nonce), request_body])


def job_nullifier(network_id: bytes, scheduler_job_id: bytes, commitment: bytes) -> bytes:
    """Return what all replicas of one job share; ``commitment`` is the request commitment."""
    return domain_hash("palw.job-nullifier", 1, [network_id, scheduler_job_id, commitment])


def execution_nullifier(nullifier: bytes, worker_credential_id: bytes, slot: int) -> bytes:
    """Return what one execution of a job can use once. ``slot`` fits one byte."""
    parts = [nullifier, worker_credential_id, slot.to_bytes(1, "little")]
    return domain_hash("palw.execution-nullifier", 1, parts)


def output_commitment_palw(output_nonce: bytes, ids: Sequence[int], core_digest: bytes) -> bytes:
    """Commit to the generated ids and to the receipt's core, whose raw digest is given."""
    return domain_hash("palw.output", 1, [_salt(output_nonce), ids_bytes(ids), core_digest])


def prompt_commitment_palw(prompt_nonce: bytes, ids: Sequence[int]) -> bytes:
    """Commit to the prompt's ids."""
    return domain_hash("palw.prompt", 1, [_salt(prompt_nonce), ids_bytes(ids)])


def owner_commitment(owner_salt: bytes, owner_key: bytes) -> bytes:
    """Commit to the owner of a worker; ``owner_key`` is a raw Ed25519 public key."""
    return domain_hash("palw.owner", 1, [_salt(owner_salt), owner_key])


def empty_gemm_root() -> bytes:
    """Return what stands for the root of a trace that was not made."""
    return domain_hash("palw.no-gemm-trace", 1, [])


def empty_route_root() -> bytes:
    """Return what stands for the root of expert routes that were not gathered."""
    return domain_hash("palw.no-expert-routes", 1, [])


def empty_state_root() -> bytes:
    """Return what stands for the root of states that were not committed."""
    return domain_hash("tallystick.no-state-root", 1, [])


def no_trace_scheme() -> bytes:
    """Return what stands for the scheme of a trace that was not made."""
    return domain_hash("palw.no-trace-scheme", 1, [])


def state_evidence_root(
    state_root: bytes | None, expert_route_root: bytes | None, gemm_root: bytes | None
) -> bytes:
    """Return the root of the three kinds of evidence; None for a part that is absent."""
    return domain_hash(
        "tallystick.state-evidence",
        1,
        [
            empty_state_root() if state_root is None else state_root,
            empty_route_root() if expert_route_root is None else expert_route_root,
            empty_gemm_root() if gemm_root is None else gemm_root,
        ],
    )


def _salt(value: bytes) -> bytes:
    if len(value) != SALT_BYTES:
        raise InputError(
            "not a salt or nonce", expected=f"{SALT_BYTES} bytes", found=f"{len(value)} bytes"
        )
    return value
