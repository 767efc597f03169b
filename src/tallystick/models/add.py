"""Register a model file: in place as it is, or as a derived file that the engine can load."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from tallystick.contracts.model import PIN_SCHEMA, ModelFacts, ModelPin
from tallystick.contracts.request import PRODUCER
from tallystick.contracts.sandbox_profile import SandboxProfile
from tallystick.errors import InputError, RunFailedError
from tallystick.models.digests import DigestCache, HashedFile, hash_descriptor
from tallystick.models.facts_child import read_facts
from tallystick.models.files import FileIdentity, Progress, move_into_place, opened, silent
from tallystick.models.normalise import TRANSFORM, write_normalised
from tallystick.models.partial import PartialFile
from tallystick.models.registry import (
    checked_name,
    models_dir,
    path_for_pin,
    require_loadable,
    resolved,
    save_pin,
)

_UNUSABLE: Final = re.compile(r"[^a-z0-9._-]+")


def derived_name(text: str) -> str:
    """Return a model name made from ``text``, such as a file name or a tag."""
    lowered = text.lower().removesuffix(".gguf")
    return _UNUSABLE.sub("-", lowered).strip("-._")[:100]


def add(
    path: Path,
    home: Path,
    *,
    name: str | None = None,
    progress: Progress = silent,
    sandbox: SandboxProfile | None = None,
) -> ModelPin:
    """Register the GGUF file at ``path`` where it is, and return its pin; nothing is copied.

    ``sandbox`` holds the child that reads the file; SandboxError where it cannot. Raises InputError
    for a file that is no sound model or a name that is taken, IncomparableError
    for a file that the engine's loader refuses as it is (see :func:`add_normalised`).
    """
    real = resolved(path)
    chosen = _name_for(path, name)
    hashed = hash_file(real, home, progress)
    return pin_file(real, hashed, chosen, home, source=_source(real), sandbox=sandbox)


def add_normalised(
    path: Path,
    home: Path,
    *,
    name: str | None = None,
    progress: Progress = silent,
    sandbox: SandboxProfile | None = None,
) -> ModelPin:
    """Register a derived file that the engine's loader accepts, written by the versioned transform.

    The derived file goes into the models folder; the pin names both digests. A file that needs
    nothing is registered in place. Raises what :func:`add` raises, and UnavailableError when the
    derived file cannot be written.
    """
    real = resolved(path)
    chosen = _name_for(path, name)
    if models_dir(resolved(home)) / f"{chosen}.gguf" == real:
        chosen = checked_name(f"{chosen}-normalised")  # the source keeps its place
    with opened(real) as descriptor:
        source = DigestCache(home).digest_of(descriptor, progress=progress)
        facts = read_facts(descriptor, sandbox)
        if facts.needs_normalising:
            final = models_dir(home) / f"{chosen}.gguf"
            derived = _derive(descriptor, source, final, progress, sandbox)
            pin = _derived_pin(final, chosen, home, source, derived, _source(real), sandbox)
            return save_pin(pin, home)
    return pin_file(real, source, chosen, home, source=_source(real), sandbox=sandbox)


def hash_file(path: Path, home: Path, progress: Progress) -> HashedFile:
    """Return the digest of the model file at ``path``, from the cache where it is safe."""
    with opened(path) as descriptor:
        return DigestCache(home).digest_of(descriptor, progress=progress)


def pin_file(
    path: Path,
    hashed: HashedFile,
    name: str,
    home: Path,
    *,
    source: str,
    sandbox: SandboxProfile | None = None,
) -> ModelPin:
    """Parse the file at ``path``, which was hashed before, and save a pin called ``name`` for it.

    Raises InputError when it changed since, and what :func:`add` raises.
    """
    with opened(path) as descriptor:
        facts = read_facts(descriptor, sandbox)
        _require_same(descriptor, hashed, path)
    require_loadable(facts, path)
    return save_pin(_pin(name, path, home, hashed, facts, source), home)


def _name_for(path: Path, name: str | None) -> str:
    if name is not None:
        return checked_name(name)
    made = derived_name(path.name)
    if not made:
        raise InputError("no name can be made from the file's name", hint="choose one with --name")
    return checked_name(made)


def _source(path: Path) -> str:
    # Undecodable names are refused where the pin's path is made; here they only must not fail.
    return f"file:{os.fsencode(path).decode('utf-8', 'replace')}"


def _pin(
    name: str,
    path: Path,
    home: Path,
    hashed: HashedFile,
    facts: ModelFacts,
    source: str,
    derived_from: str | None = None,
) -> ModelPin:
    return ModelPin(
        schema=PIN_SCHEMA,
        producer=PRODUCER,
        name=name,
        path=path_for_pin(path, home),
        digest=hashed.digest,
        size=hashed.identity.size,
        source=source,
        derived_from=derived_from,
        transform=TRANSFORM if derived_from is not None else None,
        facts=facts,
    )


def _require_same(descriptor: int, hashed: HashedFile, path: Path) -> None:
    if FileIdentity.of(descriptor) != hashed.identity:
        raise InputError(
            f"the model file changed while it was being added: {path}",
            hint="wait until the copy or download is finished",
        )


def _derive(
    descriptor: int,
    source: HashedFile,
    final: Path,
    progress: Progress,
    sandbox: SandboxProfile | None,
) -> HashedFile:
    """Write the derived file to ``final`` unless an equal one is there; return its digest."""
    with PartialFile(final) as partial:
        try:
            partial.clear()
            write_normalised(descriptor, partial.fd, progress, sandbox)
            derived = hash_descriptor(partial.fd, progress=progress)
            _require_same(descriptor, source, final)
            if move_into_place(partial.path, final):
                return HashedFile(derived.digest, FileIdentity.of(partial.fd))
        except BaseException:
            partial.clear()
            raise
        partial.clear()
    return _require_equal(final, derived, progress)


def _require_equal(final: Path, derived: HashedFile, progress: Progress) -> HashedFile:
    with opened(final) as descriptor:
        found = hash_descriptor(descriptor, progress=progress)
    if found.digest != derived.digest:
        raise InputError(
            f"another file is in the way and is not overwritten: {final}",
            expected=derived.digest,
            found=found.digest,
            hint="move it away, or choose another name with --name",
        )
    return found


def _derived_pin(
    final: Path,
    name: str,
    home: Path,
    source: HashedFile,
    derived: HashedFile,
    origin: str,
    sandbox: SandboxProfile | None,
) -> ModelPin:
    with opened(final) as descriptor:
        facts = read_facts(descriptor, sandbox)
    if facts.needs_normalising:
        raise RunFailedError("the derived file still needs normalising")
    return _pin(name, resolved(final), home, derived, facts, origin, derived_from=source.digest)
