"""What a tensor of the engine's graph is, as the port's types."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from tallystick.engine.libllama.library import Library
from tallystick.engine.libllama.tap import MAX_KEPT
from tallystick.engine.port import GraphNode, GraphTensor

_NAME_BYTES: Final = 64


class Describer:
    """Describes nodes: equal nodes give the same object, as long as it is remembered.

    Tensors may be ``struct ggml_tensor`` or ``struct described``: what is looked at, both have.
    """

    def __init__(self, library: Library) -> None:
        self._ffi, self._lib = library.ffi, library.lib
        self._operations = {number: name for name, number in library.operations.items()}
        self._types: dict[int, str] = {}
        self._nodes: dict[GraphNode, GraphNode] = {}
        self._scratch = self._ffi.new("struct ggml_tensor *")

    def node(self, tensor: Any, sources: Iterable[Any]) -> GraphNode:
        """Return the node that makes ``tensor`` from ``sources``."""
        node = GraphNode(self._tensor(tensor), tuple(map(self._tensor, sources)))
        if len(self._nodes) >= MAX_KEPT:
            self._nodes.clear()
        return self._nodes.setdefault(node, node)

    def _tensor(self, tensor: Any) -> GraphTensor:
        ffi = self._ffi
        kind = tensor.type
        if kind not in self._types:
            self._types[kind] = ffi.string(self._lib.ggml_type_name(kind)).decode("ascii")
        x, y, z, w = tensor.ne[0:4]
        scratch = self._scratch
        scratch.type, scratch.ne, scratch.nb = kind, tensor.ne, tensor.nb
        return GraphTensor(
            name=ffi.string(tensor.name, _NAME_BYTES).decode("utf-8", "backslashreplace"),
            op=self._operations[tensor.op],
            type=self._types[kind],
            shape=(x, y, z, w),
            n_bytes=self._lib.ggml_nbytes(scratch),
        )
