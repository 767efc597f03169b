from __future__ import annotations

from dataclasses import replace

from tallystick.audit.diff import diff_receipts
from tallystick.contracts.layout import RECEIPT
from tests.support.sets import (
    data_of,
    fake_digest,
    make_class,
    make_facts,
    make_generation,
    make_public,
    make_run,
    make_set,
)

FIRST = data_of(make_set(), RECEIPT)


def test_equal_receipts() -> None:
    result = diff_receipts(FIRST, FIRST)
    assert result.core_equal
    assert result.first is None
    assert result.exit_code == 0


def test_two_runs_of_one_request_differ_only_in_what_was_observed() -> None:
    other = make_set(
        make_run(run_id="01890a5d-ac96-774b-bcce-b302099a8058"), facts=make_facts(rss_after=9)
    )
    result = diff_receipts(FIRST, data_of(other, RECEIPT))
    assert result.core_equal
    assert result.exit_code == 0
    assert [item.field for item in result.differences] == [
        "observed.run_digest",
        "observed.run_id",
        "observed.rss.after",
        "observed.exec_envelope_digest",
    ]
    assert (result.differences[2].left, result.differences[2].right) == ("4096", "9")


def test_the_first_difference_comes_first_in_the_core() -> None:
    other = make_set(generation=make_generation(state_root=fake_digest("another root")))
    result = diff_receipts(FIRST, data_of(other, RECEIPT))
    assert not result.core_equal
    assert result.exit_code == 1
    assert result.same_request
    assert result.same_runtime_class
    assert result.first is not None
    assert result.first.field == "core.evidence.state_root"


def test_another_request_and_another_class_are_told() -> None:
    runtime_class = replace(make_class(), fingerprint=fake_digest("another machine"), knobs=())
    other = make_set(*make_public(), runtime_class=runtime_class)
    result = diff_receipts(FIRST, data_of(other, RECEIPT))
    assert not result.same_request
    assert not result.same_runtime_class
    by_field = {item.field: item for item in result.differences}
    assert by_field["core.runtime_class.knobs"].right == "0 entries"
    assert by_field["core.chat_template_digest"].left == "absent"
    assert by_field["core.disclosed"].left == "absent"
    assert by_field["core.disclosed"].right.startswith('{"output_digest":')
