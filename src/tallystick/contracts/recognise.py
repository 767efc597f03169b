"""Which document a file holds, by its schema field, and whether it is a valid one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tallystick.canonical.hashing import format_digest, sha256
from tallystick.canonical.json import JSONValue, jcs, parse_strict, shorten
from tallystick.contracts.codec import decode
from tallystick.contracts.dataset import DatasetManifest, check_manifest
from tallystick.contracts.manifest_facts import ManifestFacts, check_facts
from tallystick.contracts.model_ref import ModelRef, check_model_ref
from tallystick.contracts.profile_pin import PROFILE_PIN_SCHEMA, ProfilePin, check_profile_pin
from tallystick.contracts.request import RUN_SCHEMA, InferenceRun
from tallystick.contracts.schemas import DOCUMENTS
from tallystick.errors import EvidenceError, NothingToVerifyError

MAX_DOCUMENT_BYTES: Final = 256 * 1024 * 1024
#: What may be written in any spelling: their digests are over the canonical form of what was read.
ANY_SPELLING: Final = frozenset({RUN_SCHEMA, PROFILE_PIN_SCHEMA})
# A sandbox profile has no schema field: it is part of the program's own files.
_TYPES: Final[Mapping[str, type]] = {
    schema: cls for _, cls, schema in DOCUMENTS if {"schema", "core"} & cls.__annotations__.keys()
}


@dataclass(frozen=True, slots=True)
class ValidDocument:
    """A document that holds: its schema, its type's name, the sha256 and number of its bytes.

    ``spelling`` is "canonical" when the bytes are the document's canonical form, else "other".
    """

    schema: str
    name: str
    digest: str
    size: int
    spelling: str


def known_schemas() -> tuple[str, ...]:
    """Return the schemas that :func:`validate_document` knows, sorted."""
    return tuple(sorted(_TYPES))


def schema_of(value: JSONValue) -> str | None:
    """Return what a parsed document says its schema is; a receipt says it in its core."""
    if not isinstance(value, dict):
        return None
    found = value.get("schema")
    core = value.get("core")
    if found is None and isinstance(core, dict):
        found = core.get("schema")
    return found if isinstance(found, str) else None


def validate_document(data: bytes) -> ValidDocument:
    """Return what the document ``data`` is, held to its type and the rules between its fields.

    Raises EvidenceError that names the field which is wrong (bytes that are not strict JSON, or not
    canonical where a digest is over them, are refused too), NothingToVerifyError for a document of
    another kind. Errors show no value that may be private.
    """
    value = parse_strict(data, max_bytes=MAX_DOCUMENT_BYTES)
    schema = schema_of(value)
    cls = _TYPES.get(schema or "")
    if schema is None or cls is None:
        raise NothingToVerifyError(
            "not a document that is known here",
            expected=f"one of the schemas {', '.join(known_schemas())}",
            found="no schema field" if schema is None else shorten(schema),
        )
    document: object = decode(cls, value, where=schema)
    rules = _RULES.get(cls)
    if rules is not None:
        rules(document)
    canonical = jcs(value) == data
    if not canonical and schema not in ANY_SPELLING:
        raise EvidenceError(
            f"{schema}: not in canonical form",
            expected="RFC 8785 bytes: sorted keys, no white space, no final newline",
        )
    spelling = "canonical" if canonical else "other"
    return ValidDocument(schema, cls.__name__, format_digest(sha256(data)), len(data), spelling)


def _check_run(run: InferenceRun) -> None:
    if (run.seed is None) != (run.temperature == "0"):
        raise EvidenceError(
            f"{RUN_SCHEMA}: bad field seed", expected="null exactly when the temperature is 0"
        )


_RULES: Final[Mapping[type, Callable[[Any], None]]] = {
    DatasetManifest: check_manifest,
    InferenceRun: _check_run,
    ManifestFacts: check_facts,
    ModelRef: check_model_ref,
    ProfilePin: check_profile_pin,
}
