"""Look at a model: what is known about it, and whether the file still is what was pinned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tallystick.contracts.model import ModelFacts, ModelPin
from tallystick.errors import EvidenceError, InputError
from tallystick.models.digests import DigestCache, HashedFile, hash_descriptor
from tallystick.models.facts_child import read_facts
from tallystick.models.files import Progress, opened, silent
from tallystick.models.registry import find_pin, pin_path, resolved
from tallystick.store.home import user_path


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model by name or path; what is said about a named one is what its pin says."""

    path: Path
    digest: str
    size: int
    facts: ModelFacts
    pin: ModelPin | None


def describe(name_or_path: str, home: Path, progress: Progress = silent) -> ModelDescription:
    """Return what is known about a model. A named one is neither opened nor hashed.

    Unlike :func:`tallystick.models.registry.resolve` it also describes files that need
    normalising. Raises InputError and IncomparableError for files that cannot be described.
    """
    pin = find_pin(name_or_path, home)
    if pin is not None:
        return ModelDescription(pin_path(pin, home), pin.digest, pin.size, pin.facts, pin)
    path = resolved(user_path(name_or_path))
    with opened(path) as descriptor:
        facts = read_facts(descriptor)
        hashed = DigestCache(home).digest_of(descriptor, progress=progress)
    return ModelDescription(path, hashed.digest, hashed.identity.size, facts, None)


def check(name: str, home: Path, progress: Progress = silent) -> ModelPin:
    """Hash the file of the model ``name`` anew, without the cache, and return its pin if it holds.

    Raises EvidenceError when the file, or what the pin says about it, differs; InputError when
    there is no such name or file.
    """
    pin = find_pin(name, home)
    if pin is None:
        raise InputError(
            f"no model is called {name[:100]!a}",
            hint="`tallystick model ls` shows the names; a file gets one with `model add`",
        )
    with opened(pin_path(pin, home)) as descriptor:
        hashed = hash_descriptor(descriptor, progress=progress)
        _require_digest(pin, hashed)
        facts = read_facts(descriptor)
    if facts != pin.facts:
        raise EvidenceError(
            f"the pin of {name} says something else about the file than the file itself",
            expected="equal facts",
            found=f"different {_first_difference(facts, pin.facts)}",
            hint="remove the pin, and add the file again",
        )
    return pin


def _require_digest(pin: ModelPin, hashed: HashedFile) -> None:
    if (hashed.digest, hashed.identity.size) != (pin.digest, pin.size):
        raise EvidenceError(
            f"the file of the model {pin.name} is not the one that was pinned",
            expected=f"{pin.digest}, {pin.size} bytes",
            found=f"{hashed.digest}, {hashed.identity.size} bytes",
            hint="put the pinned file back, or add this one under another name",
        )


def _first_difference(a: ModelFacts, b: ModelFacts) -> str:
    return next(
        name for name in ModelFacts.__dataclass_fields__ if getattr(a, name) != getattr(b, name)
    )
