"""The graph observer: every node that the scheduler evaluates, and small readings of some.

The scheduler asks about each node before it is evaluated; there its metadata is recorded. Where
the answer is yes it stops after the node, and its output can be read before anything overwrites
it. Graphs hardly change from step to step, so what was made of a node is kept and used again as
long as every byte of its description, and of its sources' descriptions, is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tallystick.engine.libllama.library import Library
from tallystick.engine.libllama.tap import check_graph
from tallystick.engine.port import GraphNode, GraphTensor, NodeReading, TraceReads
from tallystick.errors import RunFailedError

MAX_READ_ELEMENTS: Final = 64
_ROUTES: Final = "ffn_moe_topk-"
_CACHES: Final = ("cache_k_l", "cache_v_l")
_MAX_KEPT: Final = 65536
_MAX_SOURCES: Final = 10


@dataclass(frozen=True, slots=True)
class _Kept:
    """A node as it was seen, its sources' bytes then, and how many bytes of it are to be read."""

    reading: NodeReading
    sources: tuple[tuple[Any, bytes], ...]
    wanted: bool


class GraphTap:
    """Records nodes; ``take`` hands them out once an evaluation is over."""

    def __init__(self, library: Library, reads: TraceReads) -> None:
        self._ffi, self._lib = library.ffi, library.lib
        self._operations = {number: name for name, number in library.operations.items()}
        self._types: dict[int, str] = {}
        self._reads = reads
        self._kept: dict[bytes, _Kept] = {}
        self._readings: list[NodeReading] = []
        self._failure: BaseException | None = None
        self._flash_nodes = 0
        self._not_f16 = 0
        self.cache_writes = 0
        self.callback = self._ffi.callback(
            "bool(struct ggml_tensor *, bool, void *)", self._on_node
        )
        self.user_data = self._ffi.NULL

    def take(self) -> Sequence[NodeReading]:
        """Return the nodes since the last call. Raises what went wrong with one of them."""
        if self._failure is not None:
            raise self._failure
        check_graph(self._flash_nodes, self._not_f16, 0)
        readings, self._readings = self._readings, []
        return readings

    def _on_node(self, tensor: Any, ask: bool, _user: Any) -> bool:
        # An exception must not pass through the engine: it is kept, and raised by `take`.
        try:
            if self._failure is not None:
                return False
            if ask:
                return self._ask(tensor)
            self._read(tensor)
        except BaseException as failure:
            self._failure = failure
            return False
        return True

    def _ask(self, tensor: Any) -> bool:
        raw = self._ffi.buffer(tensor)[:]
        kept = self._kept.get(raw)
        if kept is None or any(now[:] != then for now, then in kept.sources):
            # Recurrent layers gather state caches that are still empty: nothing is computed.
            if 0 in tensor.ne[0:4]:
                return False
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            kept = self._kept[raw] = self._describe(tensor)
        self._readings.append(kept.reading)
        return kept.wanted

    def _describe(self, tensor: Any) -> _Kept:
        sources = [source for source in tensor.src[0:_MAX_SOURCES] if source != self._ffi.NULL]
        node = GraphNode(self._tensor(tensor), tuple(map(self._tensor, sources)))
        made = node.tensor
        self._flash_nodes += made.op == "FLASH_ATTN_EXT"
        if made.op == "SET_ROWS" and made.name.startswith(_CACHES):
            self.cache_writes += 1
            self._not_f16 += made.type != "f16"
        wanted = self._reads == "products" and (
            made.op == "MUL_MAT" or made.name.startswith(_ROUTES)
        )
        if wanted:
            _require_readable(tensor, made)
        buffers = (self._ffi.buffer(source) for source in sources)
        return _Kept(
            NodeReading(node, None), tuple((buffer, buffer[:]) for buffer in buffers), wanted
        )

    def _tensor(self, tensor: Any) -> GraphTensor:
        ffi = self._ffi
        kind = tensor.type
        if kind not in self._types:
            self._types[kind] = ffi.string(self._lib.ggml_type_name(kind)).decode("ascii")
        x, y, z, w = tensor.ne[0:4]
        return GraphTensor(
            name=ffi.string(tensor.name).decode("utf-8", "backslashreplace"),
            op=self._operations[tensor.op],
            type=self._types[kind],
            shape=(x, y, z, w),
            n_bytes=self._lib.ggml_nbytes(tensor),
        )

    def _read(self, tensor: Any) -> None:
        node = self._readings[-1].node
        if tensor.data == self._ffi.NULL:
            raise RunFailedError("the engine keeps no data for a tensor", found=node.tensor.name)
        if node.tensor.op == "MUL_MAT":
            x, y, z, w = node.tensor.shape
            data = self._ffi.buffer(tensor.data, 4 * min(MAX_READ_ELEMENTS, x * y * z * w))[:]
        else:
            base, step = self._ffi.cast("char *", tensor.data), tensor.nb[1]
            width, rows = node.tensor.shape[:2]
            data = b"".join(self._ffi.buffer(base + step * i, 4 * width)[:] for i in range(rows))
        self._readings[-1] = NodeReading(node, data)


def _require_readable(tensor: Any, made: GraphTensor) -> None:
    """Readings are of plain data: contiguous floats, or rows of ids next to each other."""
    x, y, z, w = made.shape
    strides = tuple(tensor.nb[0:4])
    if made.op == "MUL_MAT":
        fine = made.type == "f32" and strides == (4, 4 * x, 4 * x * y, 4 * x * y * z)
    else:
        fine = made.type == "i32" and strides[0] == 4 and (z, w) == (1, 1)
    if not fine:
        raise RunFailedError(
            "a tensor that is to be read has another form than expected",
            expected="contiguous f32" if made.op == "MUL_MAT" else "a matrix of i32",
            found=f"{made.name}: {made.type}",
        )
