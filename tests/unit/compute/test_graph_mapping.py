"""The text of the table of graph operations says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tallystick.compute.graph_mapping import RULES, adapter_mapping_id, mapping_text
from tallystick.compute.graph_ops import CONVERSIONS, LAYOUT_OPS, GraphNode, canonical_operations
from tallystick.compute.operations import NAMES, Operation

USED = 4
#: A node of every kind whose extents are all different.
NODES = {
    "MUL_MAT": GraphNode("MUL_MAT", (7, 5, 6, 4), 999, ((3, 7, 1, 1), (3, 5, 6, 4))),
    "MUL_MAT_ID": GraphNode(
        "MUL_MAT_ID", (7, 4, 5, 1), 999, ((3, 7, 16, 1), (3, 1, 5, 1), (4, 5, 1, 1))
    ),
    "ARGSORT": GraphNode("ARGSORT", (16, 5, 1, 1), 999, ((16, 5, 1, 1),)),
    "TOP_K": GraphNode("TOP_K", (USED, 5, 1, 1), 999, ((16, 5, 1, 1),)),
    "SSM_CONV": GraphNode("SSM_CONV", (8, 5, 2, 1), 999, ((9, 8, 2, 1), (3, 8, 1, 1))),
    "GATED_DELTA_NET": GraphNode(
        "GATED_DELTA_NET", (60, 10, 1, 1), 999, ((2, 3, 5, 7), (2, 3, 5, 7), (4, 6, 5, 7))
    ),
    "SUM_ROWS": GraphNode("SUM_ROWS", (1, 5, 2, 1), 999, ((9, 5, 2, 1),)),
}
ANY = GraphNode("", (3, 5, 7, 11), 999, ((3, 5, 7, 11),))
TERM = re.compile(r"([a-z0-9_]+)\(([^)]*)\)")
SOURCES = {"MUL_MAT": "wx", "MUL_MAT_ID": "wxi", "SSM_CONV": "_k", "GATED_DELTA_NET": "qkv"}


def named_values(node: GraphNode) -> dict[str, int]:
    """Return the numbers that a rule may name."""
    rows = node.shape[1] * node.shape[2] * node.shape[3]
    values = {"rows": rows, "elements": rows * node.shape[0], "bytes": node.n_bytes, "used": USED}
    letters = SOURCES.get(node.op, "s")
    for letter, shape in (("o", node.shape), *zip(letters, node.sources, strict=False)):
        values |= {f"{letter}{axis}": extent for axis, extent in enumerate(shape)}
    return values


def by_rule(rule: str, node: GraphNode) -> tuple[Operation, ...]:
    """Return the operations that the text of a rule gives for ``node``."""
    values = named_values(node)
    found = []
    for name, arguments in TERM.findall(rule):
        numbers = []
        for argument in arguments.split(","):
            product = 1
            for factor in argument.split("*"):
                product *= values[factor]
            numbers.append(product)
        found.append(NAMES[name](*numbers))
    return tuple(found)


def test_the_text_covers_the_table() -> None:
    assert RULES.keys() == {*CONVERSIONS, *LAYOUT_OPS}
    assert list(RULES) == sorted(RULES)
    assert {op for op, rule in RULES.items() if rule == "none"} == LAYOUT_OPS
    assert mapping_text().endswith(";other=refused")


@pytest.mark.parametrize("op", RULES)
def test_a_rule_gives_what_the_code_gives(op: str) -> None:
    node = NODES.get(op) or GraphNode(op, ANY.shape, ANY.n_bytes, ANY.sources)

    assert by_rule(RULES[op], node) == canonical_operations(node, experts_used=USED)


def test_the_id_is_fixed() -> None:
    assert adapter_mapping_id().hex() == MAPPING_ID


MAPPING_ID = "cf1a99439a80080eb0fcfee0e63eb75e9ecef1e58d60b5209c1e47f273059a9c"


def test_the_specification_prints_the_text() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/spec/manifest.md").read_text()

    assert page.rpartition("```text\n")[2].removesuffix("```\n").replace("\n", "") == mapping_text()
