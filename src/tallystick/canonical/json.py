"""Strict JSON in, JCS (RFC 8785) out. Minimal version; see tests/conformance."""

from __future__ import annotations

import json
from typing import Union

import rfc8785

JSONValue = Union[None, bool, int, float, str, list["JSONValue"], dict[str, "JSONValue"]]


def parse_strict(data: bytes, *, max_bytes: int, max_depth: int = 64) -> JSONValue:
    """Placeholder until the strict parser lands."""
    return json.loads(data)


def jcs(value: JSONValue) -> bytes:
    """Return the canonical bytes of ``value``."""
    return rfc8785.dumps(value)
