"""Bundles as a user makes and checks them: the files, and what a provider attests of them."""

from __future__ import annotations

from pathlib import Path

from tallystick.bundles import check, create
from tallystick.bundles.check import CheckedBundle
from tallystick.bundles.create import CreatedBundle
from tallystick.models.files import Progress, silent
from tallystick.worker.declared import check_attested


def check_bundle(directory: Path) -> CheckedBundle:
    """Return the bundle in ``directory``, every byte of it compared with its manifest.

    A source attestation in it has to be about its very tile set and licence; whose it is, a
    verifier says. Raises EvidenceError that names the first path that differs, NothingToVerifyError
    when there is no bundle.
    """
    bundle = check.check_bundle(directory)
    check_attested(bundle)
    return bundle


def create_bundle(
    source: Path, output: Path, model: str, home: Path, *, progress: Progress = silent
) -> CreatedBundle:
    """Make a bundle of ``source`` (data/, task/, perhaps bundle.yaml) for ``model`` at ``output``.

    ``model`` is a name or a path as everywhere, resolved in ``home``. ``output`` is new or an empty
    directory, and appears with the whole bundle in it, which was checked as :func:`check_bundle`
    does; else nothing is left. Raises InputError for a source that makes no bundle or a bad model,
    UnavailableError for a place that cannot be written.
    """
    return create.create_bundle(
        source, output, model, home, progress=progress, accept=check_attested
    )
