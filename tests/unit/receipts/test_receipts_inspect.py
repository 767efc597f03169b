from __future__ import annotations

import pytest

from tallystick.contracts.layout import RECEIPT
from tallystick.errors import EvidenceError
from tallystick.receipts.inspect import inspect_receipt
from tests.support.sets import data_of, make_public, make_run, make_set, stateless


def test_the_summary_names_what_a_reader_asks_for() -> None:
    built = make_set()
    summary = inspect_receipt(data_of(built, RECEIPT))
    assert summary.receipt == built.receipt
    assert summary.receipt_digest == built.receipt_digest
    assert summary.core_digest == built.core_digest
    rows = dict(summary.rows())
    assert rows["tokens"] == "5 prompt, 4 sampled"
    assert rows["evidence"] == "state committed: 24 states of 3 layers"
    assert rows["egress probes"] == "not run"
    assert rows["sandbox"] == "none, enforced: none"
    assert rows["disclosure"].startswith("private")
    assert "GGML_CPU_TILED_MM=0" in rows["policy"]


def test_the_compute_receipts_file_is_not_named_like_its_id() -> None:
    """`verify` says the compute receipt's id, `inspect` the digest of its file."""
    built = make_set()
    rows = dict(inspect_receipt(data_of(built, RECEIPT)).rows())
    assert rows["compute receipt file"] == built.receipt.observed.compute_receipt_digest
    assert "compute receipt" not in rows
    assert "compute receipt id " in built.report.steps[0].detail


def test_both_halves_follow_the_receipt() -> None:
    with_states = inspect_receipt(data_of(make_set(), RECEIPT))
    without = inspect_receipt(data_of(make_set(make_run(evidence=()), stateless()), RECEIPT))
    assert any("24 intermediate states" in line for line in with_states.proves)
    assert not any("states:" in line for line in without.proves)
    assert any("none were committed" in line for line in without.does_not_prove)
    for summary in (with_states, without):
        assert any("no source attestation" in line for line in summary.does_not_prove)
        assert any("no isolation" in line for line in summary.does_not_prove)


def test_public_digests_are_shown() -> None:
    rows = dict(inspect_receipt(data_of(make_set(*make_public()), RECEIPT)).rows())
    assert rows["disclosure"].startswith("public: prompt sha256:")


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"core":{},"observed":{}}'])
def test_another_document_is_refused(data: bytes) -> None:
    with pytest.raises(EvidenceError):
        inspect_receipt(data)
