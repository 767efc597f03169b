"""Private key files (``tallystick.key/v1``), public ones (PEM), and the home's (docs/spec/keys.md).

The private format is ours because the core has one cryptographic library, PyNaCl, and needs one
algorithm: Argon2id and secretbox when a passphrase is asked, a clear seed otherwise.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from nacl.exceptions import CryptoError
from nacl.pwhash import argon2id
from nacl.secret import SecretBox

from tallystick.attest.keys import ALGORITHM, SEED_BYTES, PublicKey, SigningKey
from tallystick.attest.secretfiles import (
    already_there,
    create_file,
    parent_directory,
    private_directory,
    read_secret,
)
from tallystick.contracts.codec import decode_bytes, encode_bytes
from tallystick.contracts.layout import PRIVATE_MODE, PUBLIC_MODE
from tallystick.contracts.request import PRODUCER, Producer
from tallystick.contracts.types import Base64Text, Hex32, IntRange, OneOf
from tallystick.errors import EvidenceError, InputError
from tallystick.store.files import exists, read_given

KEY_SCHEMA: Final = "tallystick.key/v1"
MAX_KEY_FILE: Final = 64 * 1024
MAX_PASSPHRASE: Final = 1024
COMMIT_KEY_BYTES: Final = 32
_KDF: Final = "argon2id13"
# RFC 9106's second recommended setting: 3 passes over 64 MiB.
_OPSLIMIT: Final = 3
_MEMLIMIT: Final = 64 * 1024 * 1024
_MAX_OPSLIMIT: Final = 16
_MIN_MEMLIMIT: Final = 8 * 1024 * 1024
_MAX_MEMLIMIT: Final = 256 * 1024 * 1024
_PUBLIC_SUFFIX: Final = ".pub.pem"

PassphraseSource = Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class EncryptedSeed:
    """The seed in a secretbox (``box`` = nonce, then ciphertext) whose key Argon2id makes.

    ``memlimit`` is in bytes; both limits are bounded so that a hostile file exhausts nothing.
    """

    kdf: Annotated[str, OneOf((_KDF,))]
    opslimit: Annotated[int, IntRange(1, _MAX_OPSLIMIT)]
    memlimit: Annotated[int, IntRange(_MIN_MEMLIMIT, _MAX_MEMLIMIT)]
    salt: Annotated[str, Base64Text(24)]
    box: Annotated[str, Base64Text(96)]


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A private key on disk: exactly one of ``seed`` (base64, clear) and ``encrypted_seed``."""

    schema: Annotated[str, OneOf((KEY_SCHEMA,))]
    producer: Producer
    algorithm: Annotated[str, OneOf((ALGORITHM,))]
    public_key: Hex32
    seed: Annotated[str, Base64Text(44)] | None = field(repr=False)
    encrypted_seed: EncryptedSeed | None


@dataclass(frozen=True, slots=True)
class KeyDescription:
    """What may be shown about a private key file. ``public`` is as the file says, not proven."""

    public: PublicKey
    encrypted: bool


def write_key(path: Path, key: SigningKey, passphrase: bytes | None) -> None:
    """Write ``key`` to ``path`` (0600) and its public key beside it (:func:`public_key_path`).

    ``passphrase`` None leaves the seed in clear. Raises InputError when either file exists or the
    passphrase is empty or too long, UnavailableError when the place cannot be written.
    """
    data = _encode(key, passphrase)
    with parent_directory(path) as directory:
        _create_pair(directory, path, data, key.public)


def read_key(path: Path, passphrase_source: PassphraseSource) -> SigningKey:
    """Return the key in the file ``path``; ``passphrase_source`` is asked only when it is needed.

    Raises InputError when the file is unsafe (docs/spec/keys.md, "Files"), is no key file, or the
    passphrase does not open it.
    """
    return _open(path, read_secret(path, max_bytes=MAX_KEY_FILE), passphrase_source)


