"""The observer in Python: the reference, slower by an interpreter call for each graph node.

Graphs hardly change from step to step, so what was made of a node is kept and used again as long
as every byte of its description, and of its sources' descriptions, is the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from tallystick.engine.libllama.describe import Describer
from tallystick.engine.libllama.library import Library
from tallystick.engine.libllama.tap import (
    MAX_KEPT,
    MAX_READ_ELEMENTS,
    LayerListener,
    Sights,
    check_graph,
)
from tallystick.engine.port import LayerRows, NodeReading, Observation, RouteRows, Watch

_LAYER_NUMBER: Final = rb"(0|[1-9][0-9]{0,3})"
_LAYER_OUTPUT: Final = re.compile(rb"l_out-" + _LAYER_NUMBER)
_ROUTES: Final = re.compile(rb"ffn_moe_topk-" + _LAYER_NUMBER)
_CACHES: Final = (b"cache_k_l", b"cache_v_l")
_F32, _F16, _I32 = 0, 1, 26
_MAX_SOURCES: Final = 10
_NAME_BYTES: Final = 64

# What is read of a node's output once it is computed; a sum of these.
_ROWS, _IDS, _PRODUCT = 1, 2, 4
_BOUNDARY: Final = 8  # nothing is read: the end of a layer
_Check: TypeAlias = Literal["nothing", "flash", "cache", "other cache"]


@dataclass(frozen=True, slots=True)
class _Kept:
    """A node as it was seen, and its sources' bytes then; ``reading`` is None without elements."""

    reading: NodeReading | None
    sources: tuple[tuple[Any, bytes], ...]
    roles: int
    check: _Check


