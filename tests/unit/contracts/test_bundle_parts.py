"""The two parts of a bundle: one encoding each, bounds before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.canonical.hashing import sha256
from tallystick.contracts.bundle import (
    MAX_BUNDLE,
    MAX_EVIDENCE,
    MAX_MANIFEST,
    BundlePrivate,
    BundlePublic,
    decode_private,
    decode_public,
    encode_private,
    encode_public,
    receipt_binding,
)
from tallystick.errors import EvidenceError, InputError
from tests.unit.contracts.test_assignment import ASSIGNMENT, CREDENTIAL, REQUEST

PUBLIC = BundlePublic(
    version=1,
    receipt_binding=sha256(b"binding"),
    receipt_id=sha256(b"id"),
    verification_epoch=498_900,
    scheduler_key=sha256(b"scheduler"),
    prompt_commitment=sha256(b"prompt"),
    manifest=b"manifest",
    evidence=b"evidence",
)
PRIVATE = BundlePrivate(
    version=1,
    signed_request=REQUEST,
    signed_assignment=ASSIGNMENT,
    credential=CREDENTIAL,
    owner_key=sha256(b"owner key"),
    owner_salt=sha256(b"owner salt"),
    request_nonce=sha256(b"request nonce"),
    prompt_nonce=sha256(b"prompt nonce"),
    output_nonce=sha256(b"output nonce"),
    opening=b"{}",
    expert_routes=None,
    gemm_trace=b"trace",
)
PARTS: dict[str, tuple[bytes, Callable[[bytes], Any], Callable[[Any], bytes]]] = {
    "public": (encode_public(PUBLIC), decode_public, encode_public),
    "private": (encode_private(PRIVATE), decode_private, encode_private),
}
_LENGTHS = 2 + 2 * 32 + 8 + 2 * 32  # where the length of the manifest stands


def test_the_public_part_comes_back() -> None:
    assert decode_public(encode_public(PUBLIC)) == PUBLIC
    assert len(encode_public(PUBLIC)) == _LENGTHS + 4 + 8 + 4 + 8


@pytest.mark.parametrize("routes", [None, b"", b"routes"])
@pytest.mark.parametrize("trace", [None, b"", b"trace"])
def test_the_private_part_comes_back(routes: bytes | None, trace: bytes | None) -> None:
    private = replace(PRIVATE, expert_routes=routes, gemm_trace=trace)

    assert decode_private(encode_private(private)) == private


def test_every_field_is_encoded() -> None:
    for field in fields(BundlePublic):
        value = getattr(PUBLIC, field.name)
        changes: dict[str, Any] = {field.name: value + 1 if isinstance(value, int) else value[::-1]}
        assert encode_public(replace(PUBLIC, **changes)) != encode_public(PUBLIC)


def test_the_private_part_shows_nothing() -> None:
    assert repr(PRIVATE) == "<BundlePrivate>"


def test_a_bundle_is_bound_to_all_bytes_of_a_receipt() -> None:
    assert receipt_binding(bytes(670)) != receipt_binding(bytes(669) + b"\x01")


@pytest.mark.parametrize("version", [0, 2])
def test_another_version_is_refused(version: int) -> None:
    with pytest.raises(EvidenceError, match="unknown version"):
        decode_public(encode_public(replace(PUBLIC, version=version)))
    with pytest.raises(EvidenceError, match="unknown version"):
        decode_private(encode_private(replace(PRIVATE, version=version)))


def test_a_flag_is_0_or_1() -> None:
    data = encode_private(replace(PRIVATE, gemm_trace=None))
    assert data[-1] == 0
    with pytest.raises(EvidenceError, match="not a flag"):
        decode_private(data[:-1] + b"\x02")


def test_bounds_are_those_of_the_fields() -> None:
    for part, limit in (
        (replace(PUBLIC, manifest=bytes(MAX_MANIFEST + 1)), MAX_MANIFEST),
        (replace(PUBLIC, evidence=bytes(MAX_EVIDENCE + 1)), MAX_EVIDENCE),
    ):
        with pytest.raises(InputError, match="too many bytes") as caught:
            encode_public(part)
        assert caught.value.expected == f"at most {limit}"
    with pytest.raises(InputError, match="too large"):
        encode_private(replace(PRIVATE, opening=bytes(MAX_BUNDLE)))


def test_a_length_beyond_its_bound_is_refused_at_once() -> None:
    data = bytearray(encode_public(PUBLIC))
    data[_LENGTHS : _LENGTHS + 4] = (MAX_MANIFEST + 1).to_bytes(4, "little")
    with pytest.raises(EvidenceError, match="too many bytes"):
        decode_public(bytes(data))


@pytest.mark.parametrize("decode", [decode_public, decode_private])
def test_too_long_a_part_is_refused_unread(decode: type) -> None:
    with pytest.raises(EvidenceError, match="too long"):
        decode(bytes(MAX_BUNDLE + 1))


@settings(deadline=None)
@given(st.sampled_from(["public", "private"]), st.data())
def test_spliced_parts_raise_nothing_but_the_projects_error(kind: str, draw: st.DataObject) -> None:
    whole, decode, encode = PARTS[kind]
    start = draw.draw(st.integers(0, len(whole)))
    end = draw.draw(st.integers(start, len(whole)))
    edited = whole[:start] + draw.draw(st.binary(max_size=8)) + whole[end:]
    try:
        part = decode(edited)
    except EvidenceError:
        return
    assert encode(part) == edited
