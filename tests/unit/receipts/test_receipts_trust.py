"""Whose signature counts and when, what public files tell, and what a verifier has to install."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from blake3 import blake3

from tallystick.attest import dsse
from tallystick.attest.trust import TrustedKey, TrustPolicy
from tallystick.canonical.hashing import domain_hash, format_digest, ids_bytes, sha256
from tallystick.contracts.layout import BUNDLE, ENVELOPES, RECEIPT
from tallystick.errors import NoTrustError
from tallystick.receipts.report import VerificationReport
from tallystick.receipts.verify import verify_set
from tests.support.forgery import Forger
from tests.support.sets import (
    AUDIT_KEY,
    NOW,
    OUTPUT,
    PROMPT,
    PROMPT_IDS,
    SAMPLED_IDS,
    SIGNER,
    TRUST,
    fake_digest,
    make_public,
    make_set,
)

PRIVATE = make_set().files()
PUBLIC = make_set(*make_public()).files()
FORGERS = {"private": Forger(PRIVATE), "public": Forger(PUBLIC)}


def check(files: dict[str, bytes], trust: TrustPolicy) -> VerificationReport:
    return verify_set(files, trust, now=NOW, key=AUDIT_KEY)


def policy(**changes: Any) -> TrustPolicy:
    values: dict[str, Any] = {
        "name": "worker",
        "public_key": SIGNER.public.raw.hex(),
        "links": ("execution",),
        "valid_from": None,
        "valid_to": None,
        "minimum_enforcement": "none",
        "engine_libraries": None,
    }
    return TrustPolicy("tallystick.trust-policy/v1", (TrustedKey(**{**values, **changes}),))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"minimum_enforcement": "process"}, "enforcement"),
        ({"engine_libraries": (fake_digest("another"),)}, "engine build"),
        ({"valid_from": "2026-11-30T00:53:20.031Z"}, "not valid at the claimed time"),
        ({"valid_to": "2026-11-30T00:53:20.030Z"}, "not valid at the claimed time"),
        ({"valid_to": "2026-11-30T11:00:00.000Z"}, "time claimed, not anchored"),
    ],
)
def test_the_trust_policy_decides_in_step_12(changes: dict[str, Any], message: str) -> None:
    report = check(PRIVATE, policy(**changes))
    assert report.failure is not None
    assert report.failure.number == 12
    assert message in report.failure.detail


def test_a_policy_that_fits_accepts() -> None:
    assert check(
        PRIVATE,
        policy(
            valid_from="2026-11-30T00:53:20.030Z",
            valid_to="2026-12-30T00:00:00.000Z",
            engine_libraries=(fake_digest("library"),),
        ),
    ).verified


def test_a_day_of_clock_difference_matters_only_with_a_window() -> None:
    window = policy(valid_from="2026-01-01T00:00:00.000Z", valid_to="2026-12-01T00:00:00.000Z")
    for days, verified in ((-1, False), (0, True), (1, False)):
        now = NOW + timedelta(days=days)
        assert verify_set(PRIVATE, window, now=now).verified is verified
        assert verify_set(PRIVATE, TRUST, now=now).verified


def test_without_a_key_for_the_link_there_is_no_verdict() -> None:
    with pytest.raises(NoTrustError) as caught:
        check(PRIVATE, policy(links=("source", "acceptance")))
    assert caught.value.exit_code == 4


def test_digests_of_private_texts_are_nowhere_public() -> None:
    """With the right prompt and no blind, nobody can confirm a guess from the public files."""
    public = b"".join(PRIVATE.values()) + FORGERS["private"].envelope.public
    public += dsse.unsafe_payload(FORGERS["private"].data(ENVELOPES)[:-1])
    prompt, ids, out = PROMPT.encode(), ids_bytes(PROMPT_IDS), ids_bytes(SAMPLED_IDS)
    guesses = [prompt, ids, OUTPUT, out, prompt + OUTPUT, ids + out, OUTPUT.strip(), prompt.lower()]
    domains = ("tallystick.prompt", "tallystick.output", "tallystick.request", "tallystick.run")
    parts = [[*choice] for n in (1, 2, 3) for choice in itertools.permutations(guesses[:4], n)]
    digests = [sha256(guess) for guess in guesses] + [blake3(guess).digest() for guess in guesses]
    for domain, choice in itertools.product(domains, parts):
        digests += [domain_hash(domain, 1, choice), domain_hash(domain, 1, [b"", *choice])]
        digests += [domain_hash(domain, 1, [bytes(32), *choice])]
    for digest in digests:
        assert digest.hex().encode() not in public
    for text in (*guesses, str(list(PROMPT_IDS)).encode(), b"9004"):
        assert text not in public


def test_public_disclosure_shows_exactly_the_plain_digests() -> None:
    bundle = BUNDLE.name(FORGERS["public"].set_id)
    files = {name: data for name, data in PUBLIC.items() if name != bundle}
    receipt = FORGERS["public"].data(RECEIPT)
    assert format_digest(sha256(OUTPUT)).encode() in receipt
    assert format_digest(sha256(PROMPT.encode())).encode() in receipt
    assert PROMPT.encode() not in b"".join(files.values())


def test_verification_needs_the_core_install_only() -> None:
    program = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        blocked = ("numpy", "jinja2", "xllamacpp", "tallystick.engine", "tallystick.sandbox",
                   "tallystick.execution", "tallystick.models", "tallystick.worker")
        if name in blocked or name.startswith(tuple(part + "." for part in blocked)):
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Block())
import tallystick.receipts.verify, tallystick.receipts.files, tallystick.receipts.inspect
import tallystick.audit.diff, tallystick.cli.verify, tallystick.cli.inspect, tallystick.cli.diff
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=os.environ
    )
    assert result.returncode == 0, result.stderr
