"""``tallystick attest``: who handed over which data (docs/spec/attestations.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli.options import PATH, json_option, key_option, trust_policy_option
from tallystick.cli.output import emit, note, note_new_key, printable, table
from tallystick.cli.passphrase import passphrase_options, passphrase_source

if TYPE_CHECKING:
    from tallystick.canonical.json import JSONValue
    from tallystick.worker.attesting import AttestedSource


@click.group()
def command() -> None:
    """Attest where data is from, and check such attestations.

    The provider of a tile set signs what exactly was handed over. Nobody after him can say that: a
    worker can only hash what arrived.
    """


@command.command()
@click.argument("directory", type=PATH, metavar="SRC")
@click.option(
    "--license",
    "license_text",
    required=True,
    metavar="TEXT",
    help="On what terms the data may be used; that of bundle.yaml has to be the same.",
)
@click.option(
    "--acquisition",
    required=True,
    metavar="TEXT",
    help="How and when the data came to be.",
)
@click.option(
    "--output",
    type=PATH,
    required=True,
    metavar="FILE",
    help="New file for the attestation, outside of SRC/data or in it.",
)
@click.option(
    "--key", "key_file", type=PATH, metavar="FILE", help="Private key that signs. Default: yours."
)
@passphrase_options
@json_option
def source(
    directory: Path,
    license_text: str,
    acquisition: str,
    output: Path,
    key_file: Path | None,
    passphrase_prompt: bool,
    passphrase_file: Path | None,
    as_json: bool,
) -> None:
    """Sign the files under SRC/data, each by its path, size and sha256.

    A bundle carries the attestation as a file under data/ that imagery.source_attestation of
    bundle.yaml names.

    Exit status: 0, 4 SRC/data is no tile set or the key is no good, 6 the place cannot be written.
    """
    from tallystick.worker.attesting import attest_source
    from tallystick.worker.keys import SignerChoice

    made = attest_source(
        directory,
        license_text=license_text,
        acquisition=acquisition,
        output=output,
        signer=SignerChoice(
            key_file, passphrase_source(prompt=passphrase_prompt, file=passphrase_file)
        ),
    )
    if made.default_key_created:
        note_new_key(made.signers[0])
    note(f"created {output}")
    emit(_document(made, output), as_json=as_json, lines=_words(made, output))


@command.command()
@click.argument("file", type=PATH, metavar="FILE")
@key_option
@trust_policy_option
@click.option(
    "--bundle-dir",
    type=PATH,
    metavar="DIR",
    help="Dataset bundle whose tile set it has to be about; checked first.",
)
@json_option
def verify(
    file: Path,
    key: Sequence[Path],
    trust_policy: Path | None,
    bundle_dir: Path | None,
    as_json: bool,
) -> None:
    """Check the source attestation in FILE.

    Its signature, its digests, and with --bundle-dir that it is about that tile set.

    Exit status: 0 a trusted key signed it and it agrees with itself (and the bundle), 1 it does not
    hold, 4 no trust was given or there is nothing to read.
    """
    from tallystick.bundles.check import check_bundle
    from tallystick.receipts.files import load_trust
    from tallystick.worker.attesting import verify_source

    trust = load_trust(key, trust_policy)
    bundle = None if bundle_dir is None else check_bundle(bundle_dir)
    found = verify_source(file, trust, bundle=bundle)
    compared = "not compared with data: give --bundle-dir" if bundle is None else "that bundle's"
    emit(
        {**_document(found, file), "status": "verified", "bundle": bundle is not None},
        as_json=as_json,
        lines=[*_words(found, file), *table([("tiles", compared)])],
    )


def _document(attested: AttestedSource, file: Path) -> dict[str, JSONValue]:
    return {
        "file": printable(str(file)),
        "digest": attested.digest,
        "tile_set_digest": attested.claim.tile_set_digest,
        "license": attested.claim.license,
        "acquisition": attested.claim.acquisition,
        "listed_files": attested.claim.listed,
        "signers": list(attested.signers),
    }


def _words(attested: AttestedSource, file: Path) -> list[str]:
    claim = attested.claim
    listed = "none: only the digest of all" if claim.listed is None else str(claim.listed)
    return table(
        [
            ("attestation", printable(str(file))),
            ("digest", attested.digest),
            ("tile set digest", claim.tile_set_digest),
            ("licence", printable(claim.license)),
            ("acquisition", printable(claim.acquisition)),
            ("listed files", listed),
            ("signed by", ", ".join(attested.signers)),
        ]
    )
