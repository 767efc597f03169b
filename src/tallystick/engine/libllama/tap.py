"""The observer: the engine's scheduler callback that reads layer-output rows.

Two taps with one result: `CompiledTap` (engine/observer.c) and `PythonTap`. Both also check, in
the graph itself, what has no getter: flash attention off and a KV cache of 16-bit floats. What
nobody saw is not checked: `require_cache` demands that a write into the cache was recognised.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tallystick.engine.libllama.library import Library
from tallystick.engine.port import LayerRows
from tallystick.errors import IncomparableError, RunFailedError

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

_LAYER_OUTPUT = b"l_out-"
_CACHES = (b"cache_k_l", b"cache_v_l")


class CompiledTap:
    """Rows copied by C; ``take`` hands out views that live until the next evaluation."""

    kind = "compiled"

    def __init__(self, library: Library, path: Path) -> None:
        ffi = library.ffi
        ffi.cdef(_TAP_DECLARATIONS)
        self._ffi = ffi
        self._lib: Any = ffi.dlopen(os.fspath(path))
        if self._lib.tap_abi() != ffi.sizeof("struct ggml_tensor") * 1000 + ffi.sizeof(
            "struct tap"
        ):
            raise IncomparableError("the compiled observer was built for another layout")
        self._tap = ffi.gc(ffi.new("struct tap *"), self._lib.tap_free)
        self._tap.op_flash_attention = library.operations["FLASH_ATTN_EXT"]
        self._tap.op_set_rows = library.operations["SET_ROWS"]
        self.callback = self._lib.tap_callback
        self.user_data = self._tap
        self.cache_writes = 0

    def take(self) -> Sequence[LayerRows]:
        tap = self._tap
        self.cache_writes = int(tap.cache_nodes)
        check_graph(tap.flash_nodes, tap.cache_nodes_not_f16, tap.bad_rows)
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


class PythonTap:
    """The same in Python: slower by an interpreter call per graph node, equal in every byte."""

    kind = "python"

    def __init__(self, library: Library) -> None:
        ffi = library.ffi
        self._ffi = ffi
        self._records: list[LayerRows] = []
        self._flash_nodes = 0
        self._not_f16 = 0
        self._bad_rows = 0
        self.cache_writes = 0
        flash = library.operations["FLASH_ATTN_EXT"]
        set_rows = library.operations["SET_ROWS"]
        mask = (1 << 8 * len(_LAYER_OUTPUT)) - 1
        wanted = int.from_bytes(_LAYER_OUTPUT, "little")  # as every pinned build is

        def callback(tensor: Any, ask: bool, _user: Any) -> bool:
            if not ask:
                self._keep(tensor)
                return True
            op = tensor.op
            if op == set_rows and self._name(tensor).startswith(_CACHES):
                self.cache_writes += 1
                self._not_f16 += tensor.type != 1
            elif op == flash:
                self._flash_nodes += 1
            # One number decides: this runs once for each of a graph's nodes.
            return bool(tensor.name_head & mask == wanted)

        # Kept: the cast pointer does not keep it alive.
        self._function = ffi.callback("bool(struct tensor_head *, bool, void *)", callback)
        self.callback = ffi.cast("eval_callback", self._function)
        self.user_data = ffi.NULL

    def _name(self, tensor: Any) -> bytes:
        start = self._ffi.cast("char *", self._ffi.addressof(tensor, "name_head"))
        name: bytes = self._ffi.string(start, 64)
        return name

    def _keep(self, tensor: Any) -> None:
        row_bytes = tensor.ne[0] * 4
        rows = tensor.ne[1]
        plain = (
            tensor.type == 0
            and tensor.ne[2] == 1
            and tensor.ne[3] == 1
            and tensor.nb[0] == 4
            and tensor.nb[1] == row_bytes
            and tensor.data != self._ffi.NULL
        )
        if not plain:
            self._bad_rows += 1
            return
        data = self._ffi.buffer(tensor.data, rows * row_bytes)[:]
        layer = int(self._name(tensor)[len(_LAYER_OUTPUT) :])
        self._records.append(LayerRows(layer, rows, memoryview(data)))

    def take(self) -> Sequence[LayerRows]:
        check_graph(self._flash_nodes, self._not_f16, self._bad_rows)
        records, self._records = self._records, []
        return records


def check_graph(flash_nodes: int, cache_nodes_not_f16: int, bad_rows: int) -> None:
    """Raise when a graph shows what the context was opened without, or unreadable rows."""
    if flash_nodes:
        raise IncomparableError(
            "the engine evaluated flash attention although it was turned off",
            expected="no FLASH_ATTN_EXT node",
            found=f"{flash_nodes} nodes",
        )
    if cache_nodes_not_f16:
        raise IncomparableError(
            "the KV cache does not hold 16-bit floats",
            expected="F16 cache tensors",
            found=f"{cache_nodes_not_f16} other writes",
        )
    if bad_rows:
        raise RunFailedError(
            "a layer output is not a plain matrix of floats", found=f"{bad_rows} tensors"
        )


def require_cache(writes: int) -> None:
    """Raise when no write into a KV cache was recognised in the graphs of a model that has one."""
    if writes <= 0:
        raise IncomparableError(
            "the type of the KV cache cannot be seen in the engine's graph",
            expected="a SET_ROWS node into cache_k_l or cache_v_l",
            found="none",
            hint="this architecture names its cache in a way that is not known",
        )


def open_tap(library: Library, compiled: Path | None) -> CompiledTap | PythonTap:
    """Return the compiled tap when a compiled observer is given, else the Python one."""
    if compiled is not None:
        # A file that a power cut or a full disk damaged is no reason to fail: it is only quicker.
        with contextlib.suppress(OSError):
            return CompiledTap(library, compiled)
    return PythonTap(library)
