"""A small byte-level BPE vocabulary, so that toy models need no download.

All 256 bytes are tokens, so any UTF-8 text makes the round trip; a few merges give tokens of
several bytes.
"""

from __future__ import annotations

from itertools import chain

from tallystick.engine import gguf_writer
from tallystick.engine.gguf_writer import Entry

BOS = "<|begin|>"
EOS = "<|end|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIALS = (BOS, EOS, TURN_START, TURN_END)
BOS_ID = 0
EOS_ID = 1

_NORMAL = 1
_CONTROL = 3
_WORDS = (
    *("the", " the", " and", " of", " is", " in", " to", "ing", " capital", " quick", " brown"),
    *(" fox", " jumps", " over", " lazy", " dog", " Paris", " France", "def", " return", "日本"),
)


def _byte_symbols() -> dict[int, str]:
    """Return the printable stand-in of each byte that GPT-2 vocabularies use."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    symbols = {byte: chr(byte) for byte in printable}
    hidden = (byte for byte in range(256) if byte not in symbols)
    symbols.update((byte, chr(256 + rank)) for rank, byte in enumerate(hidden))
    return symbols


_SYMBOLS = _byte_symbols()


def _merges() -> tuple[tuple[str, str], ...]:
    merges: dict[tuple[str, str], None] = {}
    for word in _WORDS:
        symbols = [_SYMBOLS[byte] for byte in word.encode()]
        joined = symbols[0]
        for symbol in symbols[1:]:
            merges[joined, symbol] = None
            joined += symbol
    return tuple(merges)


def tokens() -> tuple[str, ...]:
    """Return the vocabulary: specials, the 256 bytes, the merged tokens."""
    merged = (left + right for left, right in _merges())
    return tuple(chain(SPECIALS, (_SYMBOLS[byte] for byte in range(256)), merged))


VOCABULARY = len(tokens())


def tokenizer_entries() -> tuple[Entry, ...]:
    """Return the ``tokenizer.*`` entries of the vocabulary."""
    names = tokens()
    types = [_CONTROL if name in SPECIALS else _NORMAL for name in names]
    return (
        gguf_writer.text("tokenizer.ggml.model", "gpt2"),
        gguf_writer.text("tokenizer.ggml.pre", "gpt-2"),
        gguf_writer.text_array("tokenizer.ggml.tokens", names),
        gguf_writer.i32_array("tokenizer.ggml.token_type", types),
        gguf_writer.text_array(
            "tokenizer.ggml.merges", [f"{left} {right}" for left, right in _merges()]
        ),
        gguf_writer.u32("tokenizer.ggml.bos_token_id", BOS_ID),
        gguf_writer.u32("tokenizer.ggml.eos_token_id", EOS_ID),
        gguf_writer.boolean("tokenizer.ggml.add_bos_token", value=True),
    )
