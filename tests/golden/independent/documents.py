"""JSON documents: strict reading, canonical bytes, and the published schemas.

Written from docs/spec/{json,documents}.md; the schemas are the files in schemas/.
"""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from tests.golden.independent.basics import RefusedError, require

SCHEMAS = Path(__file__).resolve().parents[3] / "schemas"
LARGEST = 2**53 - 1
TYPES = {"object": dict, "array": list, "string": str, "null": type(None), "boolean": bool}


def parse(data: bytes, limit: int) -> Any:
    """json.md#reading."""
    require(len(data) <= limit, "json: too large")
    require(_depth(data) <= 64, "json: too deep")
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_pairs,
            parse_constant=_refuse,
            parse_float=_refuse,  # no document here has a fraction
            parse_int=_integer,
        )
    except (ValueError, UnicodeDecodeError):
        raise RefusedError("json: not a document") from None
    return value


def jcs(value: Any) -> bytes:
    """json.md#writing: RFC 8785, for the values that documents have."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be", "surrogatepass"))
        return b"{" + b",".join(jcs(key) + b":" + jcs(value[key]) for key in keys) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(jcs, value)) + b"]"
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except UnicodeEncodeError:
        raise RefusedError("json: a text with half a surrogate pair") from None


def canonical(data: bytes, limit: int) -> Any:
    """json.md#canonical-bytes."""
    value = parse(data, limit)
    require(jcs(value) == data, "json: not its canonical bytes")
    return value


def document(schema: str, data: bytes, limit: int) -> Any:
    """Return the document of canonical bytes that fits ``schemas/<schema>.schema.json``."""
    value = canonical(data, limit)
    conform(schema, value)
    return value


def conform(schema: str, value: Any, part: str | None = None) -> None:
    """Require that ``value`` fits a schema, or the type ``part`` that the schema defines."""
    rules = _schema(schema)
    _check(rules if part is None else rules["$defs"][part], value, rules, part or schema)


@cache
def _schema(name: str) -> Any:
    return json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))


def _check(rule: Any, value: Any, root: Any, where: str) -> None:
    """The keywords that the schemas use."""
    if "$ref" in rule:
        name = rule["$ref"].removeprefix("#/$defs/")
        _check(root["$defs"][name], value, root, where)
    if "anyOf" in rule:
        require(any(_fits(each, value, root, where) for each in rule["anyOf"]), where)
    if "const" in rule:
        require(type(value) is type(rule["const"]) and value == rule["const"], where)
    if "enum" in rule:
        require(isinstance(value, str) and value in rule["enum"], where)
    kind = rule.get("type")
    if kind == "integer":
        require(type(value) is int and rule["minimum"] <= value <= rule["maximum"], where)
    elif kind is not None:
        require(type(value) is TYPES[kind], where)
    if kind == "string":
        _check_text(rule, value, where)
    elif kind == "array":
        require(len(value) <= rule.get("maxItems", len(value)), where)
        for item in value:
            _check(rule["items"], item, root, where)
    elif kind == "object":
        require(value.keys() == rule["properties"].keys(), f"{where}: its keys")
        for key, inner in rule["properties"].items():
            _check(inner, value[key], root, f"{where}.{key}")


def _check_text(rule: Any, value: str, where: str) -> None:
    require(len(value) <= rule.get("maxLength", len(value)), where)
    if "pattern" in rule:
        require(re.fullmatch(rule["pattern"], value) is not None, where)
    if rule.get("contentEncoding") == "base64":
        require(base64.b64encode(base64.b64decode(value)).decode() == value, where)
    if rule.get("format") == "date-time":
        milliseconds(value)


def _fits(rule: Any, value: Any, root: Any, where: str) -> bool:
    try:
        _check(rule, value, root, where)
    except RefusedError:
        return False
    return True


def milliseconds(moment: str) -> int:
    """documents.md#types: a Timestamp, as milliseconds since 1970."""
    try:
        parsed = datetime.strptime(moment, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    except ValueError:
        raise RefusedError("a moment that does not exist") from None
    return (parsed - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _depth(data: bytes) -> int:
    deepest = depth = 0
    for byte in re.sub(rb'"(?:[^"\\]|\\.)*"', b"", data, flags=re.DOTALL):
        depth += (byte in b"[{") - (byte in b"]}")
        deepest = max(deepest, depth)
    return deepest


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _refuse(text: str) -> Any:
    raise ValueError(text)


def _integer(text: str) -> int:
    value = int(text) if len(text) < 20 else LARGEST + 1
    if abs(value) > LARGEST:
        raise ValueError("an integer beyond 2^53 - 1")
    return value
