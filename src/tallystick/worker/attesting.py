"""Signing and checking the attestation of a tile set (docs/spec/attestations.md)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tallystick.attest.keyfiles import default_key
from tallystick.attest.source import SourceClaim, check_source, require_about, sign_source
from tallystick.attest.trust import TrustPolicy
from tallystick.bundles.check import CheckedBundle
from tallystick.bundles.tileset import read_tile_set
from tallystick.canonical.hashing import format_digest, sha256
from tallystick.contracts.dataset import MAX_SOURCE_ENVELOPE
from tallystick.contracts.layout import PUBLIC_MODE
from tallystick.errors import EvidenceError, InputError, NoTrustError
from tallystick.receipts.build_parts import timestamp
from tallystick.store.files import exists, opened_directory, read_given, write_new
from tallystick.store.home import home as default_home
from tallystick.store.home import unavailable
from tallystick.worker.keys import SignerChoice, existing_key


@dataclass(frozen=True, slots=True)
class AttestedSource:
    """A source attestation: what it says, who signed it, the sha256 by which a set names it.

    ``default_key_created`` says that the signing key was made on the occasion.
    """

    claim: SourceClaim
    digest: str
    signers: tuple[str, ...]
    default_key_created: bool = False


def attest_source(
    source: Path,
    *,
    license_text: str,
    acquisition: str,
    output: Path,
    signer: SignerChoice | None = None,
    home: Path | None = None,
) -> AttestedSource:
    """Sign what lies under ``source``/data now, and write the envelope to the new file ``output``.

    ``output`` may be a new file under that data/: an attestation is no part of what it is about.
    Raises InputError for what is no tile set or an ``output`` that exists, UnavailableError.
    """
    where = home or default_home()
    files = read_tile_set(source)
    try:
        with opened_directory(output.parent) as descriptor:
            if exists(descriptor, output.name):
                raise InputError(f"{output} exists already", hint="nothing is ever overwritten")
            # Made, if there is none, when nothing else is known to be in the way.
            known = existing_key(signer or SignerChoice(), where)
            key, created = (known, False) if known else default_key(where)
            envelope = sign_source(files, license_text, acquisition, key)
            write_new(descriptor, output.name, envelope, PUBLIC_MODE)
    except OSError as error:
        raise unavailable(output, error) from error
    claim = check_source(envelope, [key.public]).claim
    return AttestedSource(claim, format_digest(sha256(envelope)), (key.public.key_id,), created)


def verify_source(
    path: Path,
    trust: TrustPolicy,
    *,
    bundle: CheckedBundle | None = None,
    now: datetime | None = None,
) -> AttestedSource:
    """Return what the attestation in the file ``path`` says, signed by a key of ``trust``.

    With ``bundle`` it has to be about that bundle's tile set and to state its licence. ``now``
    (aware) None is the current time, at which the key has to be valid. Raises InputError for a file
    that cannot be read, NoTrustError when no key is trusted for the source link, EvidenceError.
    """
    envelope = read_given(path, max_bytes=MAX_SOURCE_ENVELOPE, what="the source attestation")
    keys = trust.source_keys()
    if not keys:
        raise NoTrustError("the trust policy has no key for the source link")
    if b"\n" in envelope:
        raise EvidenceError(
            "source attestation: not in the form that a bundle carries",
            expected="one line without a newline",
            found=f"{envelope.count(10)} newlines in {len(envelope)} bytes",
        )
    link = check_source(envelope, keys)
    if not link.signers:
        raise EvidenceError(
            "source attestation: no trusted key signed it",
            expected=f"a signature by one of {len(keys)} trusted keys",
        )
    moment = datetime.now(UTC) if now is None else now
    trust.accept_source(
        link.signers, timestamp(int(moment.timestamp() * 1000) * 1_000_000), now=moment
    )
    if bundle is not None:
        imagery = bundle.manifest.imagery
        stated = link.claim.license if imagery is None else imagery.license
        require_about(envelope, bundle.tile_set_digest, stated)
    signers = tuple(signer.key_id for signer in link.signers)
    return AttestedSource(link.claim, format_digest(sha256(envelope)), signers)
