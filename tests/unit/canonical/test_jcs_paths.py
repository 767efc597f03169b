"""The fast path of ``jcs`` and the library give the same bytes; what it cannot do it leaves."""

from __future__ import annotations

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.canonical.json import MAX_SAFE_INTEGER, JSONValue, jcs
from tallystick.errors import EvidenceError

TEXTS = st.text(st.characters(codec="utf-8"))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-MAX_SAFE_INTEGER, MAX_SAFE_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(VALUES)
def test_both_paths_give_the_same_bytes(value: JSONValue) -> None:
    assert jcs(value) == rfc8785.dumps(value)


@pytest.mark.parametrize(
    "value",
    [
        "".join(map(chr, range(0x100))) + "\u2028\u2029\ufeff\U0001f600",
        {"b": 1, "a": 2, "B": 3, "": 4, "a\x00": 5, "\x7f": 6},
        {"\U0001f600": 1, "\ufb33": 2},
        [MAX_SAFE_INTEGER, -MAX_SAFE_INTEGER, True, 1e-7, -0.0, 10.0],
    ],
)
def test_known_differences_between_encoders(value: JSONValue) -> None:
    assert jcs(value) == rfc8785.dumps(value)


@pytest.mark.parametrize(
    "value", [MAX_SAFE_INTEGER + 1, {"a": [-MAX_SAFE_INTEGER - 1]}, "\ud800", {"\ud800": 1}]
)
def test_what_has_no_canonical_form_is_refused(value: JSONValue) -> None:
    with pytest.raises(EvidenceError):
        jcs(value)