def describe_key(path: Path) -> KeyDescription:
    """Return what may be shown about the private key file ``path``. Raises InputError."""
    document = _parse(path, read_secret(path, max_bytes=MAX_KEY_FILE))
    return KeyDescription(
        PublicKey.from_hex(document.public_key), document.encrypted_seed is not None
    )


def default_key_path(home: Path) -> Path:
    """Return where the default signing key lives under ``home``."""
    return home / "keys" / "default.key"


def create_default_key(home: Path, passphrase: bytes | None) -> SigningKey:
    """Make the default key of ``home``. Raises InputError when there is one already."""
    path = default_key_path(home)
    key = SigningKey.generate()
    data = _encode(key, passphrase)
    with private_directory(path.parent) as directory:
        _create_pair(directory, path, data, key.public)
    return key


def default_key(
    home: Path, passphrase_source: PassphraseSource | None = None
) -> tuple[SigningKey, bool]:
    """Return the default signing key of ``home``, and whether it was created just now.

    Processes that come here at once end with one key. Raises InputError when the key file is bad
    or is encrypted and there is no ``passphrase_source``; UnavailableError when the directory
    cannot be used.
    """
    path = default_key_path(home)
    with private_directory(path.parent) as directory:
        created = not exists(directory, path.name)
        if created:
            key = SigningKey.generate()
            _create_pair(directory, path, _encode(key, None), key.public)
        data = read_secret(path, max_bytes=MAX_KEY_FILE, directory=directory)
    return _open(path, data, passphrase_source or _no_passphrase), created


def commit_key(home: Path) -> bytes:
    """Return the 32-byte local commit key of ``home``, created on first use.

    Raises InputError when its file is unsafe or has another length; UnavailableError when the
    directory cannot be used.
    """
    path = home / "keys" / "commit.key"
    with private_directory(path.parent) as directory:
        if not exists(directory, path.name):
            create_file(directory, path, os.urandom(COMMIT_KEY_BYTES), PRIVATE_MODE)
        data = read_secret(path, max_bytes=COMMIT_KEY_BYTES, directory=directory)
    if len(data) != COMMIT_KEY_BYTES:
        raise InputError(
            "the local commit key has the wrong length",
            expected=f"{COMMIT_KEY_BYTES} bytes",
            found=f"{path}: {len(data)} bytes",
            hint="restore it from a backup; without it a repeated request gets another core digest",
        )
    return data


def public_key_path(path: Path) -> Path:
    """Return the place of the public key of the private key file ``path``."""
    return path.with_name(path.name.removesuffix(".key") + _PUBLIC_SUFFIX)


def ensure_public_key(path: Path, public: PublicKey) -> Path:
    """Return the public key file of the private key file ``path``, written when it is missing.

    Raises InputError when it holds another key, UnavailableError when it cannot be written.
    """
    target = public_key_path(path)
    with parent_directory(target) as directory:
        if not exists(directory, target.name):
            create_file(directory, target, public.pem().encode("ascii"), PUBLIC_MODE)
    if read_public_key(target) != public:
        raise InputError(
            "the public key file beside the key holds another key",
            expected=public.key_id,
            found=str(target),
            hint="move that file away; it is written anew",
        )
    return target


def read_public_key(path: Path) -> PublicKey:
    """Return the key in a public key file (PEM). Raises InputError."""
    data = read_given(
        path,
        max_bytes=MAX_KEY_FILE,
        what="the public key file",
        hint="give the path of a .pub.pem file; `tallystick keys show` names that of your own key",
    )
    if data.startswith(b"{"):
        raise InputError(
            "this is not a public key file",
            expected="a PEM block 'PUBLIC KEY'",
            found=str(path),
            hint=f"a private key's public half is in the file that ends in {_PUBLIC_SUFFIX}",
        )
    return PublicKey.from_pem(data)


def _create_pair(directory: int, path: Path, data: bytes, public: PublicKey) -> None:
    target = public_key_path(path)
    # A public key left without its private one may still be needed to verify old receipts.
    for taken in (path, target):
        if exists(directory, taken.name):
            raise already_there(taken)
    create_file(directory, path, data, PRIVATE_MODE)
    create_file(directory, target, public.pem().encode("ascii"), PUBLIC_MODE)


