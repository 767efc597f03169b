"""Documents are known by their schema field, and refused by the field that is wrong."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tallystick.canonical.hashing import format_digest, sha256
from tallystick.canonical.json import jcs
from tallystick.contracts.codec import encode, encode_bytes
from tallystick.contracts.exec_envelope import exec_envelope_digest, read_exec_envelope
from tallystick.contracts.recognise import ANY_SPELLING, known_schemas, validate_document
from tallystick.contracts.schemas import DOCUMENTS, schema_digest, schema_files
from tallystick.errors import EvidenceError, NothingToVerifyError
from tests.support.documents import (
    digest_of,
    every_example,
    example_exec_envelope,
    example_manifest,
    example_run,
)
from tests.support.egress import example_report
from tests.support.manifests import manifest_documents

EXAMPLES = (*every_example(), *manifest_documents(), example_report())
# Moving one of these is a new contract: docs/adr/0019-pinned-schemas.md.
PINNED = {
    "dac.manifest/v2": "41c42b8976892b27d4f928f5c35dbc9dcdc55cd505525d13bf3e703c274a0385",
    "dac.InferenceRun": "18cc165c2da723404e99cddd9285c93400edd9674e46c0e1df56f21835ae3704",
    "dac.zero-claw-exec/v1": "98caac90be2d907d3ae979b9bb5f6e3a81e36d58d48df55830395500869466ff",
    "geoai.receipt/v1alpha1": "7a9558804591a9f47e014fb602984d5f9eb0e3003bfe3db2b3201662a2c8dd07",
}
DOCUMENTS_PAGE = Path(__file__).resolve().parents[3] / "docs" / "spec" / "documents.md"


def test_the_schemas_of_shared_contracts_are_pinned() -> None:
    assert {name: schema_digest(name)[7:] for name in PINNED} == PINNED
    page = DOCUMENTS_PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| `([^`]+)` \| `([0-9a-f]{64})` \|$", page)
    assert dict(rows) == PINNED
    assert {name for name in known_schemas() if name.startswith("dac.")} <= PINNED.keys()


def test_a_schema_s_digest_is_that_of_its_file() -> None:
    for stem, _, schema in DOCUMENTS:
        content = schema_files()[f"{stem}.schema.json"]
        assert json.loads(content)["$id"].endswith(schema)
        assert schema_digest(schema) == format_digest(sha256(content))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_every_document_is_recognised(example: object) -> None:
    data = encode_bytes(example)
    found = validate_document(data)
    assert found.name == type(example).__name__
    assert found.size == len(data)
    assert found.spelling == "canonical"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_another_spelling_counts_only_where_no_digest_is_over_the_bytes(example: object) -> None:
    data = json.dumps(encode(example), indent=1).encode()
    if validate_document(encode_bytes(example)).schema in ANY_SPELLING:
        assert validate_document(data).spelling == "other"
    else:
        with pytest.raises(EvidenceError, match="not in canonical form"):
            validate_document(data)


def test_the_field_that_is_wrong_is_named_and_its_value_is_not() -> None:
    document: Any = encode(example_run())
    with pytest.raises(EvidenceError, match=r"dac\.InferenceRun: bad field blind") as caught:
        validate_document(jcs({**document, "blind": "a secret"}))
    assert "secret" not in str(caught.value)
    with pytest.raises(EvidenceError, match="bad field seed"):
        validate_document(jcs({**document, "seed": None}))


def test_rules_between_fields_are_held() -> None:
    manifest = example_manifest()
    with pytest.raises(EvidenceError, match=r"bad field task\.files"):
        validate_document(
            encode_bytes(
                replace(
                    manifest,
                    splits=(),
                    task=replace(manifest.task, prompt_template=None, files=()),
                )
            )
        )


@pytest.mark.parametrize(
    "data",
    [b"{}", b"[]", b"null", b'{"schema":"dac.manifest/v3"}', b'{"schema":7}', b'{"core":{}}'],
)
def test_other_documents_are_nothing_to_validate(data: bytes) -> None:
    with pytest.raises(NothingToVerifyError, match="not a document that is known here"):
        validate_document(data)


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"schema":"dac.manifest/v2","schema":"x"}', b"\xff", b"{}{}"]
)
def test_what_is_not_strict_json_is_invalid(data: bytes) -> None:
    with pytest.raises(EvidenceError):
        validate_document(data)


def test_an_execution_envelope_is_named_by_its_bytes() -> None:
    envelope = example_exec_envelope()
    data = encode_bytes(envelope)
    assert read_exec_envelope(data) == envelope
    assert exec_envelope_digest(envelope) == validate_document(data).digest
    other = replace(envelope, model_digest=digest_of("another model"))
    assert exec_envelope_digest(other) != exec_envelope_digest(envelope)
