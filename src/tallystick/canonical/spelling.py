"""Whether a JSON text is spelled as RFC 8785 writes it, decided without writing it again.

A text has one canonical spelling, so ``jcs(parse(data)) == data`` says what is wanted, and takes
longer than parsing. But all that one spelling can differ in from another is white space, escapes,
numbers, and the order of keys; the first three are seen in the bytes, by a few passes in C.
"""

from __future__ import annotations

import re
from typing import Final

# Escapes but those that RFC 8785 writes; it has a short one for some control characters, and none
# for what needs none. Looked for where escaped backslashes are taken out.
_OTHER_ESCAPE: Final = re.compile(rb'\\(?!["bfnrt]|u00(?:0[0-7bef]|1[0-9a-f]))')
# What stands outside of texts: structure, integers, and the letters of true, false and null.
_OUTSIDE: Final = b"{}[]:,-0123456789aeflnrstu"
_DIGITS_TO_ZERO: Final = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_INTEGER: Final = b"0" * 16  # 15 digits always fit a double


def outside_texts(data: bytes, *, texts: int) -> bytes | None:
    """Return what of the JSON document ``data`` stands outside of its texts, without their quotes.

    None is returned where it holds escapes that the canonical form has not, or more than this many
    ``texts``. Anything may be returned for bytes that are no JSON document.
    """
    if b"\\" in data:
        data = data.replace(b"\\\\", b"")
        if _OTHER_ESCAPE.search(data) is not None:
            return None
        data = data.replace(b'\\"', b"")
    pieces = data.split(b'"', 2 * texts + 1)
    return b"".join(pieces[::2]) if len(pieces) <= 2 * texts + 1 else None


def spelled_canonically(outside: bytes) -> bool:
    """Say whether the document with this :func:`outside_texts` needs no more than ordered keys.

    False is also said of a document with fractions, exponents, or integers of 16 digits and more,
    whatever their spelling.
    """
    if outside.translate(None, _OUTSIDE) or b"-0" in outside:
        return False
    shapes = outside.translate(_DIGITS_TO_ZERO)
    return b"0e" not in shapes and _LONG_INTEGER not in shapes
