"""INTERIM (founding engineer): helper D replaces this file. Keep: SUITE_VERSION, suite(), SuitePart(name, tokens, first_position, batches, build())."""
from __future__ import annotations
import io
from dataclasses import dataclass
from typing import Final
from tallystick.engine import gguf_writer
from tallystick.engine.suite.architectures import Model, Shape, transformer
SUITE_VERSION: Final = "interim-1"
@dataclass(frozen=True, slots=True)
class SuitePart:
    name: str
    model: Model
    tokens: tuple[int, ...]
    first_position: int
    batches: tuple[int, ...]
    def build(self) -> bytes:
        out = io.BytesIO()
        gguf_writer.write_gguf(out, (*self.model.metadata, gguf_writer.text('tokenizer.ggml.model','no_vocab'), gguf_writer.u32('llama.vocab_size', 64)), self.model.tensors)
        return out.getvalue()
def suite() -> tuple[SuitePart, ...]:
    shape = Shape("llama", 2, 256, 4, 2, 64, 512, 64)
    return tuple(SuitePart(f"llama-{k.lower()}", transformer(shape, lambda _n, k=k: k, k), tuple(i * 7 % 64 for i in range(51)), 0, (1, 2, 7, 8, 33)) for k in ("Q8_0", "Q4_K", "F16"))
