"""Write docs/spec/vectors/digests.json anew, by the second implementation only.

``python -m tests.golden.write_digest_vectors``, and only when a document gets a new field before
its schema is released: afterwards vectors are added and never changed.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from tallystick.contracts.codec import encode
from tests.golden.reference import framed, little_ids, named, plain_jcs, raw
from tests.support.documents import BLIND, digest_of, example_receipt, example_run
from tests.support.vectors import spec_vectors

COMMIT_KEY = sha256(b"example commit key").digest()
IDS = (0, 1, 258, 2**31 - 1)
OUTPUT = b"\xff sea \xf0\x9f\x8c\x8a"
OUTSIDE = ("run_id", "replica_slot", "expires_at", "network_id", "model_path", "blind")


def request_digests(run: Any) -> dict[str, str]:
    body = plain_jcs({name: value for name, value in run.items() if name not in OUTSIDE})
    template = raw(digest_of("template"))
    text, ids = run["prompt"].encode(), little_ids(IDS)
    return {
        "request_body": body.decode(),
        "derived_blind": sha256(framed("tallystick.blind", 1, [COMMIT_KEY, body])).hexdigest(),
        "request_digest": named("tallystick.request", BLIND, body),
        "run_digest": named("tallystick.run", BLIND, plain_jcs(run)),
        "prompt_commitment": named("tallystick.prompt", BLIND, template, text, ids),
        "prompt_commitment_without_template": named("tallystick.prompt", BLIND, b"", text, ids),
        "output_commitment": named("tallystick.output", BLIND, ids, OUTPUT),
    }


def receipt_digests(core: Any, observed: Any) -> dict[str, str]:
    core_hash, observed_hash = sha256(plain_jcs(core)), sha256(plain_jcs(observed))
    receipt = named("geoai.receipt", core_hash.digest(), observed_hash.digest())
    chain = [raw(core[name]) for name in ("bundle_digest", "model_digest", "task_digest")]
    chain.append(sha256(plain_jcs(core["engine"])).digest())
    chain += [raw(core["sandbox"]["profile_digest"]), raw(core["output_commitment"])]
    profile = plain_jcs({"name": "none", "level": "none"})
    return {
        "no_bundle_digest": named("tallystick.no-bundle"),
        "sandbox_profile_none": named("tallystick.sandbox-profile", profile),
        "runtime_class_id": named("tallystick.runtime-class", plain_jcs(core["runtime_class"])),
        "core_digest": "sha256:" + core_hash.hexdigest(),
        "observed_digest": "sha256:" + observed_hash.hexdigest(),
        "receipt_digest": receipt,
        "receipt_id": raw(receipt).hex()[:32],
        "chain_digest": named("tallystick.chain", *chain),
    }


def vector() -> dict[str, Any]:
    """Return the content of the file."""
    run: Any = encode(example_run())
    receipt: Any = encode(example_receipt())
    return {
        "spec": "hashing.md#documents",
        "about": "inputs and every digest and commitment over them",
        "commit_key": COMMIT_KEY.hex(),
        "run": run,
        "receipt": receipt,
        "prompt": {
            "rendered": run["prompt"],
            "chat_template_digest": digest_of("template"),
            "ids": list(IDS),
        },
        "output": {"bytes": OUTPUT.hex(), "ids": list(IDS)},
        "expected": request_digests(run) | receipt_digests(**receipt),
    }


if __name__ == "__main__":
    text = json.dumps(vector(), indent=2) + "\n"
    (spec_vectors() / "digests.json").write_text(text, encoding="ascii")
