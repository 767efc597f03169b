"""Say clearly which extra of the package is missing, instead of an import error."""

from __future__ import annotations

from typing import Final

from tallystick.errors import InputError

# Top-level modules that only the "engine" extra brings.
ENGINE_MODULES: Final = ("cffi", "jinja2", "numpy", "xllamacpp")


def missing_engine(module: str) -> InputError:
    """Return the error that says how to install the engine; ``module`` is what was not found."""
    return InputError(
        "this command executes a model, and the engine is not installed",
        expected=f"the Python module {module}",
        hint="pip install 'tallystick[engine]'",
    )


def require_engine() -> None:
    """Check that the engine's modules can be found, without importing them.

    For verbs that start children: a child without its libraries could only die.
    Raises InputError.
    """
    from importlib.util import find_spec

    for module in ENGINE_MODULES:
        if find_spec(module) is None:
            raise missing_engine(module)
