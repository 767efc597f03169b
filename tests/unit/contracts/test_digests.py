"""Digests: which fields count, and that every one that should count does."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from tallystick.contracts import digests
from tallystick.contracts.codec import encode
from tallystick.contracts.request import Chat, ExpectedDigest
from tallystick.errors import EvidenceError, InputError
from tests.support.documents import (
    BLIND,
    digest_of,
    example_core,
    example_observed,
    example_receipt,
    example_run,
)

OTHER = digest_of("other")
NOT_IN_REQUEST: dict[str, Any] = {
    "run_id": "01890a5d-ac96-774b-bcce-b302099a8058",
    "replica_slot": None,
    "expires_at": None,
    "network_id": "00" * 32,
    "model_path": None,
}
IN_REQUEST: dict[str, Any] = {
    "model_digest": OTHER,
    "dataset": ExpectedDigest(OTHER),
    "task": ExpectedDigest(OTHER),
    "model": ExpectedDigest(OTHER),
    "prompt": "another",
    "prompt_path": "task/prompt.txt",
    "split": "west",
    "tile": "1/0/0",
    "chat": Chat("system", None),
    "add_special": False,
    "parse_special": False,
    "max_tokens": 4,
    "temperature": "0",
    "seed": None,
    "policy": "sequential",
    "evidence": (),
    "disclosure": "public",
    "sandbox_profile": "other",
    "enforcement": "full",
    "blind": "00" * 32,
}
CHAINED: dict[str, Any] = {
    "bundle_digest": OTHER,
    "model_digest": OTHER,
    "task_digest": OTHER,
    "engine": replace(example_core().engine, version="2"),
    "sandbox": replace(example_core().sandbox, profile_digest=OTHER),
    "output_commitment": OTHER,
}


def test_every_request_field_is_one_or_the_other() -> None:
    constant = {"schema", "producer"}

    assert set(NOT_IN_REQUEST) | set(IN_REQUEST) | constant == {
        field.name for field in fields(example_run())
    }


@pytest.mark.parametrize("name", NOT_IN_REQUEST)
def test_what_does_not_count_for_a_request_counts_for_the_run(name: str) -> None:
    run = example_run()
    other = replace(run, **{name: NOT_IN_REQUEST[name]})

    assert other != run
    assert digests.request_digest(other) == digests.request_digest(run)
    assert digests.run_digest(other) != digests.run_digest(run)


@pytest.mark.parametrize("name", IN_REQUEST)
def test_everything_else_counts_for_both(name: str) -> None:
    run = example_run()
    other = replace(run, **{name: IN_REQUEST[name]})

    assert digests.request_digest(other) != digests.request_digest(run)
    assert digests.run_digest(other) != digests.run_digest(run)


def test_the_blind_depends_on_key_and_request_but_not_on_itself() -> None:
    run = example_run()
    body = digests.request_body(run)
    blind = digests.derive_blind(bytes(32), body)

    assert digests.request_body(replace(run, blind=blind.hex())) == body
    assert digests.derive_blind(bytes(31) + b"\x01", body) != blind
    assert digests.derive_blind(bytes(32), digests.request_body(replace(run, seed=1))) != blind


def test_commitments_change_with_every_part() -> None:
    prompts = {
        digests.prompt_commitment(blind, template, text, ids)
        for blind in (BLIND, bytes(32))
        for template in (None, OTHER)
        for text in ("", "a")
        for ids in ((), (1,), (1, 0))
    }
    outputs = {
        digests.output_commitment(blind, ids, output)
        for blind in (BLIND, bytes(32))
        for ids in ((), (97,))
        for output in (b"", b"a\x00\x00\x00")
    }

    assert len(prompts) == 24
    assert len(outputs) == 8


@pytest.mark.parametrize("size", [0, 31, 33])
def test_secrets_have_32_bytes(size: int) -> None:
    with pytest.raises(InputError, match="blind or commit key"):
        digests.derive_blind(bytes(size), b"{}")
    with pytest.raises(InputError, match="blind or commit key"):
        digests.prompt_commitment(bytes(size), None, "", ())
    with pytest.raises(InputError, match="blind or commit key"):
        digests.output_commitment(bytes(size), (), b"")


def test_the_receipt_is_named_by_both_parts_and_compared_by_one() -> None:
    receipt = example_receipt()
    later = replace(receipt, observed=replace(example_observed(), evictions=1))
    another = replace(receipt, core=replace(example_core(), sampled_tokens=2))

    assert digests.core_digest(later.core) == digests.core_digest(receipt.core)
    assert digests.core_digest(another.core) != digests.core_digest(receipt.core)
    assert len({digests.receipt_digest(one) for one in (receipt, later, another)}) == 3


@pytest.mark.parametrize("name", CHAINED)
def test_the_chain_covers_each_link(name: str) -> None:
    core = example_core()

    assert digests.chain_digest(replace(core, **{name: CHAINED[name]})) != digests.chain_digest(
        core
    )


def test_a_receipt_id_is_a_prefix() -> None:
    assert digests.receipt_id("sha256:" + "0123456789abcdef" * 4) == "0123456789abcdef" * 2
    with pytest.raises(EvidenceError):
        digests.receipt_id("0123456789abcdef" * 4)


def test_one_encoding_gives_both_digests_of_a_run() -> None:
    for run in (example_run(), replace(example_run(), **NOT_IN_REQUEST)):
        expected = (digests.request_digest(run), digests.run_digest(run))
        assert digests.request_and_run_digest(run) == expected


def test_the_parts_of_a_document_have_the_digests_of_what_they_decode_to() -> None:
    receipt = example_receipt()

    core, observed = digests.digests_of_parts(encode(receipt))

    assert core == digests.core_digest(receipt.core)
    assert observed == digests.observed_digest(receipt.observed)
