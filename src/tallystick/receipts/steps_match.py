"""Step 12, last part: declared, materialised and executed, as far as a verifier brings them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tallystick.attest.source import require_about
from tallystick.bundles.match import (
    DECLARED,
    EXECUTED,
    MATERIALISED,
    Materialised,
    declared_by,
    executed_by,
    require_match,
    require_prompt,
)
from tallystick.canonical.hashing import format_digest, sha256
from tallystick.contracts.digests import request_digest
from tallystick.contracts.request import InferenceRun
from tallystick.receipts.documents import SetDocuments
from tallystick.receipts.fields import require_equal


@dataclass(frozen=True, slots=True)
class Parties:
    """What a verifier holds against a receipt: a run as it was declared, a bundle as it is on disk.

    The bundle's prompt is compared where it is given and the private half is open.
    """

    declared: InferenceRun | None = field(default=None, repr=False)
    materialised: Materialised | None = field(default=None, repr=False)


def three_way(documents: SetDocuments, parties: Parties) -> tuple[str, ...]:
    """Compare the receipt with the other two; return which of the three agreed.

    The declaration is the one that is given; else that of the opening, which step 11 has compared.
    Raises EvidenceError that names the first digest which differs.
    """
    executed = executed_by(documents.receipt.core)
    agreed: list[str] = [DECLARED] if documents.opening is not None else []
    if parties.declared is not None:
        run = parties.declared
        require_match(DECLARED, declared_by(run), EXECUTED, executed)
        found = documents.receipt.core.request_digest
        require_equal("core.request_digest", request_digest(run), found)
        agreed = [DECLARED]
    if parties.materialised is not None:
        _check_materialised(documents, parties.materialised)
        agreed.append(MATERIALISED)
    return (*agreed, EXECUTED)


def _check_materialised(documents: SetDocuments, found: Materialised) -> None:
    executed = executed_by(documents.receipt.core)
    chain = documents.execution.provenance_chain
    require_match(MATERIALISED, found.digests, EXECUTED, executed)
    require_equal(
        "execution envelope: provenance_chain.manifest_digest",
        found.manifest_digest,
        chain.manifest_digest,
    )
    source = found.source
    require_equal(
        "execution envelope: provenance_chain.source_attestation_digest",
        None if source is None else format_digest(sha256(source.envelope)),
        chain.source_attestation_digest,
    )
    if source is not None:
        # A genuine statement about other data would make these look like its provider's.
        require_about(source.envelope, source.tile_set_digest, source.license)
    if documents.opening is not None:
        require_prompt(documents.opening.request, found.prompt)
