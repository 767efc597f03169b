"""The key that signs a run, and what may be shown of a key."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tallystick.attest.auditkeys import lies_in
from tallystick.attest.keyfiles import (
    PassphraseSource,
    default_key,
    default_key_path,
    describe_key,
    ensure_public_key,
    public_key_path,
    read_key,
)
from tallystick.attest.keys import PublicKey, SigningKey
from tallystick.attest.secretfiles import already_there
from tallystick.errors import InputError
from tallystick.store.home import home as default_home


@dataclass(frozen=True, slots=True)
class SignerChoice:
    """Which key signs: a key file, or (None) the default key, made on first use."""

    path: Path | None = None
    passphrase: PassphraseSource | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ShownKey:
    """What may be shown of a private key. ``public`` is as the file says, not proven.

    ``public_key_file`` (PEM) holds the same public key, and may be handed out.
    """

    public: PublicKey
    public_key_file: Path
    encrypted: bool


def show_key(path: Path | None = None, *, home: Path | None = None) -> ShownKey:
    """Return the public half of the key file ``path``; None: the default key of ``home``.

    Its public key file is written when it is missing (docs/spec/keys.md). Raises InputError when
    there is no usable key or that file holds another one, UnavailableError when it cannot be
    written.
    """
    file = path or default_key_path(home or default_home())
    key = describe_key(file)
    return ShownKey(key.public, ensure_public_key(file, key.public), key.encrypted)


def existing_key(choice: SignerChoice, home: Path) -> SigningKey | None:
    """Return the key that ``choice`` names, None when it is a default key yet to be made.

    Raises InputError when the key file is bad, its passphrase is missing or wrong, when there is
    a passphrase and no key (one made on first use would not be encrypted), or when a public key
    file without its private one is in the way.
    """
    if choice.path is not None:
        return read_key(choice.path, choice.passphrase or _refuse_passphrase)
    path = default_key_path(home)
    if path.exists() or path.is_symlink():  # a dangling link is refused as a bad key file
        return default_key(home, choice.passphrase)[0]
    if choice.passphrase is not None:
        raise InputError(
            "there is no signing key yet that a passphrase could open",
            expected="an existing key",
            found=str(path),
            hint="make one with `tallystick keys new`, or give no passphrase",
        )
    if (left := public_key_path(path)).exists():
        raise already_there(left)  # no key can be made beside it: better said before the run
    return None


def require_apart(home: Path, output: Path) -> None:
    """Refuse an output directory that is, holds or lies in the data folder, but for its receipts.

    There keys, and what else is made on first use, would be handed out, copied and deleted with
    the output, or get in its way. Nothing has to exist. Raises InputError.
    """
    if lies_in(home, output):
        raise InputError(
            "the data folder, which has the keys, lies inside the output directory",
            expected="an output directory that can be handed out",
            found=str(output),
            hint="choose another output directory",
        )
    if lies_in(output, home) and not lies_in(output, home / "receipts"):
        raise InputError(
            "the output directory lies inside the data folder, which has the keys",
            expected=f"a place outside {home}, or in its receipts",
            found=str(output),
            hint="choose another output directory",
        )


def _refuse_passphrase() -> bytes:
    raise InputError(
        "the signing key is encrypted and no passphrase was given",
        hint="give its passphrase, or another key",
    )
