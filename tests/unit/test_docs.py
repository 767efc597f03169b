"""The documents agree with the program and with each other."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import tallystick

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "bench")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(p for f in FOLDERS for p in (ROOT / f).rglob("*.md"))])
SOURCES = sorted(p for folder in ("src", "tests", "bench") for p in (ROOT / folder).rglob("*.py"))


def anchors(text: str) -> set[str]:
    """Return the anchors of a document's headings."""
    headings = re.findall(r"(?m)^#+ +(.+)$", text)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in headings}


def test_the_command_reference_is_the_program_s_own_help() -> None:
    from scripts.write_cli_reference import reference

    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == reference(), "run make docs"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"(?s)```.*?```", "", text)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (document.parent / path).resolve() if path else document
        assert linked.exists(), f"{document.name} links to {target}"
        if anchor:
            assert anchor in anchors(linked.read_text(encoding="utf-8")), target


def test_documents_that_the_code_cites_exist() -> None:
    missing = {
        f"{source.relative_to(ROOT)}: {cited}"
        for source in SOURCES
        for cited in re.findall(r"docs/[\w/.-]+\.(?:md|json)", source.read_text(encoding="utf-8"))
        if not (ROOT / cited).exists()
    }
    assert missing == set()


def test_the_versions_named_are_the_versions_locked() -> None:
    locked = (ROOT / "requirements" / "dev.lock").read_text(encoding="utf-8")
    pins = dict(re.findall(r"(?m)^([a-z0-9-]+)==([^ ;\\]+)", locked))
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| ((?:`[\w-]+`(?:, )?)+) \| ([\w., ]+) \|", text)
    named = {
        package.lower(): version
        for packages, versions in rows
        for package, version in zip(
            re.findall(r"`([\w-]+)`", packages), versions.split(", "), strict=False
        )
        if version[0].isdigit()
    }
    assert len(named) >= 15
    assert {package: pins.get(package) for package in named} == named


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_examples_use_public_names_as_they_are(document: Path) -> None:
    for block in re.findall(r"(?s)```python\n(.*?)```", document.read_text(encoding="utf-8")):
        for node in ast.walk(ast.parse(block)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id == "tallystick":
                assert node.func.attr in tallystick.__all__
                call = inspect.signature(getattr(tallystick, node.func.attr))
                # Raises TypeError when the call does not fit.
                call.bind(*node.args, **{str(word.arg): word.value for word in node.keywords})


def commands(text: str) -> list[list[str]]:
    """Return the words of each ``tallystick`` command in the console blocks of a document."""
    blocks = re.findall(r"(?s)```console\n(.*?)```", text)
    joined = "".join(blocks).replace("\\\n", " ")
    lines = re.findall(r"(?m)^\$ (.+)$", joined)
    return [
        shlex.split(command, comments=True)
        for line in lines
        for command in re.findall(r"(?:^|\| |&& )tallystick (.+?)(?= \| | && |$)", line)
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_the_documents_are_commands_of_the_program(document: Path) -> None:
    from tallystick.cli.main import cli

    for words in commands(document.read_text(encoding="utf-8")):
        command: click.Command = cli
        for word in words:
            if not isinstance(command, click.Group):
                break
            found = command.get_command(click.Context(command), word)
            assert found is not None, words
            command = found
        options = {name for parameter in command.params for name in parameter.opts} | {"--help"}
        assert {word for word in words if word.startswith("-")} <= options, words


def listings(group: click.Group, context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield the path and the list of commands of ``group`` and of each group in it.

    As an 80-column terminal shows it.
    """
    formatter = click.HelpFormatter(width=78)
    group.format_commands(context, formatter)
    yield context.command_path, formatter.getvalue()
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from listings(command, click.Context(command, context, info_name=name))


def test_no_summary_of_a_command_is_cut_off() -> None:
    from tallystick.cli.main import cli

    # With the program's own settings: a command keeps the help option of its first context.
    context = click.Context(cli, info_name="tallystick", **cli.context_settings)
    found = dict(listings(cli, context))
    assert len(found) >= 9
    for path, text in found.items():
        lines = text.splitlines()
        assert len(lines) >= 2, path
        assert [line for line in lines if line.endswith("...")] == [], path


def test_the_guides_have_commands() -> None:
    for name, least in (("README.md", 10), ("docs/quickstart.md", 15)):
        assert len(commands((ROOT / name).read_text(encoding="utf-8"))) >= least


def test_nothing_is_left_to_do() -> None:
    marks = re.compile(r"\b(?:TO" + "DO|FIX" + "ME|XX" + r"X|TB" + r"D)\b")
    found = {
        f"{path.relative_to(ROOT)}: {mark}"
        for path in [*DOCUMENTS, *SOURCES]
        for mark in marks.findall(path.read_text(encoding="utf-8"))
    }
    assert found == set()


def test_the_readme_opens_with_what_how_and_a_real_receipt() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    screen = text.split("## Use")[0]
    assert "make demo" in screen
    assert "make test" in screen
    receipt = re.search(r"(?s)<!-- receipt:begin.*?-->(.*?)<!-- receipt:end -->", screen)
    assert receipt is not None
    assert "geoai.receipt/v1alpha1" in receipt.group(1)
    assert len(screen.splitlines()) <= 70
