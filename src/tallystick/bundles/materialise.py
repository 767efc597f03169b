"""From a run's declaration to the bundle on disk that it means (docs/spec/bundles.md#match)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tallystick.bundles.check import CheckedBundle, check_bundle, named_bundle
from tallystick.bundles.match import (
    DECLARED,
    MATERIALISED,
    BundlePrompt,
    Materialised,
    ThreeDigests,
    declared_by,
    require_match,
    require_prompt,
)
from tallystick.bundles.prompts import Prompts
from tallystick.contracts.request import InferenceRun
from tallystick.errors import InputError, TallystickError


def find_bundle(digest: str, directories: Sequence[Path]) -> CheckedBundle:
    """Return the bundle with this digest, checked; the first of ``directories`` that names it.

    Only the manifests of the others are read. Raises InputError when no directory names it,
    EvidenceError when the one that does is not what its manifest declares.
    """
    reason = f"not among the bundle directories given ({len(directories)})"
    for directory in directories:
        try:
            found = named_bundle(directory)
        except TallystickError as error:
            reason += f"; {error.message}"  # not the one that is wanted, whatever is wrong with it
            continue
        if found == digest:
            return check_bundle(directory)
    raise InputError(
        "the run's bundle is not here",
        expected=digest,
        found=reason,
        hint="name its directory: --bundle-dir, or bundles in the worker's settings",
    )


def materialise(run: InferenceRun, bundle: CheckedBundle) -> Materialised:
    """Return what ``bundle`` holds for ``run``; both are held against each other.

    The prompt is rendered from sealed copies of what was compared with the manifest. Raises
    InputError and EvidenceError as :func:`of_bundle` does, and EvidenceError when declared and
    materialised differ: the first of the three digests is named, then the prompt.
    """
    digests = digests_of(bundle)
    require_match(DECLARED, declared_by(run), MATERIALISED, digests)
    found = of_bundle(bundle, run)
    require_prompt(run, found.prompt)
    return found


def digests_of(bundle: CheckedBundle) -> ThreeDigests:
    """Return the three digests of a checked bundle."""
    return ThreeDigests(bundle.bundle_digest, bundle.task_digest, bundle.model_ref.digest)


def of_bundle(bundle: CheckedBundle, run: InferenceRun | None = None) -> Materialised:
    """Return what a checked bundle holds, with the prompt for ``run``, if one is given.

    Raises InputError when the bundle has no such template, split or tile, EvidenceError when a file
    is not any more what was checked.
    """
    return Materialised(
        digests=digests_of(bundle),
        manifest_digest=bundle.manifest_digest,
        source=bundle.source,
        prompt=None if run is None else prompt_for(bundle, run),
    )


def prompt_for(bundle: CheckedBundle, run: InferenceRun) -> BundlePrompt | None:
    """Return the prompt that a checked bundle gives for ``run``; None if it names no template.

    Raises as :func:`of_bundle` does.
    """
    if run.prompt_path is None:
        return None
    prompts = Prompts(bundle, run.prompt_path)
    return BundlePrompt(prompts.path, run.split, run.tile, prompts.render(run.split, run.tile))
