"""The source link: a provider's statement about a tile set (docs/spec/attestations.md). Pure.

Whoever hands tiles over signs the digest of exactly these files. Nobody downstream can say that in
his place, so what a set carries is the provider's own envelope, byte for byte.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

from tallystick.attest import dsse
from tallystick.attest.keys import PublicKey, SigningKey
from tallystick.canonical.hashing import parse_digest
from tallystick.canonical.json import JSONValue, jcs, parse_canonical
from tallystick.contracts.codec import decode, encode
from tallystick.contracts.dataset import DATA, tile_set_digest
from tallystick.contracts.source import MAX_LISTED, SourceFile, SourcePredicate
from tallystick.errors import EvidenceError, InputError

SOURCE_TYPE: Final = "tag:tallystick,2026:source/v1"
TILE_SET_DIGEST_NAME: Final = "tallystickTileSet"
SUBJECT: Final = "tile-set"
MAX_SOURCE_STATEMENT: Final = 512 * 1024
# Beyond this the list of files is left out: with it in base64 the envelope would not fit a set.
_MAX_WITH_LIST: Final = 384 * 1024


@dataclass(frozen=True, slots=True)
class SourceClaim:
    """What a source statement says: of which tile set, on what terms, how it was acquired.

    ``listed`` is the number of files that it names one by one, None when it names none.
    """

    tile_set_digest: str
    license: str
    acquisition: str
    listed: int | None


@dataclass(frozen=True, slots=True)
class SourceLink:
    """A claim, and the trusted keys whose signatures over it hold: none, perhaps."""

    claim: SourceClaim
    signers: tuple[PublicKey, ...]


def sign_source(
    files: Sequence[SourceFile], license_text: str, acquisition: str, key: SigningKey
) -> bytes:
    """Return the envelope in which ``key`` attests to ``files``: one line, without a newline.

    ``files`` are all files of the tile set, in ascending order of their paths. Raises InputError
    for texts or files that no statement has.
    """
    _require_texts(license_text, acquisition)
    digest = _digest_of(files)
    listed = tuple(files) if len(files) <= MAX_LISTED else None
    try:
        payload = _payload(digest, SourcePredicate(license_text, acquisition, listed))
        if len(payload) > _MAX_WITH_LIST:
            payload = _payload(digest, SourcePredicate(license_text, acquisition, None))
        read_source_statement(payload)
    except EvidenceError as error:
        raise InputError.of(error) from None
    return dsse.sign(payload, dsse.PAYLOAD_TYPE, [key])


def read_source_statement(payload: bytes) -> SourceClaim:
    """Return what the statement ``payload`` says, once it agrees with itself.

    Raises EvidenceError when it is another kind of statement, is not canonical, or lists files
    that do not give the digest of its subject.
    """
    found = parse_canonical(payload, max_bytes=MAX_SOURCE_STATEMENT)
    try:
        statement = cast(dict[str, JSONValue], found)
        (subject,) = cast(list[dict[str, dict[str, str]]], statement["subject"])
        digest = f"sha256:{subject['digest'][TILE_SET_DIGEST_NAME]}"
        parse_digest(digest)
        document = statement["predicate"]
    except (KeyError, TypeError, ValueError, EvidenceError, InputError):
        raise _refusal("not a statement about a tile set", expected=SOURCE_TYPE) from None
    predicate = decode(SourcePredicate, document, where="source statement: predicate")
    if found != _statement(digest, predicate):
        raise _refusal("not a statement about a tile set", expected=SOURCE_TYPE)
    listed = predicate.digests
    if listed is not None:
        _check_listed(listed, digest)
    return SourceClaim(
        digest, predicate.license, predicate.acquisition, None if listed is None else len(listed)
    )


def check_source(envelope: bytes, keys: Sequence[PublicKey]) -> SourceLink:
    """Return what ``envelope`` says, and which of ``keys`` signed it.

    No signer is no error: the envelope may be by a provider whom the caller does not know. But a
    signature that names one of ``keys`` has to hold. Raises EvidenceError for that, and for what is
    no envelope around a sound source statement.
    """
    verified = dsse.verified_by(envelope, payload_type=dsse.PAYLOAD_TYPE, keys=keys)
    claim = read_source_statement(verified.payload)
    named = dsse.named_keys(envelope)
    for key in keys:
        if key.key_id in named and key not in verified.signers:
            raise _refusal("the signature does not hold", expected=f"a signature by {key.key_id}")
    return SourceLink(claim, verified.signers)


def require_about(envelope: bytes, tile_set: str, license_text: str) -> SourceClaim:
    """Return what ``envelope`` says of a bundle's tile set; its signature is not looked at.

    Raises EvidenceError when it is about another tile set, or states another licence.
    """
    claim = read_source_statement(dsse.unsafe_payload(envelope))
    require_tile_set(claim, tile_set)
    if claim.license != license_text:
        raise _refusal(
            "the bundle states another licence than the provider",
            expected=ascii(claim.license),
            found=ascii(license_text),
        )
    return claim


def require_tile_set(claim: SourceClaim, tile_set: str) -> None:
    """Raise EvidenceError unless the claim is about the tile set with this digest."""
    if claim.tile_set_digest != tile_set:
        raise _refusal(
            "it is about another tile set", expected=claim.tile_set_digest, found=tile_set
        )


def _check_listed(files: Sequence[SourceFile], digest: str) -> None:
    paths = [file.path.encode("utf-8") for file in files]
    if not paths or any(one >= other for one, other in itertools.pairwise(paths)):
        raise _refusal("the list of files is not in order", expected="ascending paths, each once")
    if any(not file.path.startswith(DATA) for file in files):
        raise _refusal("a listed file is not of the data", expected=f"paths under {DATA}")
    if _digest_of(files) != digest:
        raise _refusal(
            "the listed files are not the tile set of its subject",
            expected=digest,
            found=_digest_of(files),
        )


def _require_texts(license_text: str, acquisition: str) -> None:
    if not license_text.strip() or not license_text.isprintable():
        raise InputError(
            "the licence cannot be stated",
            expected="a line of printable text",
            found=ascii(license_text[:80]),
        )
    if not acquisition.isascii() and any("\ud800" <= sign <= "\udfff" for sign in acquisition):
        raise InputError("the acquisition is not valid Unicode", expected="UTF-8 text")


def _digest_of(files: Sequence[SourceFile]) -> str:
    return tile_set_digest((file.path, file.size, file.sha256) for file in files)


def _payload(digest: str, predicate: SourcePredicate) -> bytes:
    return jcs(_statement(digest, predicate))


def _statement(digest: str, predicate: SourcePredicate) -> JSONValue:
    return {
        "_type": dsse.STATEMENT_TYPE,
        "subject": [
            {"name": SUBJECT, "digest": {TILE_SET_DIGEST_NAME: parse_digest(digest).hex()}}
        ],
        "predicateType": SOURCE_TYPE,
        "predicate": encode(predicate),
    }


def _refusal(
    message: str, *, expected: str | None = None, found: str | None = None
) -> EvidenceError:
    return EvidenceError(f"source attestation: {message}", expected=expected, found=found)
