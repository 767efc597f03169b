"""The execution statement holds what the receipt determines, and nothing else passes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from tallystick.attest.statements import check_execution_statement, execution_statement
from tallystick.canonical.json import jcs
from tallystick.contracts import digests
from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.receipt import Disclosed, EgressAudit, Receipt
from tallystick.errors import EvidenceError
from tests.support.documents import digest_of, example_receipt

Path = tuple[str | int, ...]


def statement(receipt: Receipt) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(execution_statement(receipt, encode_bytes(receipt)))
    return value


def check(value: object, receipt: Receipt) -> None:
    check_execution_statement(jcs(value), receipt, encode_bytes(receipt))  # type: ignore[arg-type]


def public_receipt() -> Receipt:
    receipt = example_receipt()
    disclosed = Disclosed(digest_of("prompt text"), digest_of("output text"))
    return replace(receipt, core=replace(receipt.core, disclosure="public", disclosed=disclosed))


def test_a_statement_passes_its_own_check() -> None:
    receipt = example_receipt()
    data = encode_bytes(receipt)
    claim = check_execution_statement(execution_statement(receipt, data), receipt, data)
    assert claim.receipt_digest == digests.receipt_digest(receipt)
    assert claim.core_digest == digests.core_digest(receipt.core)
    assert claim.chain_digest == digests.chain_digest(receipt.core)
    assert claim.runtime_class_id == receipt.core.runtime_class_id
    assert claim.egress_audit == EgressAudit("not_run", None)


def test_the_subjects() -> None:
    receipt = example_receipt()
    palw = receipt.observed.compute_receipt_digest
    name = digests.receipt_id(digests.receipt_digest(receipt))
    assert statement(receipt)["subject"] == [
        {
            "name": "receipt",
            "digest": {"tallystickReceipt": digests.receipt_digest(receipt)[7:]},
        },
        {"name": "core", "digest": {"sha256": digests.core_digest(receipt.core)[7:]}},
        {
            "name": f"{name}.geoai.json",
            "digest": {"sha256": sha256(encode_bytes(receipt)).hexdigest()},
        },
        {"name": f"{name}.palw", "digest": {"sha256": palw[7:]}},
    ]


def test_the_predicate_is_slsa_provenance() -> None:
    receipt = example_receipt()
    value = statement(receipt)
    assert value["_type"] == "https://in-toto.io/Statement/v1"
    assert value["predicateType"] == "https://slsa.dev/provenance/v1"
    definition = value["predicate"]["buildDefinition"]
    assert definition["buildType"] == "tag:tallystick,2026:inference/v1"
    inside = definition["internalParameters"]
    assert inside["chain_digest"] == digests.chain_digest(receipt.core)
    assert inside["egress_audit"] == {"result": "not_run", "statement_digest": None}
    metadata = value["predicate"]["runDetails"]["metadata"]
    assert metadata["finishedOn"] == receipt.observed.end_time


def test_plain_output_is_a_subject_only_when_disclosed() -> None:
    private = execution_statement(example_receipt(), b"")
    assert b'"output"' not in private
    subject = statement(public_receipt())["subject"][-1]
    assert subject == {"name": "output", "digest": {"sha256": digest_of("output text")[7:]}}


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, (*path, index))
    else:
        yield path


def containers(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from containers(inner)


def at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def spell(path: Path) -> str:
    return "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in path)[1:]


ALL_LEAVES = list(leaves(statement(public_receipt())))


@pytest.mark.parametrize("path", ALL_LEAVES, ids=spell)
def test_each_changed_value_is_named(path: Path) -> None:
    others: tuple[object, ...] = ("x", 0, False, None, [], {})
    for other in others:
        value = statement(public_receipt())
        if at(value, path) is other:
            continue
        at(value, path[:-1])[path[-1]] = other
        with pytest.raises(EvidenceError) as caught:
            check(value, public_receipt())
        assert caught.value.message.endswith(f": {spell(path)}")


@pytest.mark.parametrize("path", ALL_LEAVES, ids=spell)
def test_each_missing_value_is_refused(path: Path) -> None:
    value = statement(public_receipt())
    del at(value, path[:-1])[path[-1]]
    with pytest.raises(EvidenceError, match="not about this receipt"):
        check(value, public_receipt())


def test_nothing_can_be_added_anywhere() -> None:
    count = len(list(containers(statement(public_receipt()))))
    assert count > 20
    for index in range(count):
        value = statement(public_receipt())
        place = list(containers(value))[index]
        if isinstance(place, dict):
            place["added"] = 1
        else:
            place.append({"name": "added", "digest": {"sha256": "00" * 32}})
        with pytest.raises(EvidenceError, match="not about this receipt"):
            check(value, public_receipt())


def test_swapped_subjects_are_refused() -> None:
    value = statement(example_receipt())
    value["subject"].reverse()
    with pytest.raises(EvidenceError, match=r"subject\[0\]"):
        check(value, example_receipt())


def test_another_receipt_is_refused() -> None:
    receipt = example_receipt()
    core = replace(receipt.core, output_commitment=digest_of("another output"))
    with pytest.raises(EvidenceError, match="tallystickReceipt"):
        check(statement(receipt), replace(receipt, core=core))
    observed = replace(receipt.observed, end_time="2026-11-30T12:00:01.251Z")
    with pytest.raises(EvidenceError, match="tallystickReceipt"):
        check(statement(receipt), replace(receipt, observed=observed))


def test_other_file_bytes_are_refused() -> None:
    receipt = example_receipt()
    data = encode_bytes(receipt)
    with pytest.raises(EvidenceError, match=r"subject\[2\]\.digest\.sha256"):
        check_execution_statement(execution_statement(receipt, data), receipt, data + b"\n")


@pytest.mark.parametrize("payload", [b"", b"[]", b"null", b"{}", b"\xff"])
def test_other_documents_are_refused(payload: bytes) -> None:
    with pytest.raises(EvidenceError):
        check_execution_statement(payload, example_receipt(), b"")


def test_another_layout_of_the_same_statement_is_refused() -> None:
    receipt = example_receipt()
    data = encode_bytes(receipt)
    payload = execution_statement(receipt, data)
    with pytest.raises(EvidenceError, match="canonical"):
        check_execution_statement(payload + b"\n", receipt, data)
