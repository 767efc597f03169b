"""The program and the independent checker come to one verdict on every forgery.

The forger has every key, the worker's included, and makes all digests and names agree again. So a
change that both take is one that the worker could have stated; no other may be taken by one alone.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from tallystick.attest.trust import TrustPolicy
from tallystick.canonical.json import jcs
from tallystick.contracts.bundle import encode_private
from tallystick.contracts.compute_receipt import ComputeReceipt
from tallystick.contracts.layout import PUBLIC_JSON, RECEIPT, TELEMETRY
from tallystick.errors import EvidenceError
from tallystick.receipts.verify import verify_set
from tests.golden.example_sets import AUDIT_KEY, COMMITTED, example
from tests.golden.independent.basics import RefusedError, file_digest
from tests.golden.independent.check_set import check_set
from tests.support import sets
from tests.support.forgery import Forger, changed_leaf, flipped, leaves, other_value_of

FORGER = Forger(example(COMMITTED).files())
TRUST = TrustPolicy.for_keys([sets.SIGNER.public])
#: Documents, and how many of their fields stand for one that is looked at.
DOCUMENTS = {RECEIPT.suffix: 1, PUBLIC_JSON.suffix: 6, sets.OPENING: 3}
#: What a worker states of an execution, and nothing else is held to.
STATED = ("host", "rss", "durations_ns", "worker_state_root", "self_check", "leaf_checks")


def own_verdict(files: dict[str, bytes]) -> bool:
    try:
        check_set(files, AUDIT_KEY.raw, sets.SIGNER.public.raw)
    except RefusedError as error:
        # The program's steps are stateless: only a restoration looks at the store.
        return str(error) == "state store: bundle_id"
    return True


def verdict(files: dict[str, bytes]) -> bool:
    """Return the verdict of both."""
    own = own_verdict(files)
    report = verify_set(files, TRUST, now=sets.NOW, key=AUDIT_KEY)
    assert (report.failure is None) is own
    return own


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


def forged(suffix: str, value: Any) -> dict[str, bytes]:
    if suffix == RECEIPT.suffix:
        return FORGER.with_receipt(value, key=sets.SIGNER)
    if suffix == sets.OPENING:
        return FORGER.with_opening(value)
    return FORGER.with_member(PUBLIC_JSON, jcs(value))


@pytest.mark.parametrize("suffix", DOCUMENTS)
def test_fields_of_the_documents(suffix: str) -> None:
    document = FORGER.document(suffix)
    taken = []
    paths = [path for path in leaves(document) if at(document, path) is not None]
    for path in paths[:: DOCUMENTS[suffix]]:
        value = changed_leaf(document, path)
        try:
            files = forged(suffix, value)
        except EvidenceError:
            continue  # not a document of this type: nobody can sign a statement about it
        if verdict(files):
            taken.append(path)
    assert all(set(path) & set(STATED) for path in taken), taken


@pytest.mark.parametrize("name", [field.name for field in fields(ComputeReceipt)])
def test_every_field_of_the_compute_receipt(name: str) -> None:
    change = {name: other_value_of(FORGER.compute.body, name)}
    files = FORGER.with_compute(FORGER.signed(sets.SIGNER, **change), key=sets.SIGNER)
    assert not verdict(files)


@pytest.mark.parametrize("part", ["public", "private"])
def test_flipped_bytes_of_the_bundle(part: str) -> None:
    envelope = FORGER.envelope
    data = envelope.public if part == "public" else encode_private(FORGER.private)
    checks = data.find(b'"leaf_checks"')
    for place in range(0, len(data), len(data) // 30):
        other = flipped(data, place)
        bundle = FORGER.sealed(public=other) if part == "public" else FORGER.sealed(other)
        stated = checks != -1 and checks < place < checks + 1000
        assert not verdict(FORGER.with_bundle(bundle)) or stated, place


def test_flipped_bytes_of_the_telemetry() -> None:
    data = FORGER.data(TELEMETRY)
    for place in range(0, len(data), len(data) // 20):
        value = FORGER.document(RECEIPT.suffix)
        other = flipped(data, place)
        value["observed"]["telemetry_digest"] = file_digest(other)
        files = Forger(FORGER.with_receipt(value, key=sets.SIGNER)).with_member(TELEMETRY, other)
        verdict(files)
