"""The members of a document, read and written together (docs/spec/documents.md)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter, call, itemgetter
from typing import Any, TypeAlias, cast

from tallystick.canonical.json import shorten
from tallystick.contracts.scalars import FieldCodec, FieldError, kind_of

Members: TypeAlias = tuple[tuple[str, FieldCodec], ...]


class _PlainMembers:
    """The members of a document that are the same in Python and in JSON, tested all at once.

    Most members are such scalars, and a verification has some 300 of them: their types and then
    their tests run in C, a third of the time of a call for each. Where it says no, the members are
    gone through one by one, for the error.
    """

    __slots__ = ("_kinds", "_tests", "names", "order", "rest")

    def __init__(self, members: Members) -> None:
        plain = {name: codec.plain for name, codec in members if codec.plain is not None}
        self._kinds = [scalar.kind for scalar in plain.values()]
        self._tests = [scalar.fits for scalar in plain.values()]
        self.names = [*plain]
        self.rest = tuple(member for member in members if member[0] not in plain)
        before = [*plain, *(name for name, _ in self.rest)]
        #: Puts the values of ``names``, then those of ``rest``, into the order of the fields.
        self.order = _getter(itemgetter, [before.index(name) for name, _ in members])

    def fit(self, values: tuple[Any, ...]) -> bool:
        return [*map(type, values)] == self._kinds and all(map(call, self._tests, values))


def _getter(kind: Any, names: list[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """Return ``itemgetter`` or ``attrgetter`` of ``names`` with a tuple for any number of them."""
    if len(names) > 1:
        return cast(Callable[[Any], tuple[Any, ...]], kind(*names))
    getters = [kind(name) for name in names]
    return lambda value: tuple([get(value) for get in getters])


def fields_loader(members: Members) -> Callable[[Any], tuple[Any, ...]]:
    """Return what reads the members of one object, in the order of the fields.

    It raises FieldError for anything but an object with exactly these members, each of which fits.
    """
    loaders = tuple((name, codec.load) for name, codec in members)
    names = frozenset(name for name, _ in members)
    plain = _PlainMembers(members)
    get = _getter(itemgetter, plain.names)
    rest = tuple((name, codec.load) for name, codec in plain.rest)

    def load(value: Any) -> tuple[Any, ...]:
        if type(value) is not dict:
            raise FieldError("an object", kind_of(value))
        if value.keys() != names:
            raise _wrong_keys(value, names)
        values = get(value)
        if plain.fit(values):
            return plain.order((*values, *_through(rest, value.__getitem__)))
        return tuple(_through(loaders, value.__getitem__))

    return load


def _through(
    converters: tuple[tuple[str, Callable[[Any], Any]], ...], get: Callable[[str], Any]
) -> list[Any]:
    """Convert one member after the other; an error gets the name of its member."""
    done: list[Any] = []
    try:
        for name, convert in converters:
            done.append(convert(get(name)))
    except FieldError as refusal:
        refusal.path.append(f".{converters[len(done)][0]}")
        raise
    return done


def _wrong_keys(value: dict[str, Any], names: frozenset[str]) -> FieldError:
    missing = sorted(names - value.keys())
    if missing:
        return FieldError(f"the key {missing[0]}", f"{len(missing)} of the declared keys missing")
    unknown = sorted(value.keys() - names)
    return FieldError("only the declared keys", f"the key {shorten(unknown[0])}")


def fields_dumper(members: Members) -> Callable[[Any], dict[str, Any]]:
    """Return what writes the fields of one dataclass as an object. It raises FieldError."""
    dumpers = tuple((name, codec.dump) for name, codec in members)
    names = tuple(name for name, _ in members)
    plain = _PlainMembers(members)
    get = _getter(attrgetter, plain.names)
    rest = tuple((name, codec.dump) for name, codec in plain.rest)

    def dump(document: Any) -> dict[str, Any]:
        member = partial(getattr, document)
        values = get(document)
        if plain.fit(values):
            return dict(zip(names, plain.order((*values, *_through(rest, member))), strict=True))
        return dict(zip(names, _through(dumpers, member), strict=True))

    return dump
