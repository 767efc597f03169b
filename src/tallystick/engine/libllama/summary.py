"""What the engine says of a loaded model and of itself."""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from tallystick.engine.libllama.library import Library
from tallystick.engine.port import EngineSummary, MetadataText, ModelSummary

_ROPE_TYPES: Final = {-1: "none", 0: "norm", 2: "neox", 8: "mrope", 24: "vision", 40: "imrope"}
_TEXT_ROOM: Final = 4096


def summarise_engine(library: Library) -> EngineSummary:
    """Return the engine's own version, commit, processor features and offload support."""
    lib, ffi = library.lib, library.ffi
    return EngineSummary(
        version=ffi.string(lib.ggml_version()).decode("utf-8", "replace"),
        commit=ffi.string(lib.ggml_commit()).decode("utf-8", "replace"),
        system_info=library.system_info(),
        gpu_offload=bool(lib.llama_supports_gpu_offload()),
    )


def summarise_model(library: Library, handle: Any) -> ModelSummary:
    """Return what the engine says of the model ``handle``; metadata sorted by key."""
    lib = library.lib
    vocabulary = lib.llama_model_get_vocab(handle)
    rope = lib.llama_model_rope_type(handle)

    def entry(index: int) -> MetadataText:
        return MetadataText(
            _text(library, lambda b, n: lib.llama_model_meta_key_by_index(handle, index, b, n)),
            _text(library, lambda b, n: lib.llama_model_meta_val_str_by_index(handle, index, b, n)),
        )

    entries = map(entry, range(lib.llama_model_meta_count(handle)))
    return ModelSummary(
        description=_text(library, lambda b, n: lib.llama_model_desc(handle, b, n)),
        tensor_bytes=lib.llama_model_size(handle),
        parameters=lib.llama_model_n_params(handle),
        context_train=lib.llama_model_n_ctx_train(handle),
        embedding=lib.llama_model_n_embd(handle),
        layers=lib.llama_model_n_layer(handle),
        heads=lib.llama_model_n_head(handle),
        heads_kv=lib.llama_model_n_head_kv(handle),
        vocabulary=lib.llama_vocab_n_tokens(vocabulary),
        rope_type=_ROPE_TYPES.get(rope, str(rope)),
        rope_frequency_scale=_float32_text(lib.llama_model_rope_freq_scale_train(handle)),
        metadata=tuple(sorted(entries, key=lambda found: found.key)),
    )


def _text(library: Library, write: Callable[[Any, int], int]) -> str:
    """Return the text that ``write`` puts into a buffer, whatever room it needs."""
    room = _TEXT_ROOM
    while True:
        buffer = library.ffi.new("char[]", room)
        size = write(buffer, room)
        if size < room:
            data: bytes = library.ffi.buffer(buffer, max(size, 0))[:]
            return data.decode("utf-8", "replace")
        room = size + 1


def _float32_text(value: float) -> str:
    """Return the shortest decimal that reads back as the float32 ``value``, without exponent."""
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if struct.pack("<f", float(text)) == struct.pack("<f", value):
            break
    else:
        text = repr(value)
    return f"{Decimal(text).normalize():f}"
