"""The compiled observer: rows copied by engine/observer.c, the rest still in Python."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tallystick.engine.libllama.library import Library
from tallystick.engine.libllama.python_tap import PythonTap, PythonTaps
from tallystick.engine.libllama.tap import Sights, Tap, TapMaker, check_graph
from tallystick.engine.port import LayerRows, Observation, Watch
from tallystick.errors import IncomparableError

_TAP_DECLARATIONS = """
struct tap_record { int64_t layer; int64_t rows; int64_t row_bytes; int64_t offset; };
struct tap {
    int32_t op_flash_attention;
    int32_t op_set_rows;
    int64_t flash_nodes;
    int64_t cache_nodes;
    int64_t cache_nodes_not_f16;
    int64_t bad_rows;
    int64_t n_records;
    int64_t max_records;
    struct tap_record * records;
    char * bytes;
    int64_t n_bytes;
    int64_t max_bytes;
};
int64_t tap_abi(void);
bool tap_callback(struct ggml_tensor * t, bool ask, void * user_data);
void tap_free(struct tap * tap);
"""


class CompiledTap:
    """Rows copied by C; ``take`` hands out views that live until the next evaluation."""

    def __init__(self, library: Library, lib: Any) -> None:
        ffi = library.ffi
        self._ffi = ffi
        self._tap = ffi.gc(ffi.new("struct tap *"), lib.tap_free)
        self._tap.op_flash_attention = library.operations["FLASH_ATTN_EXT"]
        self._tap.op_set_rows = library.operations["SET_ROWS"]
        self.callback = lib.tap_callback
        self.user_data = self._tap
        self.cache_writes = 0

    def take(self) -> Observation:
        tap = self._tap
        self.cache_writes = int(tap.cache_nodes)
        check_graph(Sights(tap.flash_nodes, tap.cache_nodes_not_f16, tap.bad_rows, 0))
        return Observation(self._layers(tap), (), ())

    def _layers(self, tap: Any) -> Sequence[LayerRows]:
        data = (
            memoryview(self._ffi.buffer(tap.bytes, tap.n_bytes)) if tap.n_bytes else memoryview(b"")
        )
        records = []
        for i in range(tap.n_records):
            r = tap.records[i]
            end = r.offset + r.rows * r.row_bytes
            records.append(LayerRows(r.layer, r.rows, data[r.offset : end]))
        tap.n_records = 0
        tap.n_bytes = 0
        return records


class CompiledTaps:
    """Makes taps with the compiled observer at ``path``."""

    kind: Literal["compiled"] = "compiled"

    def __init__(self, library: Library, path: Path) -> None:
        ffi = library.ffi
        ffi.cdef(_TAP_DECLARATIONS, override=True)
        self._lib: Any = ffi.dlopen(os.fspath(path))
        if self._lib.tap_abi() != ffi.sizeof("struct ggml_tensor") * 1000 + ffi.sizeof(
            "struct tap"
        ):
            raise IncomparableError("the compiled observer was built for another layout")

    def open(self, library: Library, watch: Watch) -> Tap:
        if watch == Watch(rows="layers"):
            return CompiledTap(library, self._lib)
        return PythonTap(library, watch)


def open_taps(library: Library, compiled: Path | None) -> TapMaker:
    """Return the compiled taps when a compiled observer is given, else the Python ones."""
    if compiled is not None:
        # A file that a power cut or a full disk damaged is no reason to fail: it is only quicker.
        with contextlib.suppress(OSError):
            return CompiledTaps(library, compiled)
    return PythonTaps()
