"""Every error the project raises: one root, one file.

Each error says what was expected, what was found, and what the user can do,
and carries the process exit code that the command line uses (docs/spec/exit-codes.md).
Error texts never contain private values (prompts, ids, outputs, keys, salts):
they give positions and commitments instead.
"""

from __future__ import annotations

from typing import ClassVar, Self


class TallystickError(Exception):
    """Root of all errors.

    ``expected`` and ``found`` are short texts; ``hint`` says what to do next.
    ``str(error)`` joins whatever of the four parts is present.
    """

    exit_code: ClassVar[int] = 7

    def __init__(
        self,
        message: str,
        *,
        expected: str | None = None,
        found: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.expected = expected
        self.found = found
        self.hint = hint

    @classmethod
    def of(cls, error: TallystickError, message: str | None = None) -> Self:
        """Return an error of this kind that keeps what ``error`` expected, found and advised.

        ``message`` None keeps its words too.
        """
        return cls(
            error.message if message is None else message,
            expected=error.expected,
            found=error.found,
            hint=error.hint,
        )

    def lines(self) -> list[str]:
        """Return the present parts, one each. A part from outside may hold line breaks itself."""
        parts = [self.message]
        if self.expected is not None:
            parts.append(f"  expected: {self.expected}")
        if self.found is not None:
            parts.append(f"  found: {self.found}")
        if self.hint is not None:
            parts.append(f"  what to do: {self.hint}")
        return parts

    def __str__(self) -> str:
        return "\n".join(self.lines())


class EvidenceError(TallystickError):
    """Evidence was offered and does not hold: a mismatch, a bad signature, a broken member."""

    exit_code = 1


class UsageError(TallystickError):
    """The call itself is wrong: flags, flag combinations, flag limits."""

    exit_code = 2


class IncomparableError(TallystickError):
    """This machine or this model cannot execute or compare what is asked. Never a verdict."""

    exit_code = 3


class InputError(TallystickError):
    """A bad prompt, model, configuration or key file."""

    exit_code = 4


class NothingToVerifyError(InputError):
    """Nothing recognisable to verify, or a set that is incomplete."""


class ModelNotHereError(InputError):
    """This worker does not have the model of a run; another one may."""


class NoTrustError(InputError):
    """No trust was given: there is no default trust."""


class SandboxError(TallystickError):
    """The sandbox cannot be enforced at the asked level."""

    exit_code = 5


class UnavailableError(TallystickError):
    """A queue, store or output place is unavailable, read-only or full."""

    exit_code = 6


class LostLeaseError(UnavailableError):
    """A job's lease was lost: another worker has the job, or it was cancelled."""


class RunFailedError(TallystickError):
    """The run itself failed: engine abort, out of memory, deadline, a broken child."""

    exit_code = 7


class InterruptedRunError(TallystickError):
    """The user interrupted; nothing half-written is left."""

    exit_code = 130
