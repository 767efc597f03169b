"""Trust policies: which key may sign which link, when, and how (docs/spec/trust-policy.md). Pure.

There is no default trust: a policy is given as a document or made from the keys the user names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Final

from tallystick.attest.keys import PublicKey
from tallystick.canonical.json import parse_strict
from tallystick.contracts.codec import decode
from tallystick.contracts.receipt import Receipt
from tallystick.contracts.request import Enforcement
from tallystick.contracts.types import Digest, Hex32, MaxLength, OneOf, ShortText, Timestamp
from tallystick.errors import EvidenceError, InputError, NoTrustError

POLICY_SCHEMA: Final = "tallystick.trust-policy/v1"
MAX_POLICY_BYTES: Final = 256 * 1024
SOURCE: Final = "source"
EXECUTION: Final = "execution"
LINKS: Final = (SOURCE, EXECUTION, "acceptance")
ENFORCEMENT_ORDER: Final = ("none", "process", "namespaces", "full")
# How far a worker's clock may run ahead of the verifier's.
CLOCK_SKEW: Final = timedelta(seconds=60)

Link = Annotated[str, OneOf(LINKS)]


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """One key and what it is trusted for.

    The key is valid from ``valid_from`` (included) to ``valid_to`` (excluded: the moment of its
    retirement); null means no limit. ``engine_libraries`` lists the allowed engine builds by the
    digest of their library, null allows any.
    """

    name: ShortText
    public_key: Hex32
    links: Annotated[tuple[Link, ...], MaxLength(len(LINKS))]
    valid_from: Timestamp | None
    valid_to: Timestamp | None
    minimum_enforcement: Enforcement
    engine_libraries: Annotated[tuple[Digest, ...], MaxLength(64)] | None

    @property
    def public(self) -> PublicKey:
        """The key itself. Raises InputError when it is weak or malformed."""
        return PublicKey.from_hex(self.public_key)


@dataclass(frozen=True, slots=True)
class TrustPolicy:
    """The keys a verifier trusts, each at most once."""

    schema: Annotated[str, OneOf((POLICY_SCHEMA,))]
    keys: Annotated[tuple[TrustedKey, ...], MaxLength(256)]

    @classmethod
    def parse(cls, data: bytes) -> TrustPolicy:
        """Return the policy in ``data``: strict JSON, every field present, any layout.

        Raises InputError that names the field that is wrong.
        """
        try:
            policy = decode(
                cls, parse_strict(data, max_bytes=MAX_POLICY_BYTES), where="trust policy"
            )
        except EvidenceError as error:
            raise InputError.of(error) from None
        _check_policy(policy)
        return policy

    @classmethod
    def for_keys(cls, keys: Sequence[PublicKey]) -> TrustPolicy:
        """Return the policy of ``--key``: these keys, any link, any time, any engine.

        Raises NoTrustError without keys.
        """
        if not keys:
            raise NoTrustError(
                "no trusted key was given",
                expected="a trust policy or at least one public key",
                hint="`tallystick keys show` names the public key file of your own key",
            )
        return cls(
            POLICY_SCHEMA,
            tuple(
                TrustedKey(key.key_id, key.raw.hex(), LINKS, None, None, "none", None)
                for key in dict.fromkeys(keys)
            ),
        )

    def execution_keys(self) -> tuple[PublicKey, ...]:
        """Return the keys that may sign the execution link, whenever they are valid."""
        return tuple(key.public for key in self.keys if EXECUTION in key.links)

    def source_keys(self) -> tuple[PublicKey, ...]:
        """Return the keys that may sign the source link, whenever they are valid."""
        return tuple(key.public for key in self.keys if SOURCE in key.links)

    def accept_source(
        self, signers: Sequence[PublicKey], end_time: str, *, now: datetime
    ) -> TrustedKey:
        """Return the trusted key by whose authority a source link is accepted.

        ``signers`` are keys whose signatures hold; ``end_time`` is that of the run which the
        attestation was there for. Raises EvidenceError when none is valid, as for execution.
        """
        return self._accept(SOURCE, signers, lambda key: _check_window(key, end_time, now, None))

    def accept_execution(
        self,
        signers: Sequence[PublicKey],
        receipt: Receipt,
        *,
        now: datetime,
        anchored: datetime | None = None,
    ) -> TrustedKey:
        """Return the trusted key by whose authority the execution link of ``receipt`` is accepted.

        ``signers`` are keys whose signatures hold, ``now`` is the time of verification and
        ``anchored`` a time by which an independent party had seen the receipt (None: nobody);
        both are aware. Raises EvidenceError with the first signer's reason when none is accepted.
        """

        def check(key: TrustedKey) -> None:
            _check_limits(key, receipt)
            _check_window(key, receipt.observed.end_time, now, anchored)

        return self._accept(EXECUTION, signers, check)

    def _accept(
        self, link: str, signers: Sequence[PublicKey], check: Callable[[TrustedKey], None]
    ) -> TrustedKey:
        """Return the first key for ``link`` that signed and passes ``check``."""
        refusal: EvidenceError | None = None
        signed = {signer.raw.hex() for signer in signers}
        keys = [key for key in self.keys if link in key.links]
        for key in keys:
            if key.public_key not in signed:
                continue
            try:
                check(key)
            except EvidenceError as error:
                refusal = refusal or error
                continue
            return key
        raise refusal or EvidenceError(
            f"no trusted key signed the {link} link",
            expected=f"a signature by one of {len(keys)} trusted keys",
            found=f"{len(signers)} other signers",
        )


def _check_limits(key: TrustedKey, receipt: Receipt) -> None:
    level = receipt.observed.enforcement_level
    if ENFORCEMENT_ORDER.index(level) < ENFORCEMENT_ORDER.index(key.minimum_enforcement):
        raise EvidenceError(
            "the sandbox enforcement is below what the trust policy asks",
            expected=f"{key.minimum_enforcement} or stronger, for the key {key.name!r}",
            found=level,
        )
    library = receipt.core.engine.library
    if key.engine_libraries is not None and library not in key.engine_libraries:
        raise EvidenceError(
            "the trust policy does not allow this engine build",
            expected=f"one of {len(key.engine_libraries)} libraries, for the key {key.name!r}",
            found=library,
        )


def _check_window(key: TrustedKey, end_time: str, now: datetime, anchored: datetime | None) -> None:
    if key.valid_from is None and key.valid_to is None:
        return  # no window, no clock
    claimed = _time(end_time)
    seen = now if anchored is None else min(now, anchored)
    if claimed > seen + CLOCK_SKEW:
        raise EvidenceError(
            "the receipt claims a time that has not come yet",
            expected=f"at most {CLOCK_SKEW.seconds} s after it was seen at {seen.isoformat()}",
            found=end_time,
            hint="check the clock of this machine",
        )
    _check_within(key, claimed, "the key was not valid at the claimed time", end_time)
    if anchored is not None:
        _check_within(key, anchored, "the key was not valid at the anchored time", None)
    elif key.valid_to is not None and now >= _time(key.valid_to):
        raise EvidenceError(
            "time claimed, not anchored",
            expected=f"a key that is still valid; {key.name!r} was retired at {key.valid_to}",
            found=f"only the signer itself says that it signed at {end_time}",
            hint="a retired key can claim any time: ask for a receipt signed by a valid key",
        )


def _check_within(key: TrustedKey, moment: datetime, message: str, claimed: str | None) -> None:
    early = key.valid_from is not None and moment < _time(key.valid_from)
    late = key.valid_to is not None and moment >= _time(key.valid_to)
    if early or late:
        raise EvidenceError(
            message,
            expected=f"from {key.valid_from or 'any time'} to {key.valid_to or 'any time'}"
            f" for the key {key.name!r}",
            found=claimed or moment.isoformat(),
        )


def _check_policy(policy: TrustPolicy) -> None:
    if not policy.keys:
        raise NoTrustError("the trust policy names no key", expected="at least one key")
    seen: set[str] = set()
    for index, key in enumerate(policy.keys):
        where = f"trust policy: keys[{index}]"
        if key.public_key in seen:
            raise InputError(f"{where}: the same key twice", expected="each key once")
        seen.add(key.public_key)
        _check_key(key, where)


def _check_key(key: TrustedKey, where: str) -> None:
    try:
        _ = key.public
    except InputError as error:
        raise InputError(
            f"{where}.public_key: {error.message}", expected=error.expected, hint=error.hint
        ) from None
    if not key.links or len(set(key.links)) != len(key.links):
        raise InputError(f"{where}.links", expected="one or more links, each once")
    if key.engine_libraries == ():
        raise InputError(f"{where}.engine_libraries", expected="null (any), or at least one digest")
    start, end = key.valid_from, key.valid_to
    if start is not None and end is not None and _time(start) >= _time(end):
        raise InputError(f"{where}: the window is empty", expected="valid_from before valid_to")


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)  # the codec has checked the form
