"""Profile pins: strict JSON, and the rules between their numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.contracts.codec import encode
from tallystick.contracts.profile_pin import (
    MAX_PROFILE_PIN,
    PinnedFile,
    check_profile_pin,
    decode_profile_pin,
)
from tallystick.errors import EvidenceError
from tests.support.manifests import example_profile_pin

PIN = example_profile_pin()
DOCUMENT: Any = encode(PIN)
HYBRID = {
    "full_attention_interval": 3,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}


def text_of(document: Any) -> bytes:
    return json.dumps(document, indent=1).encode()


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every object in ``value``."""
    if isinstance(value, list):
        return [found for index, item in enumerate(value) for found in places(item, (*path, index))]
    if isinstance(value, dict):
        inner = [found for key, item in value.items() for found in places(item, (*path, key))]
        return [path, *inner]
    return []


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


def test_a_pin_comes_back_from_any_layout() -> None:
    assert decode_profile_pin(text_of(DOCUMENT)) == PIN
    assert decode_profile_pin(json.dumps(DOCUMENT).encode()) == PIN


@pytest.mark.parametrize("path", places(DOCUMENT), ids=str)
def test_unknown_and_missing_keys_are_refused_everywhere(path: tuple[Any, ...]) -> None:
    document = json.loads(text_of(DOCUMENT))
    at(document, path)["extra"] = 0
    with pytest.raises(EvidenceError, match="profile pin"):
        decode_profile_pin(text_of(document))
    for key in at(DOCUMENT, path):
        document = json.loads(text_of(DOCUMENT))
        del at(document, path)[key]
        with pytest.raises(EvidenceError, match="profile pin"):
            decode_profile_pin(text_of(document))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), "misaka.palw.model-profile-pin.v1"),
        (("model", "hidden_size"), "256"),
        (("model", "hidden_size"), 0),
        (("model", "head_dim"), 64.0),
        (("model", "partial_rotary_factor_millionths"), 0),
        (("model", "partial_rotary_factor_millionths"), 1_000_001),
        (("base_artifact", "download_scope"), "everything"),
        (("base_artifact", "revision"), "main"),
        (("base_artifact", "revision"), "0" * 64),
        (("base_artifact", "repository"), "../x"),
        (("base_artifact", "repository"), "a/b/c"),
        (("base_artifact", "files", 0, "path"), "../x"),
        (("base_artifact", "files", 0, "path"), "a/b"),
        (("base_artifact", "files", 0, "path"), ".hidden"),
        (("base_artifact", "files", 0, "sha256"), "sha256:" + "0" * 64),
        (("inference_artifact", "revision"), "0" * 40),
        (("inference_artifact", "bytes"), 0),
        (("inference_artifact", "bytes"), "1"),
    ],
    ids=str,
)
def test_values_out_of_form_are_refused(path: tuple[Any, ...], value: Any) -> None:
    document = json.loads(text_of(DOCUMENT))
    at(document, path[:-1])[path[-1]] = value
    with pytest.raises(EvidenceError, match="profile pin: bad field"):
        decode_profile_pin(text_of(document))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"hidden_size": 258}, "hidden_size"),
        ({"num_key_value_heads": 3}, "num_attention_heads"),
        ({"num_key_value_heads": 8}, "num_attention_heads"),
        ({"experts_per_token": 1}, "expert_count"),
        ({"shared_expert_intermediate_size": 1}, "expert_count"),
        ({"expert_count": 8}, "experts_per_token"),
        ({"expert_count": 8, "experts_per_token": 9}, "experts_per_token"),
        ({"full_attention_interval": 4}, "full_attention_interval"),
        ({"linear_conv_kernel_dim": 4}, "full_attention_interval"),
        ({**HYBRID, "linear_key_head_dim": 0}, "full_attention_interval"),
        ({**HYBRID, "full_attention_interval": 1}, "full_attention_interval"),
        ({**HYBRID, "linear_num_value_heads": 17}, "linear_num_value_heads"),
        ({**HYBRID, "full_attention_interval": 4}, "num_hidden_layers"),
    ],
    ids=str,
)
def test_rules_between_the_numbers(changes: Any, field: str) -> None:
    pin = replace(PIN, model=replace(PIN.model, **changes))
    with pytest.raises(EvidenceError, match=rf"bad field model\.{field}"):
        check_profile_pin(pin)


@pytest.mark.parametrize(
    "changes",
    [
        {"head_dim": 256},
        HYBRID,
        {"expert_count": 8, "experts_per_token": 8, "shared_expert_intermediate_size": 9},
    ],
    ids=str,
)
def test_numbers_that_fit(changes: Any) -> None:
    check_profile_pin(replace(PIN, model=replace(PIN.model, **changes)))


def test_seven_different_files_and_one_name_of_the_content() -> None:
    base = PIN.base_artifact
    for files in (base.files[:6], (*base.files[:6], base.files[0])):
        with pytest.raises(EvidenceError, match=r"base_artifact\.files"):
            check_profile_pin(replace(PIN, base_artifact=replace(base, files=files)))
    eight = {**DOCUMENT["base_artifact"]}
    eight["files"] = [*eight["files"], encode(PinnedFile("eighth", None))]
    with pytest.raises(EvidenceError, match="files"):
        decode_profile_pin(text_of({**DOCUMENT, "base_artifact": eight}))
    artifact = replace(PIN.inference_artifact, revision="0" * 64)
    with pytest.raises(EvidenceError, match=r"inference_artifact\.revision"):
        check_profile_pin(replace(PIN, inference_artifact=artifact))


def test_a_large_document_is_refused() -> None:
    with pytest.raises(EvidenceError, match="too large"):
        decode_profile_pin(text_of(DOCUMENT) + b" " * MAX_PROFILE_PIN)


@given(st.data())
def test_edited_documents_are_refused_or_read(draw: st.DataObject) -> None:
    data = text_of(DOCUMENT)
    start = draw.draw(st.integers(0, len(data)))
    end = draw.draw(st.integers(start, min(len(data), start + 20)))
    try:
        decode_profile_pin(data[:start] + draw.draw(st.binary(max_size=8)) + data[end:])
    except EvidenceError:
        return
