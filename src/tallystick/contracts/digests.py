"""Every digest and commitment over documents (docs/spec/hashing.md#documents). Pure functions.

Private inputs (blind, commit key, prompt, ids, output) go in, only digests come out; wherever a
value could be guessed, ``blind`` is the first hashed part.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, cast

from tallystick.canonical.hashing import (
    domain_digest,
    domain_hash,
    format_digest,
    ids_bytes,
    parse_digest,
    sha256,
)
from tallystick.canonical.json import JSONValue, jcs
from tallystick.contracts.codec import encode, encode_bytes
from tallystick.contracts.receipt import Core, Observed, Receipt
from tallystick.contracts.request import InferenceRun
from tallystick.contracts.runtime import RuntimeClass
from tallystick.errors import InputError

RECEIPT_ID_DIGITS: Final = 32
_NO_BUNDLE: Final = domain_digest("tallystick.no-bundle", 1, [])
# What differs between two requests for the same computation, or is a secret of its own.
_OUTSIDE_REQUEST: Final = (
    "run_id",
    "replica_slot",
    "expires_at",
    "network_id",
    "model_path",
    "blind",
)


def request_body(run: InferenceRun) -> bytes:
    """Return the canonical bytes of ``run`` without what may differ between equal requests."""
    return _body(cast(dict[str, JSONValue], encode(run)))


def _body(run: dict[str, JSONValue]) -> bytes:
    return jcs({name: value for name, value in run.items() if name not in _OUTSIDE_REQUEST})


def derive_blind(commit_key: bytes, body: bytes) -> bytes:
    """Return the 32-byte blind of a plain run: equal for an equal :func:`request_body`.

    ``commit_key`` is the holder's 32-byte local commit key.
    """
    return domain_hash("tallystick.blind", 1, [_key(commit_key), body])


def request_digest(run: InferenceRun) -> str:
    """Return the digest that names what was asked for."""
    return domain_digest("tallystick.request", 1, [bytes.fromhex(run.blind), request_body(run)])


def request_and_run_digest(run: InferenceRun) -> tuple[str, str]:
    """Return what :func:`request_digest` and :func:`run_digest` do, by one encoding of ``run``."""
    document = cast(dict[str, JSONValue], encode(run))
    whole, body = jcs(document), _body(document)
    request = domain_digest("tallystick.request", 1, [bytes.fromhex(run.blind), body])
    return request, run_digest_of(run.blind, whole)


def run_digest(run: InferenceRun) -> str:
    """Return the digest of the whole declaration of one run."""
    return run_digest_of(run.blind, encode_bytes(run))


def run_digest_of(blind: str, data: bytes) -> str:
    """Return the digest of the declaration whose canonical bytes are ``data``."""
    return domain_digest("tallystick.run", 1, [bytes.fromhex(blind), data])


def prompt_commitment(
    blind: bytes, template_digest: str | None, rendered_prompt: str, ids: Sequence[int]
) -> str:
    """Commit to the rendered prompt and its token ids.

    ``template_digest`` is the chat template's digest, None for a raw prompt.
    """
    template = b"" if template_digest is None else parse_digest(template_digest)
    text = rendered_prompt.encode("utf-8")
    return domain_digest("tallystick.prompt", 1, [_key(blind), template, text, ids_bytes(ids)])


def output_commitment(blind: bytes, ids: Sequence[int], output: bytes) -> str:
    """Commit to the sampled token ids and the output bytes."""
    return domain_digest("tallystick.output", 1, [_key(blind), ids_bytes(ids), output])


def no_bundle_digest() -> str:
    """Return what stands for the bundle and the task of a run without a bundle."""
    return _NO_BUNDLE


def sandbox_profile_digest(name: str, level: str) -> str:
    """Return the digest of the sandbox profile ``name`` at the declared ``level``."""
    return domain_digest("tallystick.sandbox-profile", 1, [jcs({"name": name, "level": level})])


@lru_cache(maxsize=64)
def runtime_class_bytes(runtime_class: RuntimeClass) -> bytes:
    """Return the canonical bytes of ``runtime_class``, which is public.

    They are kept: a worker's receipts have few classes between them, and each is encoded twice.
    """
    return encode_bytes(runtime_class)


def runtime_class_id(runtime_class: RuntimeClass) -> str:
    """Return the id of ``runtime_class``: equal ids may be compared bit for bit."""
    return domain_digest("tallystick.runtime-class", 1, [runtime_class_bytes(runtime_class)])


def core_digest(core: Core) -> str:
    """Return the digest by which replicas are compared."""
    return format_digest(sha256(encode_bytes(core)))


def observed_digest(observed: Observed) -> str:
    """Return the digest of what one execution looked like."""
    return format_digest(sha256(encode_bytes(observed)))


def digests_of_parts(document: JSONValue) -> tuple[str, str]:
    """Return the digests of core and observed part of a receipt's document, which was decoded.

    Its parts are what core and observed part encode to, so nothing is encoded anew.
    """
    parts = cast(dict[str, JSONValue], document)
    core, observed = (format_digest(sha256(jcs(parts[name]))) for name in ("core", "observed"))
    return core, observed


def receipt_digest(receipt: Receipt) -> str:
    """Return the digest that names ``receipt``."""
    return receipt_digest_of(core_digest(receipt.core), observed_digest(receipt.observed))


def receipt_digest_of(core: str, observed: str) -> str:
    """Return the digest that names the receipt whose two parts have these digests."""
    return domain_digest("geoai.receipt", 1, [parse_digest(core), parse_digest(observed)])


def receipt_id(digest: str) -> str:
    """Return the file name stem of a receipt: the first 32 hex digits of its receipt digest."""
    return parse_digest(digest).hex()[:RECEIPT_ID_DIGITS]


def chain_digest(core: Core) -> str:
    """Return the digest that ties bundle, model, task, engine, sandbox and output together."""
    return domain_digest(
        "tallystick.chain",
        1,
        [
            parse_digest(core.bundle_digest),
            parse_digest(core.model_digest),
            parse_digest(core.task_digest),
            sha256(encode_bytes(core.engine)),
            parse_digest(core.sandbox.profile_digest),
            parse_digest(core.output_commitment),
        ],
    )


def _key(key: bytes) -> bytes:
    if len(key) != 32:
        raise InputError(
            "not a blind or commit key", expected="32 bytes", found=f"{len(key)} bytes"
        )
    return key
