"""Documents: frozen dataclasses to JSON and back (docs/spec/documents.md).

The field types of a document come from :mod:`tallystick.contracts.types`. A decoder takes exactly
the declared keys and exactly the declared JSON types; an encoder checks the same rules, so that
nothing is written that would not be read. Error texts name the field, what was expected, and the
type and size of what was found: never a value, because some fields are private.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    Final,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from tallystick.canonical.json import BOUNDS, Bounds, JSONValue, jcs, parse_canonical, shorten
from tallystick.contracts.members import Members, fields_dumper, fields_loader
from tallystick.contracts.scalars import (
    FieldCodec,
    FieldError,
    JSONSchema,
    exact,
    integer_codec,
    kind_of,
    text_codec,
)
from tallystick.contracts.types import IntRange, KeyedBy, MaxLength
from tallystick.errors import EvidenceError, InputError

T = TypeVar("T")

SCHEMA_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def decode(cls: type[T], value: JSONValue, *, where: str = "document") -> T:
    """Return the document ``value`` as a ``cls``.

    Raises EvidenceError that starts with ``where`` and names the first field that does not fit.
    """
    try:
        return cast(T, _document(cls).load(value))
    except FieldError as refusal:
        raise EvidenceError(
            _message(where, refusal), expected=refusal.expected, found=refusal.found
        ) from None


def encode(document: object) -> JSONValue:
    """Return ``document`` (a dataclass from ``contracts``) as a JSON value.

    Raises InputError when one of its values does not fit its declared type.
    """
    cls = type(document)
    try:
        return cast(JSONValue, _document(cls).dump(document))
    except FieldError as refusal:
        raise InputError(
            _message(cls.__name__, refusal),
            expected=refusal.expected,
            found=refusal.found,
        ) from None


def encode_bytes(document: object) -> bytes:
    """Return the canonical bytes of ``document``. Raises InputError as :func:`encode` does."""
    return jcs(encode(document))


def decode_bytes(
    cls: type[T],
    data: bytes,
    *,
    max_bytes: int,
    where: str = "document",
    bounds: Bounds = BOUNDS,
) -> T:
    """Return the document whose canonical bytes are ``data``, which holds what ``bounds`` allow.

    Raises EvidenceError for bytes that are not strict, canonical JSON, or do not fit ``cls``.
    """
    value = parse_bytes(data, max_bytes=max_bytes, where=where, bounds=bounds)
    return decode(cls, value, where=where)


def parse_bytes(
    data: bytes, *, max_bytes: int, where: str = "document", bounds: Bounds = BOUNDS
) -> JSONValue:
    """Return the value whose canonical bytes are ``data``, for who needs it besides the document.

    Raises EvidenceError, starting with ``where``, for bytes that are not strict, canonical JSON.
    """
    try:
        return parse_canonical(data, max_bytes=max_bytes, bounds=bounds)
    except EvidenceError as error:
        raise EvidenceError(
            f"{where}: {error.message}",
            expected=error.expected,
            found=error.found,
            hint=error.hint,
        ) from None


def json_schema(cls: type, schema_id: str) -> JSONSchema:
    """Return the JSON Schema (draft 2020-12) of ``cls`` with ``schema_id`` as its ``$id``."""
    codec = _document(cls)
    inner = {document.__name__: _document(document).schema for document in codec.documents}
    schema: JSONSchema = {"$schema": SCHEMA_DIALECT, "$id": schema_id, **codec.schema}
    if inner:
        schema["$defs"] = {name: inner[name] for name in sorted(inner)}
    return schema


def _message(where: str, refusal: FieldError) -> str:
    location = refusal.location()
    return f"{where}: bad field {location}" if location else f"{where}: not such a document"


def _compile(hint: Any) -> FieldCodec:
    marks: tuple[Any, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *rest = get_args(hint)
        marks = tuple(rest)
    origin = get_origin(hint)
    if hint is bool:
        return exact(bool, lambda value: True, "true or false", {"type": "boolean"})
    if hint is str and len(marks) == 1:
        return text_codec(marks[0])
    if hint is int and len(marks) == 1:
        return integer_codec(marks[0])
    if origin is tuple:
        if marks and isinstance(marks[0], KeyedBy):
            return _keyed(get_args(hint)[0], marks[0])
        return _list(get_args(hint), marks)
    if origin in (Union, types.UnionType):
        return _optional(get_args(hint))
    if is_dataclass(hint):
        inner = _document(cast(type, hint))
        name = cast(type, hint).__name__
        return FieldCodec(
            inner.load,
            inner.dump,
            {"$ref": f"#/$defs/{name}"},
            (cast(type, hint), *inner.documents),
        )
    raise TypeError(f"no document field can have the type {hint!r} with {len(marks)} markers")


def _optional(options: tuple[Any, ...]) -> FieldCodec:
    rest = [option for option in options if option is not types.NoneType]
    if len(rest) != 1 or len(options) != 2:
        raise TypeError(f"a document field may be a type or null, not {options!r}")
    inner = _compile(rest[0])
    inner_load, inner_dump = inner.load, inner.dump

    def load(value: Any) -> Any:
        return None if value is None else inner_load(value)

    def dump(value: Any) -> Any:
        return None if value is None else inner_dump(value)

    return FieldCodec(load, dump, {"anyOf": [inner.schema, {"type": "null"}]}, inner.documents)


def _list(arguments: tuple[Any, ...], marks: tuple[Any, ...]) -> FieldCodec:
    if len(arguments) != 2 or arguments[1] is not Ellipsis:
        raise TypeError("a document's tuple is written tuple[T, ...]")
    inner = _compile(arguments[0])
    schema: JSONSchema = {"type": "array", "items": inner.schema}
    limit: int | None = None
    if marks:
        (mark,) = marks
        if not isinstance(mark, MaxLength):
            raise TypeError(f"no list can carry the marker {mark!r}")
        limit = mark.limit
        schema["maxItems"] = limit
    fits = _all_fit(arguments[0])
    return FieldCodec(
        _each(inner.load, list, tuple, limit, fits),
        _each(inner.dump, tuple, list, limit, fits),
        schema,
        inner.documents,
    )


def _all_fit(item: Any) -> Callable[[Any], bool] | None:
    """Return a quick test of a whole list of JSON integers, None for other items.

    Token ids come in thousands. A list that fails it is gone through one by one, for the error.
    """
    mark = next(iter(getattr(item, "__metadata__", ())), None)
    if not isinstance(mark, IntRange):
        return None
    low, high = mark.low, mark.high

    def all_fit(values: Any) -> bool:
        return {*map(type, values)} == {int} and low <= min(values) and max(values) <= high

    return all_fit


def _each(
    convert: Callable[[Any], Any],
    source: type[list[Any] | tuple[Any, ...]],
    target: type[list[Any] | tuple[Any, ...]],
    limit: int | None,
    fits: Callable[[Any], bool] | None,
) -> Callable[[Any], Any]:
    bound = sys.maxsize if limit is None else limit
    expected = "a list" if limit is None else f"a list of at most {limit} items"

    def convert_all(values: Any) -> Any:
        if not isinstance(values, source) or len(values) > bound:
            raise FieldError(expected, kind_of(values))
        if fits is not None and fits(values):
            return target(values)
        done: list[Any] = []
        try:
            for value in values:
                done.append(convert(value))  # noqa: PERF401 - its length is the failing index
        except FieldError as refusal:
            refusal.path.append(f"[{len(done)}]")
            raise
        return target(done)

    return convert_all


def _keyed(item: type, mark: KeyedBy) -> FieldCodec:
    """Return the codec of documents that travel as the members of one object."""
    members = _members(item)
    key = dict(members)[mark.key]
    rest = tuple(member for member in members if member[0] != mark.key)
    position = [name for name, _ in members].index(mark.key)
    expected = f"an object of at most {mark.limit} members"
    dump_rest = fields_dumper(rest)
    load_rest = fields_loader(rest)

    def load(value: Any) -> Any:
        if type(value) is not dict or len(value) > mark.limit:
            raise FieldError(expected, kind_of(value))
        done: list[Any] = []
        for name in sorted(value):
            try:
                key.load(name)
                arguments = [*load_rest(value[name])]
            except FieldError as refusal:
                refusal.path.append(f"[{shorten(name)}]")
                raise
            arguments.insert(position, name)
            done.append(item(*arguments))
        return tuple(done)

    def dump(values: Any) -> Any:
        if type(values) is not tuple or len(values) > mark.limit:
            raise FieldError(f"a tuple of at most {mark.limit} items", kind_of(values))
        done: dict[str, Any] = {}
        last: str | None = None
        for value in values:
            if type(value) is not item:
                raise FieldError(f"{item.__name__} items", kind_of(value))
            name = key.dump(getattr(value, mark.key))
            if last is not None and name <= last:
                raise FieldError(f"ascending values of {mark.key}", f"item {len(done)} not above")
            done[name], last = dump_rest(value), name
        return done

    return FieldCodec(
        load,
        dump,
        {
            "type": "object",
            "maxProperties": mark.limit,
            "propertyNames": key.schema,
            "additionalProperties": _object_schema(item, rest),
        },
        tuple(dict.fromkeys(inner for _, codec in rest for inner in codec.documents)),
    )


def _document(cls: Any) -> FieldCodec:
    # Any: type checkers do not take every class for hashable, which the cache asks for.
    return _compile_document(cls)


@cache
def _compile_document(cls: type) -> FieldCodec:
    members = _members(cls)
    load_fields = fields_loader(members)
    return FieldCodec(
        lambda value: cls(*load_fields(value)),
        _document_dumper(cls, members),
        _object_schema(cls, members),
        tuple(dict.fromkeys(inner for _, codec in members for inner in codec.documents)),
    )


def _members(cls: type) -> Members:
    if not is_dataclass(cls):
        raise TypeError(f"{cls.__name__} is not a document type")
    hints = get_type_hints(cls, include_extras=True)
    return tuple((field.name, _compile(hints[field.name])) for field in fields(cls))


def _document_dumper(cls: type, members: Members) -> Callable[[Any], Any]:
    dump_fields = fields_dumper(members)

    def dump(document: Any) -> Any:
        if type(document) is not cls:
            raise FieldError(f"a {cls.__name__}", kind_of(document))
        return dump_fields(document)

    return dump


def _object_schema(cls: type, members: Members) -> JSONSchema:
    return {
        "title": cls.__name__,
        "description": (cls.__doc__ or "").strip().partition("\n")[0],
        "type": "object",
        "properties": {name: codec.schema for name, codec in members},
        "required": [name for name, _ in members],
        "additionalProperties": False,
    }
