"""The table of domain strings is complete: docs/spec/README.md against the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "tallystick"
TABLE = ROOT / "docs" / "spec" / "README.md"
DOMAIN = re.compile(r"(?:tallystick|geoai|palw|dac|misaka)\.[a-z0-9]+(?:-[a-z0-9]+)*")
ROW = re.compile(r"^\| `([a-z0-9.-]+)` \| (\d+) \| [^|]+ \| [^|]+ \|$", re.MULTILINE)
HASHES = ("domain_hash", "domain_digest", "frame")


def table() -> dict[str, int]:
    """Return the version of each domain that the specification lists."""
    rows = ROW.findall(TABLE.read_text(encoding="utf-8"))
    domains = {domain: int(version) for domain, version in rows}
    assert len(domains) == len(rows), "a domain is listed twice"
    return domains


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def is_package(text: str) -> bool:
    name = text.partition(".")[2]
    return (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file()


def test_every_domain_string_in_the_source_is_in_the_table() -> None:
    found = {
        node.value
        for _, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and DOMAIN.fullmatch(node.value)
        and not is_package(node.value)
    }

    assert found == set(table())


def test_every_framed_hash_names_its_domain_and_version_in_place() -> None:
    """A call with a computed domain would escape the table, so there is none."""
    versions = table()
    calls = 0
    for path, tree in trees():
        if path.name == "hashing.py":
            continue  # where the functions themselves call each other
        constants = module_constants(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or called(node) not in HASHES:
                continue
            domain, version = (value_of(argument, constants) for argument in node.args[:2])
            assert isinstance(domain, str), f"{path.name}:{node.lineno}"
            assert versions.get(domain) == version, f"{path.name}:{node.lineno}"
            calls += 1

    assert calls >= len(versions) - 1  # the tokenizer's hash is fed in pieces


def called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def module_constants(tree: ast.Module) -> dict[str, object]:
    return {
        node.target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.value, ast.Constant)
    }


def value_of(node: ast.expr, constants: dict[str, object]) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    return constants.get(node.id) if isinstance(node, ast.Name) else None
