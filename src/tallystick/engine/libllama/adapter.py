"""The engine port on libllama: models, contexts, batches. CPU only, one configuration."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal, Self

import numpy as np

from tallystick.engine.libllama.library import Library
from tallystick.engine.libllama.summary import summarise_engine, summarise_model
from tallystick.engine.libllama.tap import Tap, TapMaker, require_cache
from tallystick.engine.port import (
    ContextSpec,
    EngineSummary,
    ModelSummary,
    Observation,
    Rows,
    Watch,
)
from tallystick.engine.ring import LayerRing
from tallystick.errors import IncomparableError, InputError, RunFailedError

_LLAMA_DECODE_NO_ROOM = 1


def has_cache(library: Library, model: Any) -> bool:
    """Tell whether the model has attention, and so a KV cache: all but purely recurrent ones."""
    return not library.lib.llama_model_is_recurrent(model)


class LlamaContext:
    """One context; ``sequential`` contexts are re-read after they are made (seed 2.1)."""

    def __init__(
        self,
        library: Library,
        model: Any,
        vocabulary: int,
        spec: ContextSpec,
        tap: Tap | None,
        ring: LayerRing | None,
    ) -> None:
        self._library = library
        self._ring = ring
        self._ffi, self._lib = library.ffi, library.lib
        self._vocabulary = vocabulary
        self._tap = tap  # keeps the callback alive
        params = self._lib.llama_context_default_params()
        params.n_ctx = spec.cells
        params.n_batch = params.n_ubatch = spec.max_rows
        params.n_seq_max = spec.sequences
        params.n_outputs_max_per_seq = spec.max_rows
        params.n_threads = params.n_threads_batch = spec.threads
        params.flash_attn_type = self._lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.type_k = params.type_v = self._lib.GGML_TYPE_F16
        params.offload_kqv = params.op_offload = False
        # One stream for all sequences, so that scratch rows share the batch of the real row.
        params.kv_unified = True
        params.swa_full = True
        params.no_perf = True
        if tap is not None:
            params.cb_eval = tap.callback
            params.cb_eval_user_data = tap.user_data
        self._context = self._lib.llama_init_from_model(model, params)
        if self._context == self._ffi.NULL:
            raise RunFailedError(
                "the engine could not open a context",
                found=library.complaint(),
                hint="is there enough memory for the context?",
            )
        self._memory = self._lib.llama_get_memory(self._context)
        self._check(spec)
        self._allocate(spec.max_rows)

    def _check(self, spec: ContextSpec) -> None:
        """What the engine made must be what was asked for: anything else is another schedule."""
        lib, context = self._lib, self._context
        for name, expected, found in (
            ("n_ctx", spec.cells, lib.llama_n_ctx(context)),
            ("n_batch", spec.max_rows, lib.llama_n_batch(context)),
            ("n_ubatch", spec.max_rows, lib.llama_n_ubatch(context)),
            ("n_seq_max", spec.sequences, lib.llama_n_seq_max(context)),
            ("n_threads", spec.threads, lib.llama_n_threads(context)),
            ("n_threads_batch", spec.threads, lib.llama_n_threads_batch(context)),
        ):
            if expected != found:
                raise IncomparableError(
                    "the engine opened another context than the policy asks for",
                    expected=f"{name} = {expected}",
                    found=f"{name} = {found}",
                )

    def _allocate(self, rows: int) -> None:
        ffi = self._ffi
        self._tokens = np.zeros(rows, np.int32)
        self._positions = np.zeros(rows, np.int32)
        self._counts = np.ones(rows, np.int32)
        self._sequences = np.zeros(rows, np.int32)
        self._outputs = np.zeros(rows, np.int8)
        first = ffi.cast("int32_t *", self._sequences.ctypes.data)
        self._sequence_pointers = ffi.new("int32_t *[]", [first + i for i in range(rows)])
        batch = ffi.new("llama_batch *")
        batch.token = ffi.cast("int32_t *", self._tokens.ctypes.data)
        batch.pos = ffi.cast("int32_t *", self._positions.ctypes.data)
        batch.n_seq_id = ffi.cast("int32_t *", self._counts.ctypes.data)
        batch.seq_id = self._sequence_pointers
        batch.logits = ffi.cast("int8_t *", self._outputs.ctypes.data)
        self._batch = batch

    def evaluate(self, rows: Rows) -> None:
        n = len(rows.tokens)
        self._tokens[:n] = rows.tokens
        self._positions[:n] = rows.positions
        self._sequences[:n] = rows.sequences
        self._outputs[:n] = rows.outputs
        self._batch.n_tokens = n
        if self._ring is not None:
            self._ring.begin()
        status = self._lib.llama_decode(self._context, self._batch[0])
        if status != 0:
            why = (
                "no room in the KV cache" if status == _LLAMA_DECODE_NO_ROOM else f"status {status}"
            )
            raise RunFailedError(
                "the engine could not evaluate a batch", found=f"{why}; {self._library.complaint()}"
            )
        if self._ring is not None:
            self._ring.end()

    def logits(self, row: int) -> memoryview:
        pointer = self._lib.llama_get_logits_ith(self._context, row)
        if pointer == self._ffi.NULL:
            raise RunFailedError("the engine has no logits for a row that asked for them")
        return memoryview(self._ffi.buffer(pointer, self._vocabulary * 4))

    def forget(self, sequence: int) -> None:
        if not self._lib.llama_memory_seq_rm(self._memory, sequence, 0, -1):
            raise RunFailedError("the engine could not drop a scratch sequence")

    def close(self) -> None:
        if self._context is not None:
            self._lib.llama_free(self._context)
            self._context = None


class ObservedLlamaContext(LlamaContext):
    """A context with a tap of its own on it."""

    def __init__(
        self,
        library: Library,
        model: Any,
        vocabulary: int,
        spec: ContextSpec,
        tap: Tap,
        ring: LayerRing | None,
    ) -> None:
        super().__init__(library, model, vocabulary, spec, tap, ring)
        self._observer = tap
        # Opening a context may evaluate nothing of ours: forget what it left.
        tap.take()
        self._writes_before = tap.cache_writes
        self._has_cache = has_cache(library, model)

    def observation(self) -> Observation:
        seen = self._observer.take()
        if self._has_cache:
            require_cache(self._observer.cache_writes - self._writes_before)
        return seen


class LlamaModel:
    """A model mapped from an open file, and what makes the taps that observe its contexts."""

    def __init__(self, library: Library, handle: Any, taps: TapMaker) -> None:
        self._taps = taps
        self._ring: LayerRing | None = None
        self._library = library
        self._ffi, self._lib = library.ffi, library.lib
        self._handle = handle
        self._vocab = self._lib.llama_model_get_vocab(handle)
        self.layers: int = self._lib.llama_model_n_layer(handle)
        self.embedding: int = self._lib.llama_model_n_embd(handle)
        self.vocabulary: int = self._lib.llama_vocab_n_tokens(self._vocab)
        self.context_train: int = self._lib.llama_model_n_ctx_train(handle)
        self.adds_bos: bool = self._lib.llama_vocab_get_add_bos(self._vocab)

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> tuple[int, ...]:
        size = len(text) + 16
        buffer = self._ffi.new("llama_token[]", size)
        count = self._lib.llama_tokenize(
            self._vocab, text, len(text), buffer, size, add_special, parse_special
        )
        if count < 0:
            raise RunFailedError("the tokenizer needs more room than one id a byte")
        return tuple(buffer[0:count])

    def piece(self, token: int, *, special: bool) -> bytes:
        size = 256
        while True:
            buffer = self._ffi.new("char[]", size)
            count = self._lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
            if count >= 0:
                return bytes(self._ffi.buffer(buffer, count))
            size = -count

    def is_end(self, token: int) -> bool:
        return bool(self._lib.llama_vocab_is_eog(self._vocab, token))

    def special_piece(self, name: Literal["bos", "eos"]) -> str:
        token = getattr(self._lib, f"llama_vocab_{name}")(self._vocab)
        return "" if token < 0 else self.piece(token, special=True).decode("utf-8", "replace")

    def chat_template(self) -> str | None:
        pointer = self._lib.llama_model_chat_template(self._handle, self._ffi.NULL)
        if pointer == self._ffi.NULL:
            return None
        text: bytes = self._ffi.string(pointer)
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError:
            raise InputError(
                "the model's chat template is not text", expected="UTF-8", hint="run without --chat"
            ) from None

    def move_layers(self, ring: LayerRing) -> None:
        """Let ``ring`` move the layers while contexts that are opened from now on evaluate."""
        self._ring = ring

    def open_context(self, spec: ContextSpec) -> LlamaContext:
        ring = self._ring
        # Nothing is watched then but where layers end.
        tap = None if ring is None else self._taps.open(Watch(), ring)
        return LlamaContext(self._library, self._handle, self.vocabulary, spec, tap, ring)

    def open_observed(self, spec: ContextSpec, watch: Watch) -> ObservedLlamaContext:
        tap = self._taps.open(watch, self._ring)
        return ObservedLlamaContext(
            self._library, self._handle, self.vocabulary, spec, tap, self._ring
        )

    def summary(self) -> ModelSummary:
        return summarise_model(self._library, self._handle)

    def engine_summary(self) -> EngineSummary:
        return summarise_engine(self._library)

    def close(self) -> None:
        if self._handle is not None:
            self._lib.llama_model_free(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open_model(
    library: Library,
    descriptor: int,
    taps: TapMaker,
    on_progress: Callable[[float], None] | None = None,
) -> LlamaModel:
    """Load the model that ``descriptor`` refers to; ``taps`` observe its contexts.

    Raises IncomparableError for an architecture that the engine does not know and InputError for
    a file that it cannot load. The whole process may die instead: the supervisor handles that.
    """
    lib = library.lib
    params = lib.llama_model_default_params()
    params.n_gpu_layers = 0
    params.split_mode = lib.LLAMA_SPLIT_MODE_NONE
    params.load_mode = lib.LLAMA_LOAD_MODE_MMAP
    params.lazy_mode = lib.LLAMA_LAZY_MODE_OFF
    # Repacked weights are another kernel with other bits.
    params.use_extra_bufts = False
    keep = None
    if on_progress is not None:

        def report(done: float, _user: object) -> bool:
            on_progress(done)
            return True

        keep = library.ffi.callback("bool(float, void *)", report)  # alive during the load
        params.progress_callback = keep
    handle = _load(lib, descriptor, params)
    if handle == library.ffi.NULL:
        text = library.complaint()
        if "unknown model architecture" in text:
            raise IncomparableError(
                "the engine does not know this model's architecture", found=text
            )
        raise InputError("the engine cannot load this model file", found=text)
    if not lib.llama_model_has_decoder(handle) or lib.llama_model_has_encoder(handle):
        raise IncomparableError(
            "only decoder-only models can be run", found="a model with an encoder"
        )
    if lib.llama_model_is_diffusion(handle):
        raise IncomparableError("only left-to-right models can be run", found="a diffusion model")
    return LlamaModel(library, handle, taps)


def _load(lib: Any, descriptor: int, params: Any) -> Any:
    """Load by descriptor: the file that was hashed is the file that is mapped.

    In a sandbox there is no path to it.
    """
    for folder in ("/proc/self/fd", "/dev/fd"):
        if os.path.isdir(folder):
            return lib.llama_model_load_from_file(f"{folder}/{descriptor}".encode(), params)
    # A stream of the C library's, which has a buffer. What cffi makes of a Python file has none,
    # and the engine reads the header in pieces of a few bytes: a quarter of a million calls.
    file = lib.fdopen(os.dup(descriptor), b"rb")
    try:
        return lib.llama_model_load_from_file_ptr(file, params)
    finally:
        lib.fclose(file)
