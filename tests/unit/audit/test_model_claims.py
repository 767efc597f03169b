"""A manifest that describes another model than the file is found out by a replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tallystick.audit.model_claims import require_claims
from tallystick.contracts.codec import encode_bytes
from tallystick.contracts.manifest import RuntimeManifest
from tallystick.contracts.model import WeightType
from tallystick.errors import EvidenceError
from tests.support.sets import make_manifest, make_model

MANIFEST, MODEL = make_manifest(), make_model()


def with_facts(**changes: Any) -> RuntimeManifest:
    facts = replace(MANIFEST.decoded_facts(), **changes)
    return replace(MANIFEST, facts=encode_bytes(facts))


def test_the_file_s_own_manifest_holds() -> None:
    require_claims(MANIFEST, MODEL)


@pytest.mark.parametrize(
    ("manifest", "field"),
    [
        (with_facts(weight_types=(WeightType("Q4_K", 1, 1),)), "weight types"),
        (with_facts(tokenizer_model="another"), "tokenizer_model"),
        (with_facts(tokenizer_digest="sha256:" + "0" * 64), "tokenizer_digest"),
        (with_facts(chat_template_digest="sha256:" + "0" * 64), "chat_template_digest"),
        (
            replace(MANIFEST, runtime_class=replace(MANIFEST.runtime_class, quantization="IQ1_S")),
            "quantization",
        ),
        (
            replace(MANIFEST, model_profile=replace(MANIFEST.model_profile, parameters=1)),
            "parameters",
        ),
    ],
)
def test_each_claim_of_another_model_is_refused(manifest: RuntimeManifest, field: str) -> None:
    with pytest.raises(EvidenceError, match="another way than the file") as caught:
        require_claims(manifest, MODEL)
    assert f"the file's own {field}" in str(caught.value)
