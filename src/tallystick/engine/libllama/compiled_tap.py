"""The compiled observer (engine/observer.c): C records, Python makes the port's types of it.

C numbers the graph's different nodes and keeps what describes them; each is turned into a
`GraphNode` once, and after that an evaluation is a list of numbers.
"""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tallystick.engine.libllama.describe import DESCRIBED_BYTES, Describer
from tallystick.engine.libllama.library import Library
from tallystick.engine.libllama.python_tap import PythonTaps
from tallystick.engine.libllama.tap import LayerListener, Sights, TapMaker, check_graph
from tallystick.engine.port import LayerRows, NodeReading, Observation, RouteRows, Watch
from tallystick.errors import IncomparableError, RunFailedError

_TAP_DECLARATIONS: Final = """
struct described { int32_t type; int32_t op; int64_t ne[4]; size_t nb[4]; char name[64]; };
struct node {
    uint64_t hash;
    int64_t first;
    int32_t n_sources;
    int32_t roles;
    int32_t check;
    int32_t has_elements;
};
struct nodes {
    struct node * nodes;
    int64_t n_nodes;
    int64_t max_nodes;
    struct described * tensors;
    int64_t n_tensors;
    int64_t max_tensors;
    int32_t * slots;
    int64_t n_slots;
    int32_t * now;
    int64_t n_now;
    int64_t max_now;
    int32_t * before;
    int64_t n_before;
    int64_t max_before;
};
struct tap_record {
    int32_t kind;
    int32_t layer;
    int64_t rows;
    int64_t row_bytes;
    int64_t experts;
    int64_t place;
    int64_t offset;
};
struct tap {
    int32_t watch;
    int32_t op_flash_attention;
    int32_t op_set_rows;
    int32_t op_product;
    void (*on_layer)(int32_t layer);
    int64_t flash_nodes;
    int64_t cache_nodes;
    int64_t cache_nodes_not_f16;
    int64_t bad_rows;
    int64_t unreadable;
    int64_t no_memory;
    int64_t roles;
    struct tap_record * records;
    int64_t n_records;
    int64_t max_records;
    char * bytes;
    int64_t n_bytes;
    int64_t max_bytes;
    int32_t * listed;
    int64_t n_listed;
    int64_t max_listed;
    struct nodes nodes;
};
int64_t tap_abi(void);
bool tap_callback(struct ggml_tensor * t, bool asks, void * user_data);
bool tap_next(struct tap * tap);
void tap_free(struct tap * tap);
"""
_RECORD: Final = struct.Struct("=2i5q")
_ROWS, _IDS = 1, 2
_ID_BYTES: Final = 4
_WATCH_ROWS, _WATCH_ROUTES, _WATCH_NODES, _WATCH_PRODUCTS = 1, 2, 4, 8


def _watched(watch: Watch) -> int:
    return (
        _WATCH_ROWS * (watch.rows == "layers")
        + _WATCH_ROUTES * (watch.routes == "experts")
        + _WATCH_NODES * (watch.graph == "nodes")
        + _WATCH_PRODUCTS * (watch.graph == "products")
    )


