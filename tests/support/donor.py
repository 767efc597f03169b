"""Takes the vocabulary out of a GGUF file with the reference reader (the ``gguf`` package)."""

from __future__ import annotations

from pathlib import Path

from gguf import GGUFReader

from tallystick.engine.gguf_writer import Entry, ValueType

# A field's parts are the key's length, the key, the type, then the value as it is in the file.
_VALUE_PARTS = slice(3, None)


def donor_vocabulary(path: Path) -> tuple[tuple[Entry, ...], int]:
    """Return the ``tokenizer.*`` entries of the file at ``path`` and its number of tokens."""
    fields = GGUFReader(path).fields
    entries = tuple(
        Entry(
            name,
            ValueType(field.types[0]),
            b"".join(part.tobytes() for part in field.parts[_VALUE_PARTS]),
        )
        for name, field in fields.items()
        if name.startswith("tokenizer.") and name != "tokenizer.chat_template"
    )
    return entries, len(fields["tokenizer.ggml.tokens"].data)
