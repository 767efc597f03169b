"""Made-up nodes of an engine's graph, and what is read of them."""

from __future__ import annotations

from tallystick.engine.port import GraphNode, GraphTensor, NodeReading


def node(name: str, op: str, width: int) -> GraphNode:
    """Return a node that makes one row of ``width`` floats of nothing."""
    return GraphNode(GraphTensor(name, op, "f32", (width, 1, 1, 1), 4 * width), ())


def product(name: str, width: int, rows: int) -> GraphNode:
    """Return the product of a matrix of 8 x ``width`` weights and ``rows`` rows."""
    weights = GraphTensor("w", "NONE", "q8_0", (8, width, 1, 1), 8 * width)
    inputs = GraphTensor("x", "NONE", "f32", (8, rows, 1, 1), 32 * rows)
    made = GraphTensor(name, "MUL_MAT", "f32", (width, rows, 1, 1), 4 * width * rows)
    return GraphNode(made, (weights, inputs))


def reading(made: GraphNode, data: bytes) -> NodeReading:
    """Return a reading: ``data`` of a product, nothing of other nodes."""
    return NodeReading(made, data if made.tensor.op == "MUL_MAT" else None)