class CompiledTap:
    """One context's tap; the views it hands out live until the next evaluation."""

    def __init__(
        self,
        library: Library,
        lib: Any,
        describer: Describer,
        watch: Watch,
        layers: LayerListener | None,
    ) -> None:
        ffi = library.ffi
        self._ffi, self._lib = ffi, lib
        self._ids_are_routes = watch.routes == "experts"
        self._reads_nodes = watch.graph == "products"
        self._describer = describer
        self._readings: list[NodeReading] = []  # by number, of nodes of which nothing is read
        self._records = b""
        self._layout = _Layout()
        self._listed = b""
        self._nodes: tuple[NodeReading, ...] = ()
        self._tap = ffi.gc(ffi.new("struct tap *"), lib.tap_free)
        self._tap.watch = _watched(watch)
        self._tap.op_flash_attention = library.operations["FLASH_ATTN_EXT"]
        self._tap.op_set_rows = library.operations["SET_ROWS"]
        self._tap.op_product = library.operations["MUL_MAT"]
        if layers is not None:
            self._on_layer = _layer_callback(ffi, layers)
            self._tap.on_layer = self._on_layer
        self.callback = lib.tap_callback
        self.user_data = self._tap
        self.cache_writes = 0

    def take(self) -> Observation:
        tap = self._tap
        self.cache_writes = int(tap.cache_nodes)
        check_graph(Sights(tap.flash_nodes, tap.cache_nodes_not_f16, tap.bad_rows, tap.unreadable))
        if tap.no_memory:
            raise RunFailedError(
                "there is no memory to record what the engine evaluates",
                hint="shorten the prompt or ask for less evidence",
            )
        observation = self._sort(self._data(), self._listed_nodes())
        if self._lib.tap_next(tap):
            self._readings.clear()
            self._listed = b""
        return observation

    def _data(self) -> memoryview:
        """Return what was read. Views keep the tap, whose memory they show, alive."""
        tap = self._tap
        if not tap.n_bytes:
            return memoryview(b"")

        def release(_bytes: object, _owner: object = tap) -> None:
            """Nothing but the reference to the tap."""

        return memoryview(self._ffi.buffer(self._ffi.gc(tap.bytes, release), tap.n_bytes))

    def _buffer(self, start: Any, size: int) -> Any:
        return self._ffi.buffer(start, size) if size else b""

    def _listed_nodes(self) -> tuple[NodeReading, ...]:
        """Return the nodes of this evaluation: the same tuple as long as nothing changes."""
        tap = self._tap
        self._describe_new()
        listed = bytes(self._buffer(tap.listed, 4 * tap.n_listed))
        if listed != self._listed:
            readings = self._readings
            numbers = self._ffi.unpack(tap.listed, tap.n_listed) if listed else ()
            self._listed = listed
            self._nodes = tuple([readings[number] for number in numbers])
        return self._nodes

    def _describe_new(self) -> None:
        nodes, readings = self._tap.nodes, self._readings
        for number in range(len(readings), nodes.n_nodes):
            new = nodes.nodes[number]
            packed = self._buffer(nodes.tensors + new.first, DESCRIBED_BYTES * (1 + new.n_sources))
            readings.append(NodeReading(self._describer.node(bytes(packed)), None))

    def _sort(self, data: memoryview, nodes: tuple[NodeReading, ...]) -> Observation:
        """Sort the readings: layers, routes, and what belongs to nodes."""
        tap = self._tap
        records = bytes(self._buffer(tap.records, _RECORD.size * tap.n_records))
        if records != self._records:
            self._records, self._layout = records, _layout(records)
        layout = self._layout
        layers = [LayerRows(*shape, data[start:end]) for shape, start, end in layout.rows]
        routes: list[RouteRows] = []
        if self._ids_are_routes:
            routes = [RouteRows(*shape, data[start:end]) for shape, start, end in layout.ids]
        if not self._reads_nodes:
            return Observation(layers, routes, nodes)
        read, raw = list(nodes), bytes(data)
        for place, start, end in layout.readings:
            read[place] = NodeReading(read[place].node, raw[start:end])
        return Observation(layers, routes, read)


def _layer_callback(ffi: Any, layers: LayerListener) -> Any:
    def failed(_kind: object, error: BaseException, _traceback: object) -> None:
        layers.failed(error)

    return ffi.callback("void(int32_t)", layers.boundary, onerror=failed)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where an evaluation's readings are among its bytes; most evaluations have the last one's.

    ``rows``: (layer, rows), start, end. ``ids``: (layer, rows, used, experts), start, end.
    ``readings``: the node's place, start, end.
    """

    rows: tuple[tuple[tuple[int, int], int, int], ...] = ()
    ids: tuple[tuple[tuple[int, int, int, int], int, int], ...] = ()
    readings: tuple[tuple[int, int, int], ...] = ()


def _layout(records: bytes) -> _Layout:
    found, ids, readings = [], [], []
    for kind, layer, rows, row_bytes, experts, place, start in _RECORD.iter_unpack(records):
        end = start + rows * row_bytes
        if kind == _ROWS:
            found.append(((layer, rows), start, end))
            continue
        if kind == _IDS:
            ids.append(((layer, rows, row_bytes // _ID_BYTES, experts), start, end))
        if end > start:
            readings.append((place, start, end))
    return _Layout(tuple(found), tuple(ids), tuple(readings))


class CompiledTaps:
    """Makes taps with the compiled observer at ``path``; OSError when it cannot be loaded."""

    kind: Literal["compiled"] = "compiled"

    def __init__(self, library: Library, path: Path) -> None:
        self._library = library
        self._describer = Describer(library)
        ffi = library.ffi
        # Only the first of a library's makers declares anything.
        ffi.cdef(_TAP_DECLARATIONS, override=True)
        self._lib: Any = ffi.dlopen(os.fspath(path))
        sizes = {name: ffi.sizeof(f"struct {name}") for name in _SIZED}
        expected = sizes["ggml_tensor"] * 1_000_000 + sizes["tap"] * 1000
        expected += sizes["tap_record"] + sizes["node"] + sizes["described"]
        if self._lib.tap_abi() != expected:
            raise IncomparableError("the compiled observer was built for another layout")

    def open(self, watch: Watch, layers: LayerListener | None = None) -> CompiledTap:
        return CompiledTap(self._library, self._lib, self._describer, watch, layers)


_SIZED: Final = ("ggml_tensor", "tap", "tap_record", "node", "described")


def open_taps(library: Library, compiled: Path | None) -> TapMaker:
    """Return the compiled taps when a compiled observer is given, else the Python ones."""
    if compiled is not None:
        # A file that a power cut or a full disk damaged is no reason to fail: it is only quicker.
        with contextlib.suppress(OSError):
            return CompiledTaps(library, compiled)
    return PythonTaps(library)
