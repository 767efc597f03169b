"""What a tensor of the engine's graph is, as the port's types.

A node is described by packed bytes, of its tensor and of those it is made from: equal bytes are
the same node, and give the same object.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from tallystick.engine.libllama.library import Library
from tallystick.engine.libllama.tap import MAX_KEPT
from tallystick.engine.port import GraphNode, GraphTensor

_NAME_BYTES: Final = 64
# Type, operation, four extents, four strides, name: `struct described` of engine/observer.h.
_DESCRIBED: Final = struct.Struct(f"=2i4q4Q{_NAME_BYTES}s")
DESCRIBED_BYTES: Final = _DESCRIBED.size


class Describer:
    """Describes nodes; what it made is remembered, up to a bound."""

    def __init__(self, library: Library) -> None:
        self._ffi, self._lib = library.ffi, library.lib
        self._operations = {number: name for name, number in library.operations.items()}
        self._types: dict[int, str] = {}
        self._nodes: dict[bytes, GraphNode] = {}
        self._tensors: dict[bytes, GraphTensor] = {}
        self._scratch = self._ffi.new("struct ggml_tensor *")

    def pack(self, tensor: Any) -> bytes:
        """Return what describes ``tensor`` (``struct ggml_tensor *``)."""
        name = self._ffi.string(tensor.name, _NAME_BYTES)
        return _DESCRIBED.pack(tensor.type, tensor.op, *tensor.ne, *tensor.nb, name)

    def node(self, packed: bytes) -> GraphNode:
        """Return the node whose tensor and then sources ``packed`` describes."""
        found = self._nodes.get(packed)
        if found is None:
            if len(self._nodes) >= MAX_KEPT:
                self._nodes.clear()
                self._tensors.clear()
            made, *sources = (
                self._tensor(packed[at : at + DESCRIBED_BYTES])
                for at in range(0, len(packed), DESCRIBED_BYTES)
            )
            found = self._nodes[packed] = GraphNode(made, tuple(sources))
        return found

    def _tensor(self, packed: bytes) -> GraphTensor:
        found = self._tensors.get(packed)
        if found is None:
            found = self._tensors[packed] = self._described(packed)
        return found

    def _described(self, packed: bytes) -> GraphTensor:
        kind, op, x, y, z, w, *strides, name = _DESCRIBED.unpack(packed)
        if kind not in self._types:
            self._types[kind] = self._ffi.string(self._lib.ggml_type_name(kind)).decode("ascii")
        scratch = self._scratch
        scratch.type, scratch.ne, scratch.nb = kind, (x, y, z, w), strides
        return GraphTensor(
            name=name.rstrip(b"\0").decode("utf-8", "backslashreplace"),
            op=self._operations[op],
            type=self._types[kind],
            shape=(x, y, z, w),
            n_bytes=self._lib.ggml_nbytes(scratch),
        )
