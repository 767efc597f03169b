"""The models of a user's folder, with what can be said about each without hashing it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tallystick.contracts.model import ModelPin
from tallystick.errors import InputError
from tallystick.models.registry import find_pin, models_dir, pin_path

State = Literal["present", "missing", "resized", "damaged"]


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One name: ``damaged`` means that its pin cannot be read, and then ``pin`` is None."""

    name: str
    state: State
    pin: ModelPin | None


def list_models(home: Path) -> tuple[ListedModel, ...]:
    """Return every named model in order of the names."""
    names = sorted(path.stem for path in models_dir(home).glob("*.json"))
    return tuple(listed for name in names if (listed := _listed(name, home)) is not None)


def _listed(name: str, home: Path) -> ListedModel | None:
    try:
        pin = find_pin(name, home)
    except InputError:
        return ListedModel(name, "damaged", None)
    return None if pin is None else ListedModel(name, _state(pin, home), pin)


def _state(pin: ModelPin, home: Path) -> State:
    try:
        info = pin_path(pin, home).stat()
    except OSError:
        return "missing"
    return "present" if info.st_size == pin.size else "resized"
