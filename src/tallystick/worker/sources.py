"""Where a run comes from: its user, a scheduler's ticket, or a queue; and who schedules it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tallystick.attest.keys import PublicKey
from tallystick.contracts.request import InferenceRun
from tallystick.contracts.ticket import Ticket
from tallystick.errors import InputError
from tallystick.models.registry import ModelFile
from tallystick.receipts.scheduling import open_ticket
from tallystick.sandbox.profiles import load_profile
from tallystick.store.ids import uuid7
from tallystick.worker.declared import check_declared
from tallystick.worker.papers import RunPapers, own_papers, papers_of_ticket
from tallystick.worker.request import RunOptions, check_options, declare


@dataclass(frozen=True, slots=True)
class OwnOrder:
    """A run that its user asks for: the request is declared and scheduled here."""

    options: RunOptions

    @property
    def request(self) -> None:
        """There is no declaration before the model is known."""
        return None

    def require_sound(self) -> None:
        """Raise UsageError or InputError for what no model could make good."""
        check_options(self.options)

    def declared(self, model: ModelFile, commit: bytes) -> InferenceRun:
        """Return the declared run."""
        sandbox = load_profile(self.options.sandbox)
        return declare(self.options, model.digest, model.facts, commit, sandbox)

    def papers(
        self, run: InferenceRun, worker: PublicKey, profile_id: bytes, most: int
    ) -> RunPapers:
        """Return the papers of the run; ``most`` bounds the prompt's tokens."""
        return own_papers(run, worker, model_profile_id=profile_id, max_prefill_tokens=most)


@dataclass(frozen=True, slots=True)
class TicketOrder:
    """A run that a scheduler ordered; ``options`` has what is left to its worker."""

    ticket: Ticket
    options: RunOptions

    @property
    def request(self) -> InferenceRun:
        """The run as its scheduler declared it."""
        return self.ticket.request

    def require_sound(self) -> None:
        """Raise InputError for a ticket that no worker and no model could make good."""
        open_ticket(self.ticket)
        check_declared(self.ticket.request)

    def declared(self, model: ModelFile, _: bytes) -> InferenceRun:
        """Return the ordered run under an id of its own. InputError for another model."""
        run = self.ticket.request
        if run.model_digest != model.digest:
            raise InputError(
                "the ticket is for another model", expected=run.model_digest, found=model.digest
            )
        return replace(run, run_id=uuid7())

    def papers(self, _run: InferenceRun, worker: PublicKey, profile_id: bytes, _: int) -> RunPapers:
        """Return the papers of the worker to whom the ticket was given. Raises InputError."""
        made = papers_of_ticket(self.ticket, worker)
        wanted = made.papers.request.body.model_profile_id
        if wanted != profile_id:
            raise InputError(
                "the ticket is for another model profile",
                expected=wanted.hex(),
                found=profile_id.hex(),
                hint="both sides need the same version of this program and the same file",
            )
        return made


@dataclass(frozen=True, slots=True)
class DeclaredOrder:
    """A run that was declared elsewhere, as a queue hands it out; it is scheduled here."""

    run: InferenceRun
    options: RunOptions

    @property
    def request(self) -> InferenceRun:
        """The run as it was declared."""
        return self.run

    def require_sound(self) -> None:
        """Raise InputError for a run that no model could make good."""
        check_declared(self.run)

    def declared(self, model: ModelFile, _: bytes) -> InferenceRun:
        """Return the run. Raises InputError unless the model is the one that it declares."""
        if self.run.model_digest != model.digest:
            raise InputError(
                "the run's model_digest is not that of the model",
                expected=self.run.model_digest,
                found=model.digest,
            )
        return self.run

    def papers(
        self, run: InferenceRun, worker: PublicKey, profile_id: bytes, most: int
    ) -> RunPapers:
        """Return the papers of the run; ``most`` bounds the prompt's tokens."""
        return own_papers(run, worker, model_profile_id=profile_id, max_prefill_tokens=most)


Order = OwnOrder | TicketOrder | DeclaredOrder