def _encode(key: SigningKey, passphrase: bytes | None) -> bytes:
    seed = key.unsafe_seed()
    clear = base64.b64encode(seed).decode("ascii") if passphrase is None else None
    return encode_bytes(
        KeyFile(
            schema=KEY_SCHEMA,
            producer=PRODUCER,
            algorithm=ALGORITHM,
            public_key=key.public.raw.hex(),
            seed=clear,
            encrypted_seed=None if passphrase is None else _encrypt(seed, passphrase),
        )
    )


def _encrypt(seed: bytes, passphrase: bytes) -> EncryptedSeed:
    if not 1 <= len(passphrase) <= MAX_PASSPHRASE:
        raise InputError(
            "the passphrase has an unusable length",
            expected=f"1 to {MAX_PASSPHRASE} bytes",
            found=f"{len(passphrase)} bytes",
        )
    salt = os.urandom(argon2id.SALTBYTES)
    secret = argon2id.kdf(SecretBox.KEY_SIZE, passphrase, salt, _OPSLIMIT, _MEMLIMIT)
    return EncryptedSeed(
        kdf=_KDF,
        opslimit=_OPSLIMIT,
        memlimit=_MEMLIMIT,
        salt=base64.b64encode(salt).decode("ascii"),
        box=base64.b64encode(SecretBox(secret).encrypt(seed)).decode("ascii"),
    )


def _parse(path: Path, data: bytes) -> KeyFile:
    try:
        document = decode_bytes(KeyFile, data, max_bytes=MAX_KEY_FILE, where="key file")
    except EvidenceError as error:
        # The error names a field and never a value; the file's bytes stay out of it.
        raise InputError(
            error.message,
            expected=error.expected or f"a {KEY_SCHEMA} document",
            found=str(path),
            hint="give a file that `tallystick keys new` wrote",
        ) from None
    if (document.seed is None) == (document.encrypted_seed is None):
        raise _bad_secret(path)
    return document


def _open(path: Path, data: bytes, passphrase_source: PassphraseSource) -> SigningKey:
    document = _parse(path, data)
    if document.encrypted_seed is not None:
        seed = _decrypt(path, document.encrypted_seed, passphrase_source())
    else:
        seed = base64.b64decode(document.seed or "")
    if len(seed) != SEED_BYTES:
        raise _bad_secret(path)
    key = SigningKey.from_seed(seed)
    if key.public.raw.hex() != document.public_key:
        raise InputError(
            "the key file is damaged: its public key is not the secret's",
            found=str(path),
            hint="restore the file from a backup, or make a new key",
        )
    return key


def _decrypt(path: Path, encrypted: EncryptedSeed, passphrase: bytes) -> bytes:
    salt = base64.b64decode(encrypted.salt)
    if len(salt) != argon2id.SALTBYTES or not 1 <= len(passphrase) <= MAX_PASSPHRASE:
        raise _wrong_passphrase(path)
    secret = argon2id.kdf(
        SecretBox.KEY_SIZE, passphrase, salt, encrypted.opslimit, encrypted.memlimit
    )
    try:
        return SecretBox(secret).decrypt(base64.b64decode(encrypted.box))
    except (CryptoError, ValueError):
        raise _wrong_passphrase(path) from None


def _wrong_passphrase(path: Path) -> InputError:
    return InputError(
        "the passphrase does not open the key, or the key file is damaged", found=str(path)
    )


def _bad_secret(path: Path) -> InputError:
    return InputError(
        "the key file does not hold exactly one 32-byte secret",
        expected="a seed in clear or an encrypted one",
        found=str(path),
        hint="restore the file from a backup, or make a new key",
    )


def _no_passphrase() -> bytes:
    raise InputError(
        "the default signing key is encrypted and no passphrase was given",
        hint="give its passphrase, or another key",
    )
