"""Find the engine's shared object without importing or loading it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tallystick.contracts.runtime import EngineBuild
from tallystick.engine.libllama.pins import ENGINE_NAME, LIBRARY_FILE, PINS, find_pin
from tallystick.errors import IncomparableError, InputError


def library_path() -> Path:
    """Return the path of the installed engine library. InputError when there is none."""
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            "the inference engine is not installed",
            expected=f"the package xllamacpp=={PINS[0].version}",
            hint="pip install 'tallystick[engine]'",
        )
    path = Path(spec.submodule_search_locations[0], LIBRARY_FILE)
    if not path.is_file():
        raise InputError(
            "the inference engine's library is missing", found=path.name, hint="reinstall xllamacpp"
        )
    return path


def engine_build(library: str) -> EngineBuild:
    """Return the build whose library has digest ``library``; IncomparableError when unknown."""
    pin = find_pin(library)
    if pin is None:
        raise IncomparableError(
            "the installed engine library is not one this version knows",
            expected=" or ".join(f"{p.version} on {p.platform}" for p in PINS),
            found=library,
            hint=f"pip install xllamacpp=={PINS[0].version} on a supported platform",
        )
    return EngineBuild(name=ENGINE_NAME, version=pin.version, library=library)
