"""The JSON Schemas of the documents, generated from their types (docs/spec/documents.md).

``python scripts/write_schemas.py`` writes them; a test holds the committed files to the types.
The schemas describe structure for other tools. What this project itself reads with is
:mod:`tallystick.contracts.codec`, which is stricter (canonical bytes, dates that exist).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from tallystick.canonical.hashing import format_digest, sha256
from tallystick.contracts.codec import json_schema
from tallystick.contracts.dataset import MANIFEST_SCHEMA, DatasetManifest
from tallystick.contracts.egress import REPORT_SCHEMA, EgressReport
from tallystick.contracts.exec_envelope import EXEC_SCHEMA, ExecEnvelope
from tallystick.contracts.manifest_facts import ManifestFacts
from tallystick.contracts.model import Calibration, ModelFacts, ModelPin
from tallystick.contracts.model_ref import MODEL_REF_SCHEMA, ModelRef
from tallystick.contracts.opening import Opening, ReceiptSet
from tallystick.contracts.profile_pin import BaseMetadata, ProfilePin
from tallystick.contracts.public_receipt import PublicReceipt
from tallystick.contracts.receipt import Receipt
from tallystick.contracts.request import InferenceRun
from tallystick.contracts.sandbox_profile import SandboxProfile
from tallystick.contracts.ticket import TICKET_SCHEMA, Ticket

# File name stem, type, and the end of the schema's id.
DOCUMENTS: Final[tuple[tuple[str, type, str], ...]] = (
    ("inference-run", InferenceRun, "dac.InferenceRun"),
    ("dataset-manifest", DatasetManifest, MANIFEST_SCHEMA),
    ("model-ref", ModelRef, MODEL_REF_SCHEMA),
    ("exec-envelope", ExecEnvelope, EXEC_SCHEMA),
    ("receipt", Receipt, "geoai.receipt/v1alpha1"),
    ("opening", Opening, "tallystick.opening/v1"),
    ("receipt-set", ReceiptSet, "misaka.palw.receipt-set.v2"),
    ("public-receipt", PublicReceipt, "misaka.palw.public-receipt.v2"),
    ("model-facts", ModelFacts, "tallystick.model-facts/v2"),
    ("model-pin", ModelPin, "tallystick.model-pin/v2"),
    ("calibration", Calibration, "tallystick.calibration/v1"),
    ("manifest-facts", ManifestFacts, "tallystick.manifest-facts/v1"),
    ("profile-pin", ProfilePin, "misaka.palw.model-profile-pin.v2"),
    ("ticket", Ticket, TICKET_SCHEMA),
    ("base-metadata", BaseMetadata, "tallystick.base-metadata/v1"),
    ("sandbox-profile", SandboxProfile, "tallystick.sandbox-profile/v1"),
    ("egress-report", EgressReport, REPORT_SCHEMA),
)
SCHEMA_ID_PREFIX: Final = "tag:tallystick,2026:schema/"


def schema_files() -> Mapping[str, bytes]:
    """Return the content of every schema file by its name, as UTF-8 with two-space indents."""
    return {f"{stem}.schema.json": _schema_file(cls, identity) for stem, cls, identity in DOCUMENTS}


def schema_digest(schema: str) -> str:
    """Return the sha256 of the schema file of the documents whose schema field is ``schema``.

    Raises KeyError when there is none.
    """
    types = {identity: cls for _, cls, identity in DOCUMENTS}
    return format_digest(sha256(_schema_file(types[schema], schema)))


def _schema_file(cls: type, identity: str) -> bytes:
    schema = json_schema(cls, SCHEMA_ID_PREFIX + identity)
    return (json.dumps(schema, indent=2, ensure_ascii=False) + "\n").encode("utf-8")
