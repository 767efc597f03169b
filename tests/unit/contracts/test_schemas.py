"""The committed JSON Schemas equal the types and accept what the codec accepts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tallystick.contracts.codec import encode
from tallystick.contracts.schemas import DOCUMENTS, schema_files
from tests.support.documents import every_example
from tests.support.egress import example_profile, example_report
from tests.support.manifests import manifest_documents
from tests.support.sets import make_tickets

DIRECTORY = Path(__file__).resolve().parents[3] / "schemas"
BY_TYPE = {cls: f"{stem}.schema.json" for stem, cls, _ in DOCUMENTS}
EXAMPLES = (
    *every_example(),
    *manifest_documents(),
    example_profile(),
    example_report(),
    make_tickets()[0],
)


def test_committed_schemas_are_those_of_the_types() -> None:
    committed = {path.name: path.read_bytes() for path in DIRECTORY.iterdir()}

    assert committed == schema_files(), "run: python scripts/write_schemas.py"


def test_every_schema_has_an_example() -> None:
    assert {type(example) for example in EXAMPLES} == set(BY_TYPE)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_schemas_accept_the_examples(example: object) -> None:
    schema = json.loads(schema_files()[BY_TYPE[type(example)]])
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    document: Any = encode(example)

    assert list(validator.iter_errors(document)) == []
    assert not validator.is_valid({**document, "extra": None})
    for key in document:
        assert not validator.is_valid({k: v for k, v in document.items() if k != key})
        assert not validator.is_valid({**document, key: 1.5})
