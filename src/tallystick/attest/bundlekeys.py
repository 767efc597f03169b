"""The keys that seal and open verification bundles (docs/spec/bundle.md). Pure: no files.

An audit key belongs to the owner of the bundles. It encrypts nothing itself: each bundle has a key
of its own, derived from it, which can be handed out without opening any other bundle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final, NoReturn

from tallystick.canonical.hashing import domain_hash
from tallystick.errors import InputError

SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True, repr=False)
class SecretKey:
    """32 secret bytes. It shows none of them, and can be neither pickled nor copied.

    Raises InputError for another length, and for zeros.
    """

    kind: ClassVar[str] = "secret key"
    raw: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.raw) != SECRET_BYTES:
            raise InputError(
                f"the {self.kind} has the wrong length",
                expected=f"exactly {SECRET_BYTES} raw bytes",
                found=f"{len(self.raw)} bytes",
            )
        if not any(self.raw):
            raise InputError(
                f"the {self.kind} is all zeros",
                expected=f"{SECRET_BYTES} bytes from a random source",
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key cannot be pickled or copied")


@dataclass(frozen=True, slots=True, repr=False)
class AuditKey(SecretKey):
    """The owner's key: it opens every bundle that was sealed with it."""

    kind: ClassVar[str] = "audit key"


@dataclass(frozen=True, slots=True, repr=False)
class BundleKey(SecretKey):
    """The key of one bundle: it opens that bundle and no other.

    Who holds it could also seal another private part under the same header.
    """

    kind: ClassVar[str] = "bundle key"


def derive_bundle_key(key: AuditKey, *, salt: bytes, receipt_binding: bytes) -> BundleKey:
    """Return the key of the one bundle with this salt and receipt binding, 32 bytes each."""
    return BundleKey(domain_hash("palw.bundle-key", 1, [key.raw, salt, receipt_binding]))


def key_commitment(key: BundleKey, salt: bytes) -> bytes:
    """Return the 32 bytes in a bundle's header that tell the right key from another one."""
    return domain_hash("palw.bundle-key-commitment", 1, [key.raw, salt])