class PythonTap:
    """One context's tap."""

    def __init__(
        self,
        library: Library,
        describer: Describer,
        watch: Watch,
        ring: LayerListener | None,
    ) -> None:
        self._ffi = library.ffi
        self._ring = ring
        self._watch = watch
        self._describer = describer
        self._kept: dict[bytes, _Kept] = {}
        self._roles = 0  # of the node that was asked about last
        self._layers: list[LayerRows] = []
        self._routes: list[RouteRows] = []
        self._nodes: list[NodeReading] = []
        self._failure: BaseException | None = None
        self._flash_nodes = self._not_f16 = self._bad_rows = self._unreadable = 0
        self.cache_writes = 0
        self._flash = library.operations["FLASH_ATTN_EXT"]
        self._set_rows = library.operations["SET_ROWS"]
        self._product = library.operations["MUL_MAT"]
        self._wants_ids = watch.routes == "experts" or watch.graph == "products"
        quick = watch.graph == "none"
        # Kept: the cast pointer does not keep it alive.
        self._function = self._ffi.callback(
            f"bool(struct {'tensor_head' if quick else 'ggml_tensor'} *, bool, void *)",
            self._quick_callback() if quick else self._graph_callback,
            error=False,
            onerror=self._failed,
        )
        self.callback = self._ffi.cast("eval_callback", self._function)
        self.user_data = self._ffi.NULL

    def take(self) -> Observation:
        if self._failure is not None:
            raise self._failure
        check_graph(Sights(self._flash_nodes, self._not_f16, self._bad_rows, self._unreadable))
        taken = Observation(self._layers, self._routes, self._nodes)
        self._layers, self._routes, self._nodes = [], [], []
        return taken

    def _failed(self, _kind: object, failure: BaseException, _traceback: object) -> None:
        # An exception must not pass through the engine: it is kept, and raised by `take`.
        self._failure = failure

    def _quick_callback(self) -> Any:
        """Return the callback for rows and routes alone: it looks at no node for longer than it
        has to, as it runs once for each."""
        flash, set_rows = self._flash, self._set_rows
        # One number decides: little-endian, as every pinned build is.
        mask = (1 << 48) - 1
        rows = self._watch.rows == "layers" or self._ring is not None
        layers = int.from_bytes(b"l_out-", "little") if rows else -1
        routes = int.from_bytes(b"ffn_moe_", "little") if self._watch.routes == "experts" else -1
        roles_of, cast = self._roles_of, self._ffi.cast

        def callback(tensor: Any, ask: bool, _user: Any) -> bool:
            if not ask:
                self._read(cast("struct ggml_tensor *", tensor))
                return True
            op = tensor.op
            if op in (set_rows, flash):
                self._count(self._check_of(cast("struct ggml_tensor *", tensor)))
            head = tensor.name_head
            if head & mask != layers and head != routes:
                return False
            self._roles = roles_of(cast("struct ggml_tensor *", tensor))
            return self._roles != 0

        return callback

    def _graph_callback(self, tensor: Any, ask: bool, _user: Any) -> bool:
        if self._failure is not None:
            return False
        if not ask:
            self._read(tensor)
            return True
        raw = self._ffi.buffer(tensor)[:]
        kept = self._kept.get(raw)
        if kept is None or any(now[:] != then for now, then in kept.sources):
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            kept = self._kept[raw] = self._keep(tensor)
        if kept.reading is not None:
            self._nodes.append(kept.reading)
        self._count(kept.check)
        self._roles = kept.roles
        return kept.roles != 0

    def _keep(self, tensor: Any) -> _Kept:
        sources = [source for source in tensor.src[0:_MAX_SOURCES] if source != self._ffi.NULL]
        reading = None
        # Recurrent layers gather state caches that are still empty: nothing is computed.
        if 0 not in tensor.ne[0:4]:
            packed = b"".join(map(self._describer.pack, (tensor, *sources)))
            reading = NodeReading(self._describer.node(packed), None)
        buffers = [self._ffi.buffer(source) for source in sources]
        return _Kept(
            reading,
            tuple((buffer, buffer[:]) for buffer in buffers),
            self._roles_of(tensor),
            self._check_of(tensor),
        )

    def _name(self, tensor: Any) -> bytes:
        name: bytes = self._ffi.string(tensor.name, _NAME_BYTES)
        return name

    def _roles_of(self, tensor: Any) -> int:
        """Tell what is to be read of ``tensor``: nothing where its form is not the expected one."""
        watch, roles = self._watch, 0
        x, y, z, w = tensor.ne[0:4]
        strides = tuple(tensor.nb[0:4])
        if watch.graph == "products" and tensor.op == self._product and x * y * z * w:
            fine = tensor.type == _F32 and strides == (4, 4 * x, 4 * x * y, 4 * x * y * z)
            self._unreadable += not fine
            roles += _PRODUCT * fine
        name = self._name(tensor)
        is_output = _LAYER_OUTPUT.fullmatch(name) is not None
        roles += _BOUNDARY * (is_output and self._ring is not None)
        if watch.rows == "layers" and is_output:
            fine = tensor.type == _F32 and (z, w) == (1, 1) and strides[:2] == (4, 4 * x)
            self._bad_rows += not fine
            roles += _ROWS * fine
        if self._wants_ids and _ROUTES.fullmatch(name):
            fine = tensor.type == _I32 and (z, w) == (1, 1) and strides[0] == 4
            fine = fine and tensor.src[0] != self._ffi.NULL
            self._unreadable += not fine
            roles += _IDS * fine
        return roles

    def _check_of(self, tensor: Any) -> _Check:
        if tensor.op == self._flash:
            return "flash"
        if tensor.op == self._set_rows and self._name(tensor).startswith(_CACHES):
            return "cache" if tensor.type == _F16 else "other cache"
        return "nothing"

    def _count(self, check: _Check) -> None:
        if check == "nothing":
            return
        self._flash_nodes += check == "flash"
        self.cache_writes += check != "flash"
        self._not_f16 += check == "other cache"

    def _read(self, tensor: Any) -> None:
        self._read_output(tensor)
        if self._roles & _BOUNDARY and self._ring is not None:
            self._ring.boundary(int(_matched(_LAYER_OUTPUT, self._name(tensor))))

    def _read_output(self, tensor: Any) -> None:
        roles = self._roles
        width, rows, z, w = tensor.ne[0:4]
        elements = width * rows * z * w
        if elements and tensor.data == self._ffi.NULL:
            self._bad_rows += bool(roles & _ROWS)
            self._unreadable += bool(roles & ~(_ROWS | _BOUNDARY))
            return
        if roles & _ROWS:
            data = self._bytes(tensor.data, 4 * elements)
            layer = int(_matched(_LAYER_OUTPUT, self._name(tensor)))
            self._layers.append(LayerRows(layer, rows, memoryview(data)))
        if roles & _IDS:
            base, step = self._ffi.cast("char *", tensor.data), tensor.nb[1]
            ids = b"".join(self._bytes(base + step * i, 4 * width) for i in range(rows))
            self._keep_ids(tensor, ids)
        if roles & _PRODUCT:
            data = self._bytes(tensor.data, 4 * min(MAX_READ_ELEMENTS, elements))
            self._nodes[-1] = NodeReading(self._nodes[-1].node, data)

    def _bytes(self, data: Any, size: int) -> bytes:
        read: bytes = self._ffi.buffer(data, size)[:] if size else b""
        return read

    def _keep_ids(self, tensor: Any, ids: bytes) -> None:
        used, rows = tensor.ne[0:2]
        if self._watch.routes == "experts":
            layer = int(_matched(_ROUTES, self._name(tensor)))
            experts = tensor.src[0].ne[0]
            self._routes.append(RouteRows(layer, rows, used, experts, memoryview(ids)))
        if self._watch.graph == "products" and ids:
            self._nodes[-1] = NodeReading(self._nodes[-1].node, ids)


def _matched(pattern: re.Pattern[bytes], name: bytes) -> bytes:
    found = pattern.fullmatch(name)
    assert found is not None
    return found[1]


class PythonTaps:
    """Makes `PythonTap`s."""

    kind: Literal["python"] = "python"

    def __init__(self, library: Library) -> None:
        self._library = library
        self._describer = Describer(library)

    def open(self, watch: Watch, layers: LayerListener | None = None) -> PythonTap:
        return PythonTap(self._library, self._describer, watch, layers)
