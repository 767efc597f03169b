"""What can be refused about a declared run before a model is looked for (docs/spec/tickets.md)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tallystick.attest.source import require_about
from tallystick.bundles.check import CheckedBundle
from tallystick.bundles.match import Materialised, check_source, names_bundle
from tallystick.bundles.materialise import find_bundle, materialise
from tallystick.contracts.request import InferenceRun
from tallystick.contracts.runtime import SEQUENTIAL
from tallystick.errors import EvidenceError, InputError
from tallystick.worker.request import check_text


def check_declared(run: InferenceRun, now: datetime | None = None) -> None:
    """Refuse a run whose fields cannot give a receipt, wherever it was declared.

    ``now`` (aware) None is the current time. Raises InputError naming the field; texts are never
    shown.
    """
    try:
        check_source(run)
    except EvidenceError as error:
        raise InputError.of(error) from None
    if run.model_digest != run.model.expectedDigest:
        raise InputError(
            "the run declares two models: model_digest is not model.expectedDigest",
            expected=run.model.expectedDigest,
            found=run.model_digest,
        )
    _check_time(run, datetime.now(UTC) if now is None else now)
    _check_sampling(run)
    _check_tokenizing(run)
    if len(set(run.evidence)) != len(run.evidence):
        raise InputError("the run names an evidence part twice", expected="each part once")
    if not run.prompt:
        raise InputError("the run's prompt is empty", expected="at least one character")
    check_text("run's prompt", run.prompt)
    if run.chat is not None and run.chat.system is not None:
        check_text("run's system message", run.chat.system)


def materialised_for(
    run: InferenceRun | None, directories: Sequence[Path], checked: CheckedBundle | None = None
) -> Materialised | None:
    """Return what is on disk of the bundle that ``run`` declares, held against it; None without.

    It is ``checked``, if that was just done, or looked for in ``directories``. A source attestation
    has to be about this very tile set; whose it is, a verifier says. Raises InputError when the
    bundle is in none of ``directories``, EvidenceError when it is not what it or the run declares.
    """
    if run is None or not names_bundle(run):
        return None
    bundle = checked or find_bundle(run.dataset.expectedDigest, directories)
    check_attested(bundle)
    return materialise(run, bundle)


def check_attested(bundle: CheckedBundle) -> None:
    """Raise EvidenceError when a bundle's source attestation is not about its tile set."""
    source = bundle.source
    if source is not None:
        require_about(source.envelope, source.tile_set_digest, source.license)


def _check_time(run: InferenceRun, now: datetime) -> None:
    if run.expires_at is not None and datetime.fromisoformat(run.expires_at) <= now:
        raise InputError(
            "the run has expired",
            expected=f"a time before {run.expires_at}",
            found=now.astimezone(UTC).isoformat(timespec="seconds"),
        )


def _check_sampling(run: InferenceRun) -> None:
    if (run.seed is None) != (run.temperature == "0"):
        raise InputError(
            "the run's seed is not what its temperature says",
            expected="a seed exactly when the temperature is not 0",
            found=f"temperature {run.temperature}, {'no' if run.seed is None else 'a'} seed",
        )
    if run.policy == SEQUENTIAL and run.seed is not None:
        raise InputError("the sequential policy is greedy", expected="temperature 0 and no seed")


def _check_tokenizing(run: InferenceRun) -> None:
    """Every prompt is tokenised in one way: docs/spec/execution.md#prompt."""
    special = run.chat is not None or run.policy == SEQUENTIAL
    for name, expected, found in (
        ("add_special", True, run.add_special),
        ("parse_special", special, run.parse_special),
    ):
        if expected != found:
            raise InputError(
                f"the run's {name} is not what its policy and chat say",
                expected=str(expected).lower(),
                found=str(found).lower(),
            )
