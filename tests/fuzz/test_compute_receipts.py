"""Hostile compute receipts, papers and bundle parts: refused with the project's error, or read.

:func:`fuzz` takes the number of cases, so that a long run can be made by hand:
``python -c "from tests.fuzz.test_compute_receipts import fuzz; print(fuzz(1_000_000, 1))"``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.contracts import assignment, bundle, compute_receipt
from tallystick.contracts.codec import decode_bytes, encode_bytes
from tallystick.contracts.layout import PUBLIC_JSON
from tallystick.contracts.public_receipt import PublicReceipt
from tallystick.errors import EvidenceError
from tallystick.receipts.compute_case import ComputeCase, ComputeContext
from tallystick.receipts.compute_steps import COMPUTE_STEPS
from tallystick.receipts.public_json import PublicNames, public_receipt
from tests.support.compute_sets import KINDS, MadeReceipt
from tests.support.documents import digest_of


def read_public_receipt(data: bytes) -> PublicReceipt:
    return decode_bytes(PublicReceipt, data, max_bytes=PUBLIC_JSON.max_bytes)


Reader = tuple[Callable[[bytes], Any], Callable[[Any], bytes]]
READERS: dict[str, Reader] = {
    "receipt": (compute_receipt.decode_strict, compute_receipt.encode),
    "credential": (assignment.decode_credential, assignment.encode_credential),
    "request": (assignment.decode_signed_request, assignment.encode_signed_request),
    "assignment": (assignment.decode_signed_assignment, assignment.encode_signed_assignment),
    "public": (bundle.decode_public, bundle.encode_public),
    "private": (bundle.decode_private, bundle.encode_private),
    "document": (read_public_receipt, encode_bytes),
}
MADE = [make() for make in KINDS.values()]


def wholes(made: MadeReceipt) -> dict[str, bytes]:
    """Return one valid encoding for each reader."""
    names = PublicNames(made.public.receipt_id, digest_of("receipt"))
    return {
        "receipt": made.documents.palw,
        "credential": assignment.encode_credential(made.private.credential),
        "request": assignment.encode_signed_request(made.private.signed_request),
        "assignment": assignment.encode_signed_assignment(made.private.signed_assignment),
        "public": bundle.encode_public(made.public),
        "private": bundle.encode_private(made.private),
        "document": encode_bytes(public_receipt(made.case(), names)),
    }


WHOLES = [wholes(made) for made in MADE]


def mutated(data: bytes, source: random.Random) -> bytes:
    """Return other bytes: flipped, cut, spliced, or a length set to an extreme."""
    edited = bytearray(data)
    for _ in range(source.choice((1, 1, 1, 2, 4))):
        at = source.randrange(len(edited) + 1)
        kind = source.randrange(4)
        if kind == 0 and at < len(edited):
            edited[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            del edited[at : at + source.randrange(1, 40)]
        elif kind == 2:
            edited[at:at] = source.randbytes(source.randrange(1, 9))
        else:
            edited[at : at + 4] = source.choice((b"\xff" * 4, bytes(4), b"\x00\x00\x00\x04"))
    return bytes(edited)


def read(name: str, data: bytes) -> bool:
    """Return whether ``data`` is read; then it is the one encoding of what was read."""
    decode, encode = READERS[name]
    try:
        value = decode(data)
    except EvidenceError:
        return False
    assert encode(value) == data
    return True


def run_steps(made: MadeReceipt, name: str, data: bytes) -> bool:
    """Return whether every step of a receipt with one edited part passes or cannot run."""
    documents = made.documents
    try:
        if name == "receipt":
            documents = replace(documents, palw=data, receipt=compute_receipt.decode_strict(data))
        elif name == "public":
            documents = replace(documents, public=bundle.decode_public(data))
        else:
            documents = replace(documents, private=bundle.decode_private(data))
    except EvidenceError:
        return False
    case = ComputeCase(documents, ComputeContext())
    passed = True
    for step in COMPUTE_STEPS.values():
        try:
            step(case)
        except EvidenceError:
            passed = False
    return passed


def only_opening(made: MadeReceipt, name: str, data: bytes) -> bool:
    """Return whether nothing but the opening was edited: the geoai half of step 11 checks it."""
    if name != "private":
        return False
    edited = bundle.decode_private(data)
    return replace(edited, opening=made.private.opening) == made.private


def fuzz(cases: int, seed: int) -> Counter[str]:
    """Run ``cases`` hostile inputs; return how many were read, refused, stopped by a step, passed.

    Any exception but the project's own, and any accepted change, is raised.
    """
    source = random.Random(seed)
    seen: Counter[str] = Counter()
    for _ in range(cases):
        at = source.randrange(len(MADE))
        name = source.choice(tuple(READERS))
        whole = WHOLES[at][name]
        data = (
            source.randbytes(source.randrange(2 * len(whole)))
            if source.randrange(20) == 0
            else mutated(whole, source)
        )
        if not read(name, data):
            seen["refused"] += 1
        elif name not in ("receipt", "public", "private") or data == whole:
            seen["read"] += 1
        else:
            passed = run_steps(MADE[at], name, data)
            assert not passed or only_opening(MADE[at], name, data), (name, seed, seen.total())
            seen["passed" if passed else "stopped"] += 1
    return seen


def test_hostile_bytes_raise_nothing_but_the_projects_error() -> None:
    seen = fuzz(2000, 20)

    assert seen.total() == 2000
    assert min(seen["read"], seen["refused"], seen["stopped"]) > 50


@pytest.mark.parametrize("name", READERS)
def test_the_whole_is_read(name: str) -> None:
    assert all(read(name, whole[name]) for whole in WHOLES)


@settings(deadline=None)
@given(st.sampled_from(tuple(READERS)), st.binary(max_size=800))
def test_random_bytes_are_refused(name: str, data: bytes) -> None:
    assert not read(name, data) or name in ("credential", "request", "assignment")


@settings(deadline=None)
@given(st.sampled_from(range(len(MADE))), st.sampled_from(("manifest", "evidence")), st.data())
def test_a_spliced_part_of_the_public_part_stops_at_a_step(
    at: int, part: str, draw: st.DataObject
) -> None:
    made = MADE[at]
    whole: bytes = getattr(made.public, part)
    start = draw.draw(st.integers(0, len(whole)))
    end = draw.draw(st.integers(start, min(len(whole), start + 40)))
    edited = whole[:start] + draw.draw(st.binary(max_size=8)) + whole[end:]
    changes: dict[str, Any] = {part: edited}
    public = bundle.encode_public(replace(made.public, **changes))

    assert run_steps(made, "public", public) is (edited == whole)
