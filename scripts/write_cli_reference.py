"""Write docs/cli.md from the program's own help texts; with --check only compare.

Used by ``make docs`` and ``make docs-check``; tests/unit/test_docs.py compares too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from tallystick.cli.main import ENVIRONMENT_PREFIX, PROGRAM, cli

TARGET: Final = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
WIDTH: Final = 92
HEAD: Final = """\
# Command line

Written by `make docs` from the program's own help; edit the help texts, not this file.

Results go to standard output, everything else to standard error. Exit codes:
[spec/exit-codes.md](spec/exit-codes.md). Every option has an environment variable, named after
program, command and option: `tallystick run --model` is `TALLYSTICK_RUN_MODEL`. With `--json`
errors are JSON too, one object `{"error": {…}}` on standard error.
"""


def contexts(
    name: str, command: click.Command, parent: click.Context | None
) -> Iterator[click.Context]:
    """Yield a context for ``command`` and, depth first, for each command below it."""
    context = click.Context(
        command,
        parent=parent,
        info_name=name,
        auto_envvar_prefix=None if parent else ENVIRONMENT_PREFIX,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=cli.context_settings["help_option_names"],
    )
    yield context
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            child = command.get_command(context, below)
            if child is not None and not child.hidden:
                yield from contexts(below, child, context)


def reference() -> str:
    """Return the text of docs/cli.md."""
    sections = [HEAD]
    for context in contexts(PROGRAM, cli, None):
        level = "#" * min(4, 1 + len(context.command_path.split()))
        help_text = context.command.get_help(context)
        sections.append(f"{level} {context.command_path}\n\n```text\n{help_text}\n```\n")
    return "\n".join(sections)


def main(arguments: list[str]) -> int:
    """Write the file, or say whether it is up to date."""
    text = reference()
    if arguments == ["--check"]:
        if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text:
            return 0
        print("docs/cli.md differs from the help texts: run make docs", file=sys.stderr)
        return 1
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
