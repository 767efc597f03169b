"""The three-way match: declared, materialised and executed are one (docs/spec/bundles.md#match).

Pure: whoever holds a run, a checked bundle or a receipt brings its digests, and they are compared
here. The worker does so before a model is loaded and again when it seals, a verifier in step 12.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final

from tallystick.contracts.digests import no_bundle_digest
from tallystick.contracts.receipt import Core
from tallystick.contracts.request import InferenceRun
from tallystick.errors import EvidenceError

DECLARED: Final = "declared"
MATERIALISED: Final = "materialised"
EXECUTED: Final = "executed"


@dataclass(frozen=True, slots=True)
class ThreeDigests:
    """Which data, which task, which model: the three digests that have to agree."""

    bundle: str
    task: str
    model: str


@dataclass(frozen=True, slots=True)
class BundlePrompt:
    """The prompt that a bundle gives for one run, and what of the bundle it was made from."""

    path: str
    split: str | None
    tile: str | None
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AttestedData:
    """A provider's envelope, byte for byte, and the data and licence that it has to be about."""

    envelope: bytes
    tile_set_digest: str
    license: str


@dataclass(frozen=True, slots=True)
class Materialised:
    """What was found on disk. ``source`` is None for data to which nobody attests.

    ``prompt`` is None where it was not asked for. Without a bundle everything but the digests is.
    """

    digests: ThreeDigests
    manifest_digest: str | None = None
    source: AttestedData | None = None
    prompt: BundlePrompt | None = None


def no_bundle(model_digest: str) -> Materialised:
    """Return what a run without a bundle finds: its model."""
    absent = no_bundle_digest()
    return Materialised(ThreeDigests(absent, absent, model_digest))


def names_bundle(run: InferenceRun) -> bool:
    """Say whether a run declares a bundle, a task, or a prompt that comes from one."""
    absent = no_bundle_digest()
    declared = declared_by(run)
    return (declared.bundle, declared.task) != (absent, absent) or _source(run) != (None,) * 3


def declared_by(run: InferenceRun) -> ThreeDigests:
    """Return what ``run`` expects."""
    return ThreeDigests(
        run.dataset.expectedDigest, run.task.expectedDigest, run.model.expectedDigest
    )


def executed_by(core: Core) -> ThreeDigests:
    """Return what the receipt says was run."""
    return ThreeDigests(core.bundle_digest, core.task_digest, core.model_digest)


def require_match(first: str, one: ThreeDigests, second: str, other: ThreeDigests) -> None:
    """Raise EvidenceError naming the first digest in which two of the three parties differ.

    ``first`` and ``second`` say which parties these are; the first has what is expected.
    """
    for item in fields(ThreeDigests):
        expected, found = getattr(one, item.name), getattr(other, item.name)
        if expected != found:
            raise EvidenceError(
                f"three-way match: the {item.name} digest {second} is not the one {first}",
                expected=expected,
                found=found,
                hint="this is another bundle, task or model than the one that was asked for",
            )


def require_prompt(run: InferenceRun, prompt: BundlePrompt | None) -> None:
    """Raise EvidenceError unless the prompt of ``run`` is the one that the bundle gives for it.

    ``prompt`` is None for a run without a bundle. The texts are never shown.
    """
    made = (None,) * 3 if prompt is None else (prompt.path, prompt.split, prompt.tile)
    if _source(run) != made:
        raise EvidenceError(
            "three-way match: the prompt materialised is not the one declared",
            expected=_words(_source(run)),
            found=_words(made),
        )
    if prompt is not None and prompt.text != run.prompt:
        raise EvidenceError(
            "three-way match: the bundle gives another prompt than the one declared",
            expected=f"the template rendered for {_words(made)}",
            found="another text",
            hint="declare the run anew, with `tallystick bundle runs`",
        )


def check_source(run: InferenceRun) -> None:
    """Raise EvidenceError for a run whose fields about its bundle do not go together."""
    absent, declared = no_bundle_digest(), declared_by(run)
    bundled = declared.bundle != absent
    if (declared.task != absent) is not bundled:
        raise EvidenceError(
            "the run declares a bundle without a task, or a task without a bundle",
            expected=f"both, or {absent} for both",
            found=declared.task,
        )
    if (run.prompt_path is not None) is not bundled:
        raise EvidenceError(
            "the run's prompt_path is not what its bundle says",
            expected="the path of a prompt template" if bundled else "null without a bundle",
            found="null" if run.prompt_path is None else ascii(run.prompt_path[:200]),
        )
    if (run.tile is None) is not (run.split is None) or (run.tile is not None and not bundled):
        raise EvidenceError(
            "the run's split and tile do not go together",
            expected="both with a bundle, or neither",
            found=_words(_source(run)),
        )


def _source(run: InferenceRun) -> tuple[str | None, str | None, str | None]:
    return run.prompt_path, run.split, run.tile


def _words(source: tuple[str | None, str | None, str | None]) -> str:
    path, split, tile = source
    if path is None:
        return "none of a bundle"
    where = "" if tile is None else f", tile {tile} of the split {split}"
    return f"{path[:200]!a}{where}"
