"""How a person names a job: by its id, by the run's id, or by the first digits of its id."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tallystick.errors import InputError
from tallystick.queues.port import SHORTEST_PREFIX

_DIGITS: Final = re.compile(rf"(?:sha256:)?([0-9a-f]{{{SHORTEST_PREFIX},64}})")
_RUN_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DIGEST_DIGITS: Final = 64


@dataclass(frozen=True, slots=True)
class Name:
    """Either the run_id of the job that is meant, or the first hex digits of its job_id."""

    run_id: str | None = None
    digits: str = ""

    def shown(self) -> str:
        """Return the name for an error text."""
        return self.digits if self.run_id is None else self.run_id

    @property
    def first(self) -> bytes:
        """The smallest digest that begins so."""
        return bytes.fromhex(self.digits.ljust(_DIGEST_DIGITS, "0"))

    @property
    def last(self) -> bytes:
        """The largest digest that begins so."""
        return bytes.fromhex(self.digits.ljust(_DIGEST_DIGITS, "f"))


def parse_name(text: str) -> Name:
    """Return what ``text`` names. Raises InputError when it names nothing."""
    lowered = text.lower()
    if _RUN_ID.fullmatch(lowered):
        return Name(run_id=lowered)
    match = _DIGITS.fullmatch(lowered)
    if match is None:
        raise InputError(
            "not the name of a job",
            expected=f"a job_id, a run_id, or the first {SHORTEST_PREFIX} or more digits of a "
            "job_id",
            found=ascii(text[:80]),
            hint="tallystick runs ls shows the jobs",
        )
    return Name(digits=match.group(1))
