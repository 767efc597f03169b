"""JSONTestSuite: what must be refused is refused, what may differ is listed with its reason.

The lists below are complete: a file that is accepted or refused otherwise fails the tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.canonical.json import parse_strict
from tallystick.errors import EvidenceError
from tests.support.vectors import vector_dir

MAX_BYTES = 1024 * 1024

# Reasons, each the message of the refusal.
DUPLICATE = "a JSON object repeats a key"
ENCODING = "the JSON document is not UTF-8"
BOM = "the JSON document starts with a byte-order mark"
SURROGATE = "a text in the JSON document holds half of a surrogate pair"
INTEGER = "a JSON integer is out of range"
NUMBER = "a JSON number is out of range"
DEPTH = "the JSON document is nested too deeply"

# Valid JSON that our stricter rules refuse: which of two equal keys a reader takes is a reader's
# choice, so such a document does not have one meaning.
STRICTER = {
    "y_object_duplicated_key.json": DUPLICATE,
    "y_object_duplicated_key_and_value.json": DUPLICATE,
}

# Left to the implementation by RFC 8259; None means accepted.
IMPLEMENTATION_DEFINED: dict[str, str | None] = {
    # A number too small for a double becomes zero, as in ECMAScript.
    "i_number_double_huge_neg_exp.json": None,
    "i_number_real_underflow.json": None,
    "i_number_huge_exp.json": NUMBER,
    "i_number_neg_int_huge_exp.json": NUMBER,
    "i_number_pos_double_huge_exp.json": NUMBER,
    "i_number_real_neg_overflow.json": NUMBER,
    "i_number_real_pos_overflow.json": NUMBER,
    "i_number_too_big_neg_int.json": INTEGER,
    "i_number_too_big_pos_int.json": INTEGER,
    "i_number_very_big_negative_int.json": INTEGER,
    "i_object_key_lone_2nd_surrogate.json": SURROGATE,
    "i_string_1st_surrogate_but_2nd_missing.json": SURROGATE,
    "i_string_1st_valid_surrogate_2nd_invalid.json": SURROGATE,
    "i_string_incomplete_surrogate_and_escape_valid.json": SURROGATE,
    "i_string_incomplete_surrogate_pair.json": SURROGATE,
    "i_string_incomplete_surrogates_escape_valid.json": SURROGATE,
    "i_string_invalid_lonely_surrogate.json": SURROGATE,
    "i_string_invalid_surrogate.json": SURROGATE,
    "i_string_inverted_surrogates_U+1D11E.json": SURROGATE,
    "i_string_lone_second_surrogate.json": SURROGATE,
    "i_string_UTF-16LE_with_BOM.json": ENCODING,
    "i_string_UTF-8_invalid_sequence.json": ENCODING,
    "i_string_UTF8_surrogate_U+D800.json": ENCODING,
    "i_string_invalid_utf-8.json": ENCODING,
    "i_string_iso_latin_1.json": ENCODING,
    "i_string_lone_utf8_continuation_byte.json": ENCODING,
    "i_string_not_in_unicode_range.json": ENCODING,
    "i_string_overlong_sequence_2_bytes.json": ENCODING,
    "i_string_overlong_sequence_6_bytes.json": ENCODING,
    "i_string_overlong_sequence_6_bytes_null.json": ENCODING,
    "i_string_truncated-utf-8.json": ENCODING,
    "i_string_utf16BE_no_BOM.json": ENCODING,
    "i_string_utf16LE_no_BOM.json": ENCODING,
    "i_structure_500_nested_arrays.json": DEPTH,
    "i_structure_UTF-8_BOM_empty_object.json": BOM,
}

# Documents that parsers read in different ways; None means accepted.
TRANSFORM: dict[str, str | None] = {
    "number_-9223372036854775808.json": INTEGER,
    "number_-9223372036854775809.json": INTEGER,
    "number_10000000000000000999.json": INTEGER,
    "number_9223372036854775807.json": INTEGER,
    "number_9223372036854775808.json": INTEGER,
    "number_1.0.json": None,
    "number_1.000000000000000005.json": None,
    "number_1000000000000000.json": None,
    "number_1e-999.json": None,
    "number_1e6.json": None,
    # Text is never normalised, so these two keys are two keys.
    "object_key_nfc_nfd.json": None,
    "object_key_nfd_nfc.json": None,
    "object_same_key_different_values.json": DUPLICATE,
    "object_same_key_same_value.json": DUPLICATE,
    "object_same_key_unclear_values.json": DUPLICATE,
    "string_1_escaped_invalid_codepoint.json": SURROGATE,
    "string_2_escaped_invalid_codepoints.json": SURROGATE,
    "string_3_escaped_invalid_codepoints.json": SURROGATE,
    "string_1_invalid_codepoint.json": ENCODING,
    "string_2_invalid_codepoints.json": ENCODING,
    "string_3_invalid_codepoints.json": ENCODING,
    "string_with_escaped_NULL.json": None,
}


def files(folder: str, prefix: str = "") -> list[Path]:
    directory = vector_dir("jsontestsuite") / folder
    return sorted(path for path in directory.iterdir() if path.name.startswith(prefix))


def outcome(path: Path) -> str | None:
    """Return None when the file is accepted, else the message of its refusal."""
    try:
        parse_strict(path.read_bytes(), max_bytes=MAX_BYTES)
    except EvidenceError as error:
        return error.message
    return None


def test_what_is_not_json_is_refused() -> None:
    found = {path.name: outcome(path) for path in files("test_parsing", "n_")}

    assert len(found) == 188
    assert [name for name, message in found.items() if message is None] == []


def test_what_is_json_is_accepted_but_for_the_stated_reasons() -> None:
    found = {path.name: outcome(path) for path in files("test_parsing", "y_")}

    assert len(found) == 95
    assert {name: message for name, message in found.items() if message} == STRICTER


def test_what_is_left_to_us_is_as_stated() -> None:
    found = {path.name: outcome(path) for path in files("test_parsing", "i_")}

    assert found == IMPLEMENTATION_DEFINED


def test_what_others_read_differently_is_as_stated() -> None:
    found = {path.name: outcome(path) for path in files("test_transform")}

    assert found == TRANSFORM


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("number_1e6.json", [1e6]),
        ("number_1000000000000000.json", [10**15]),
        ("object_key_nfc_nfd.json", {"\u00e9": "NFC", "e\u0301": "NFD"}),
        ("string_with_escaped_NULL.json", ["A\u0000B"]),
    ],
)
def test_accepted_documents_keep_their_value(name: str, expected: object) -> None:
    path = vector_dir("jsontestsuite") / "test_transform" / name

    assert parse_strict(path.read_bytes(), max_bytes=MAX_BYTES) == expected
