"""Source attestations: who handed over which files; every field changed alone is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tallystick.attest import dsse
from tallystick.attest.source import (
    SourceClaim,
    check_source,
    read_source_statement,
    require_about,
    sign_source,
)
from tallystick.canonical.json import jcs, parse_strict
from tallystick.contracts.dataset import tile_set_digest
from tallystick.contracts.source import SourceFile
from tallystick.errors import EvidenceError, InputError
from tests.support.sets import SIGNER, STRANGER

FILES = tuple(
    SourceFile(f"data/{name}", hash_ * 64, size)
    for name, hash_, size in (("a.png", "a", 3), ("b/1.png", "b", 0), ("b/2.png", "c", 2**40))
)
DIGEST = tile_set_digest((file.path, file.size, file.sha256) for file in FILES)
CLAIM = SourceClaim(DIGEST, "CC0-1.0", "drawn in 2026", 3)
ENVELOPE = sign_source(FILES, "CC0-1.0", "drawn in 2026", SIGNER)
PAYLOAD: Any = parse_strict(dsse.unsafe_payload(ENVELOPE), max_bytes=1 << 20)


def test_an_attestation_says_what_was_signed() -> None:
    assert b"\n" not in ENVELOPE
    link = check_source(ENVELOPE, [STRANGER.public, SIGNER.public])
    assert (link.claim, link.signers) == (CLAIM, (SIGNER.public,))
    assert check_source(ENVELOPE, [STRANGER.public]).signers == ()
    assert require_about(ENVELOPE, DIGEST, "CC0-1.0") == CLAIM


def test_another_tile_set_or_licence_is_refused() -> None:
    with pytest.raises(EvidenceError, match="another tile set"):
        require_about(ENVELOPE, tile_set_digest([]), "CC0-1.0")
    with pytest.raises(EvidenceError, match="another licence"):
        require_about(ENVELOPE, DIGEST, "CC-BY-4.0")


def test_a_signature_that_names_a_trusted_key_has_to_hold() -> None:
    edited = copy.deepcopy(PAYLOAD)
    edited["predicate"]["license"] = "CC-BY-4.0"
    document: Any = parse_strict(ENVELOPE, max_bytes=1 << 20)
    forged: Any = parse_strict(
        dsse.sign(jcs(edited), dsse.PAYLOAD_TYPE, [STRANGER]), max_bytes=1 << 20
    )
    forged["signatures"] = document["signatures"]
    with pytest.raises(EvidenceError, match="does not hold"):
        check_source(jcs(forged), [SIGNER.public])
    assert check_source(jcs(forged), [STRANGER.public]).signers == ()


EDITS: dict[str, Callable[[Any], None]] = {
    "type": lambda s: s.update(_type="other"),
    "predicate type": lambda s: s.update(predicateType="https://slsa.dev/provenance/v1"),
    "subject": lambda s: s["subject"][0]["digest"].update(tallystickTileSet="00" * 32),
    "subject's name": lambda s: s["subject"][0].update(name="other"),
    "no subject": lambda s: s.update(subject=[]),
    "two subjects": lambda s: s["subject"].append(s["subject"][0]),
    "another digest beside it": lambda s: s["subject"][0]["digest"].update(sha256="00" * 32),
    "a file's size": lambda s: s["predicate"]["digests"][0].update(size="4"),
    "a file's hash": lambda s: s["predicate"]["digests"][0].update(sha256="0" * 64),
    "a file's path": lambda s: s["predicate"]["digests"][0].update(path="data/A.png"),
    "a file of the task": lambda s: s["predicate"]["digests"][0].update(path="a.png"),
    "order": lambda s: s["predicate"]["digests"].reverse(),
    "a file twice": lambda s: s["predicate"]["digests"].append(s["predicate"]["digests"][-1]),
    "no files": lambda s: s["predicate"].update(digests=[]),
    "an unknown field": lambda s: s["predicate"].update(more=1),
    "no licence": lambda s: s["predicate"].pop("license"),
    "a number": lambda s: s["predicate"].update(acquisition=1),
    "no predicate": lambda s: s.pop("predicate"),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_statement_that_contradicts_itself_is_refused(edit: Callable[[Any], None]) -> None:
    statement = copy.deepcopy(PAYLOAD)
    edit(statement)
    with pytest.raises(EvidenceError):
        read_source_statement(jcs(statement))
    with pytest.raises(EvidenceError):
        read_source_statement(b" " + jcs(PAYLOAD))


def test_a_long_list_is_left_out_and_the_subject_stays() -> None:
    many = tuple(SourceFile(f"data/{number:06}.png", "d" * 64, 1) for number in range(5000))
    envelope = sign_source(many, "CC0-1.0", "", SIGNER)
    claim = check_source(envelope, [SIGNER.public]).claim
    assert claim.listed is None
    assert claim.tile_set_digest == tile_set_digest((f.path, f.size, f.sha256) for f in many)


@pytest.mark.parametrize(("license_text", "text"), [("x" * 201, ""), ("CC0-1.0", "x" * 1001)])
def test_texts_have_bounds(license_text: str, text: str) -> None:
    with pytest.raises(InputError):
        sign_source(FILES, license_text, text, SIGNER)
    with pytest.raises(InputError):
        sign_source(FILES[::-1], "CC0-1.0", "", SIGNER)


@pytest.mark.parametrize("text", ["", " ", "CC0\n", "CC0\udcff"])
def test_a_licence_is_a_line_of_text(text: str) -> None:
    with pytest.raises(InputError, match="licence"):
        sign_source(FILES, text, "drawn", SIGNER)
    with pytest.raises(InputError, match="acquisition is not valid Unicode"):
        sign_source(FILES, "CC0-1.0", "\udcff", SIGNER)
