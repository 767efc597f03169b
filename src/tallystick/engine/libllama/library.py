"""Load the engine library in this (child) process, after checking that it is the pinned one."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Any

import cffi

from tallystick.engine.libllama.cdef import DECLARATIONS
from tallystick.engine.libllama.pins import (
    CONTEXT_DEFAULTS,
    MAX_OPERATION,
    MODEL_DEFAULTS,
    STRUCT_SIZES,
)
from tallystick.errors import IncomparableError

_LOG_LINES = 20
_OFFLOAD_LINES = 100
_LOG_ERROR = 4


class Library:
    """The loaded library: ``ffi``, ``lib``, the operation numbers, and what it said of itself."""

    def __init__(self, path: Path) -> None:
        self.ffi = cffi.FFI()
        self.ffi.cdef(DECLARATIONS)
        self.lib: Any = self.ffi.dlopen(os.fspath(path))
        self.errors: deque[str] = deque(maxlen=_LOG_LINES)
        self._offload: deque[str] = deque(maxlen=_OFFLOAD_LINES)
        self._log_callback = self.ffi.callback("void(int, const char *, void *)", self._on_log)
        self._check_abi()
        self.lib.llama_log_set(self._log_callback, self.ffi.NULL)
        self.lib.llama_backend_init()
        self.operations = self._operations()

    def _on_log(self, level: int, text: Any, _user: Any) -> None:
        line = self.ffi.string(text).decode("utf-8", "replace").strip()
        if level == _LOG_ERROR:
            self.errors.append(line)
        if "offload" in line.lower():
            self._offload.append(line)

    def _check_abi(self) -> None:
        """Struct sizes and default parameters must be those of the pinned build."""
        found = {
            name: self.ffi.sizeof(f"struct {name}")
            for name in STRUCT_SIZES
            if name != "llama_batch"
        }
        found["llama_batch"] = self.ffi.sizeof("llama_batch")
        _compare("struct sizes", STRUCT_SIZES, found)
        for name, expected, params in (
            ("default model parameters", MODEL_DEFAULTS, self.lib.llama_model_default_params()),
            (
                "default context parameters",
                CONTEXT_DEFAULTS,
                self.lib.llama_context_default_params(),
            ),
        ):
            _compare(name, expected, {field: getattr(params, field) for field in expected})

    def _operations(self) -> dict[str, int]:
        names = {}
        for number in range(MAX_OPERATION):
            pointer = self.lib.ggml_op_name(number)
            if pointer != self.ffi.NULL:
                names[self.ffi.string(pointer).decode("ascii", "replace")] = number
        _compare(
            "operation names",
            {"FLASH_ATTN_EXT": True, "SET_ROWS": True, "MUL_MAT": True},
            {name: name in names for name in ("FLASH_ATTN_EXT", "SET_ROWS", "MUL_MAT")},
        )
        return names

    def system_info(self) -> str:
        """Return the CPU features that the library says it uses."""
        text: bytes = self.ffi.string(self.lib.llama_print_system_info())
        return text.decode("ascii", "replace")

    def offload_log(self) -> str:
        """Return the lines that the library logged on layers on a GPU as it loaded models."""
        return "\n".join(self._offload)

    def complaint(self) -> str:
        """Return what the library last logged as errors, for an error message."""
        return "; ".join(list(self.errors)[-3:]) or "it gave no reason"


def _compare(what: str, expected: dict[str, Any], found: dict[str, Any]) -> None:
    for key, value in expected.items():
        if found.get(key) != value:
            raise IncomparableError(
                f"the engine library's {what} are not those of the pinned build",
                expected=f"{key} = {value}",
                found=f"{key} = {found.get(key)}",
                hint="reinstall the pinned xllamacpp",
            )
