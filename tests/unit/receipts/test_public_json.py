"""The public document: derived from authenticated values, refused at the first other field."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from tallystick.canonical.hashing import sha256
from tallystick.canonical.json import jcs, parse_strict
from tallystick.contracts.codec import decode_bytes, encode_bytes
from tallystick.contracts.layout import PUBLIC_JSON
from tallystick.contracts.public_receipt import (
    PRIVACY,
    PrivacyFlags,
    PublicReceipt,
)
from tallystick.contracts.receipt import Disclosed
from tallystick.errors import EvidenceError
from tallystick.receipts.compute_case import ComputeCase, NotChecked, StepOutcome
from tallystick.receipts.public_json import (
    PublicNames,
    check_public_receipt,
    privacy_flags,
    public_receipt,
)
from tests.support.compute_sets import KINDS, make_receipt
from tests.support.documents import digest_of

NAMES = PublicNames(sha256(b"bundle"), digest_of("receipt"))
ALL = make_receipt("states", "graph", "gemm", experts=True)
CASE = ALL.case()
DOCUMENT = encode_bytes(public_receipt(CASE, NAMES))


def check(data: bytes, case: ComputeCase = CASE, names: PublicNames = NAMES) -> StepOutcome:
    """Decode a document as step 1 does, and check it as step 13 does."""
    found = decode_bytes(
        PublicReceipt, data, max_bytes=PUBLIC_JSON.max_bytes, where="public receipt"
    )
    return check_public_receipt(found, case, names)


def parsed() -> Any:
    return parse_strict(DOCUMENT, max_bytes=1 << 20)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every value that is no container."""
    if isinstance(value, dict | list):
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield from leaves(value[key], (*path, key))
    else:
        yield path


def other(value: Any) -> Any:
    """Return another value that the field could hold."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if value.startswith("sha256:"):
        return "sha256:" + value[7:][::-1]
    return str(int(value) + 1) if value.isdigit() else value + "x"


PATHS = tuple(leaves(parsed()))


@pytest.mark.parametrize("kind", KINDS)
def test_the_document_of_an_honest_receipt_holds(kind: str) -> None:
    made = KINDS[kind]()
    document = public_receipt(made.case(), NAMES)

    assert isinstance(check(encode_bytes(document), made.case()), str)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(map(str, path)))
def test_every_value_changed_alone_is_refused(path: tuple[Any, ...]) -> None:
    document = copy.deepcopy(parsed())
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = other(place[path[-1]])

    with pytest.raises(EvidenceError) as caught:
        check(jcs(document))
    assert str(path[-1]) in caught.value.message


def test_the_first_difference_is_named_with_both_values() -> None:
    document = parsed()
    document["prefill_tokens"] = 9
    document["mint"]["weight"] = "5"
    with pytest.raises(EvidenceError) as caught:
        check(jcs(document))
    assert caught.value.message == (
        "public receipt: prefill_tokens is not what receipt and bundle say"
    )
    assert (caught.value.expected, caught.value.found) == ("4", "9")


def test_a_promoted_assessment_is_refused() -> None:
    document = parsed()
    document["mint"]["ineligible_reasons"] = []
    with pytest.raises(EvidenceError, match=r"mint\.ineligible_reasons") as caught:
        check(jcs(document))
    assert caught.value.found == "0 items"


def test_unknown_missing_and_uncanonical_documents_are_refused() -> None:
    document = parsed()
    edited: Any
    for edited in (
        {**document, "extra": None},
        {key: value for key, value in document.items() if key != "mint"},
        [],
    ):
        with pytest.raises(EvidenceError):
            check(jcs(edited))
    for data in (b"", DOCUMENT + b"\n", b" " + DOCUMENT, DOCUMENT[:-1]):
        with pytest.raises(EvidenceError):
            check(data)


def test_other_names_are_refused() -> None:
    for names in (
        replace(NAMES, bundle_id=sha256(b"another bundle")),
        replace(NAMES, receipt_digest=digest_of("another receipt")),
    ):
        with pytest.raises(EvidenceError, match="is not what receipt and bundle say"):
            check(DOCUMENT, names=names)


def test_no_key_is_needed() -> None:
    assert isinstance(check(DOCUMENT, ALL.case(private=None)), str)
    with pytest.raises(ValueError, match="bundle"):
        public_receipt(ALL.case(public=None, private=None), NAMES)


OF_THE_BUNDLE = {"verification_bundle_id", "semantic_schedule"}


# No other value of these two has the form of the document.
@pytest.mark.parametrize("name", sorted({*parsed()} - {"mint", "schedule_kind"}))
def test_without_a_bundle_what_receipt_and_core_say_is_checked(name: str) -> None:
    case = ALL.case(public=None, private=None)
    names = replace(NAMES, bundle_id=None)
    assert isinstance(check(DOCUMENT, case, names), NotChecked)
    document = parsed()
    path = next(path for path in PATHS if path[0] == name)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = other(place[path[-1]])
    if name in OF_THE_BUNDLE:
        assert isinstance(check(jcs(document), case, names), NotChecked)
        return
    with pytest.raises(EvidenceError):
        check(jcs(document), case, names)


def test_figures_of_the_seed_have_their_places() -> None:
    live = public_receipt(make_receipt("gemm", experts=True, sequential=True).case(), NAMES)

    assert (live.prefill_graph_steps, live.decode_graph_steps) == (4, 2)
    assert live.trace_event_count == 18
    assert live.expert_route.route_event_count == 3 * 6
    assert live.semantic_schedule.expert_route_ops == 3 * 2
    assert live.canonical_compute_units == live.semantic_compute_units_v3
    assert live.artifacts.model_bytes == 2**40


def test_nine_flags_say_where_each_private_value_is() -> None:
    assert len(fields(PrivacyFlags)) == 9
    everything = public_receipt(ALL.case(), NAMES).privacy
    assert {getattr(everything, flag.name) for flag in fields(PrivacyFlags)} <= {*PRIVACY}
    assert (everything.gemm_trace, everything.expert_routes) == ("sealed", "sealed")
    assert everything.signing_keys == "withheld"
    states = public_receipt(make_receipt("states").case(), NAMES).privacy
    assert (states.gemm_trace, states.expert_routes) == ("not_gathered", "not_gathered")


def test_public_disclosure_changes_what_is_said() -> None:
    core = replace(
        ALL.inputs.core,
        disclosure="public",
        disclosed=Disclosed(digest_of("prompt"), digest_of("output")),
    )
    flags = privacy_flags(core, traced=True)

    assert flags.prompt_text == flags.output_text == "digest_published"
    assert flags.prompt_token_ids == flags.generated_token_ids == "digest_published"
    assert flags.openings == flags.owner_salt == flags.gemm_trace == "sealed"


def test_the_document_holds_no_private_value() -> None:
    text = DOCUMENT.decode()
    private = ALL.private
    for secret in (
        private.owner_key,
        private.owner_salt,
        private.request_nonce,
        private.prompt_nonce,
        private.output_nonce,
    ):
        assert secret.hex() not in text
    assert ALL.inputs.run.blind not in text
    assert isinstance(public_receipt(ALL.case(), NAMES), PublicReceipt)
