"""What an outsider could write where no signature reaches: refused, bundle or no bundle."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.canonical.json import jcs
from tallystick.contracts.layout import BUNDLE, PUBLIC_JSON
from tallystick.receipts.verify import verify_set
from tests.support.forgery import Forger
from tests.support.sets import NOW, TRUST, make_set, make_traced

FORGERS = {
    "states": Forger(make_set().files()),
    "gemm": Forger(make_traced("gemm", experts=True, sequential=True).files()),
}
MINT: tuple[tuple[tuple[str, ...], Any], ...] = (
    (("mint", "eligible"), True),
    (("mint", "weight"), "18446744073709551615"),
    (("mint", "mainnet_ready"), True),
    (("mint", "ineligible_reasons"), []),
    (("mint", "mainnet_gates"), []),
    (("verification_epoch",), "498889"),
    (("semantic_compute_units_v3",), "7"),
    (("artifacts", "model_digest"), "sha256:" + "0" * 64),
    (("artifacts", "engine_version"), "another"),
    (("expert_route", "root"), "sha256:" + "1" * 64),
)


@pytest.mark.parametrize("forger", FORGERS.values(), ids=FORGERS)
@pytest.mark.parametrize(("path", "value"), MINT)
def test_a_public_document_cannot_claim_more_while_the_bundle_is_withheld(
    forger: Forger, path: tuple[str, ...], value: Any
) -> None:
    document = forger.document(PUBLIC_JSON.suffix)
    holder = document
    for step in path[:-1]:
        holder = holder[step]
    assert holder[path[-1]] != value
    holder[path[-1]] = value
    files = forger.with_member(PUBLIC_JSON, jcs(document))
    del files[BUNDLE.name(forger.set_id)]
    report = verify_set(files, TRUST, now=NOW)
    assert report.failure is not None
    assert report.failure.number == 13


@pytest.mark.parametrize("forger", FORGERS.values(), ids=FORGERS)
def test_an_honest_set_verifies_with_its_bundle_withheld(forger: Forger) -> None:
    files = dict(forger.files)
    del files[BUNDLE.name(forger.set_id)]
    assert verify_set(files, TRUST, now=NOW).verified
