"""The block with which chat templates mark replies for training: rendered as what it holds."""

from __future__ import annotations

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser


class GenerationBlocks(Extension):
    """``{% generation %} ... {% endgeneration %}`` renders as what is inside."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it for instances

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """Return the block's body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
