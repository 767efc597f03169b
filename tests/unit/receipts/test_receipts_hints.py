"""What to do about a failure reaches whoever asked, through every report and re-raise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tallystick.attest.keys import PublicKey
from tallystick.audit import match
from tallystick.errors import EvidenceError, IncomparableError
from tallystick.receipts.compute_steps import COMPUTE_STEPS
from tallystick.receipts.report import Restoration, Status, VerificationReport, as_document
from tallystick.receipts.verify import VerifyContext, failed_report
from tests.support.compute_sets import make_receipt
from tests.support.sets import NOW, TRUST, make_set

ERROR = EvidenceError("it is bent", expected="straight", found="bent", hint="make it straight")


def test_an_error_told_anew_keeps_all_but_its_words() -> None:
    again = IncomparableError.of(ERROR, "no way")
    assert type(again) is IncomparableError
    assert (again.message, again.expected) == ("no way", "straight")
    assert (again.found, again.hint) == ("bent", "make it straight")
    assert EvidenceError.of(ERROR).message == "it is bent"


def test_a_failed_step_says_what_to_do() -> None:
    report = failed_report("0" * 32, ERROR)
    assert report.failure is not None
    assert report.failure.hint == "make it straight"
    with pytest.raises(EvidenceError, match="step 1 ") as caught:
        report.require()
    assert caught.value.hint == "make it straight"
    document = as_document(report)
    assert isinstance(document, dict)
    steps = document["steps"]
    assert isinstance(steps, list)
    assert isinstance(steps[0], dict)
    assert steps[0]["hint"] == "make it straight"


def test_a_store_that_disagrees_says_what_to_do() -> None:
    failed = Restoration(Status.FAILED, "damaged", "whole", "half", "get it again")
    report = replace(make_set().report, restoration=failed)
    with pytest.raises(EvidenceError, match="the state store does not agree") as caught:
        report.require()
    assert caught.value.hint == "get it again"


@pytest.mark.parametrize("step", [3, 4])
def test_a_signature_that_does_not_hold_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    case = make_receipt("states", "gemm", experts=True).case()

    def verify(*_: object) -> None:
        raise ERROR

    monkeypatch.setattr(PublicKey, "verify", verify)
    with pytest.raises(EvidenceError, match=r"did not sign|signature does not hold") as caught:
        COMPUTE_STEPS[step](case)
    assert caught.value.hint == "make it straight"


def test_a_side_that_does_not_match_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def verify(*_: object, **__: object) -> VerificationReport:
        return failed_report("0" * 32, ERROR)

    monkeypatch.setattr(match, "verify_with", verify)
    files = make_set().files()
    with pytest.raises(EvidenceError, match="A does not verify: step 1 ") as caught:
        match.match_sets(files, files, VerifyContext(TRUST, NOW))
    assert caught.value.hint == "make it straight"
