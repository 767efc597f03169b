"""The budgets of docs/architecture.md: length of code, weight of the help and of the install."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
FILE_CAP = 600
FUNCTION_CAP = 100
FUNCTION_P95 = 50
CORE_DISTRIBUTIONS = 7
HELP_MODULES_BEYOND_CLICK = 30
ENGINE_MODULES = {"cffi", "jinja2", "llama_cpp", "numpy", "xllamacpp"}


def tracked_files() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False
    ).stdout
    files = [ROOT / name for name in listing.decode().split("\0") if name]
    if not files:
        pytest.skip("not a git checkout: what belongs to the project is unknown")
    return [file for file in files if file.is_file()]


def code_files() -> list[Path]:
    folders = [ROOT / name for name in ("src", "tests", "bench", "scripts")]
    return sorted(file for folder in folders for file in folder.rglob("*.py"))


def functions(file: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            name = f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"
            yield name, node.end_lineno - node.lineno + 1


def modules_after(code: str) -> set[str]:
    script = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return set(json.loads(result.stderr))


def test_no_file_is_too_long() -> None:
    sources = [*code_files(), *(ROOT / "src").rglob("*.c"), *(ROOT / "scripts").rglob("*.sh")]
    lengths = {file.relative_to(ROOT): len(file.read_bytes().splitlines()) for file in sources}
    assert len(lengths) > 50
    assert {name: n for name, n in lengths.items() if n > FILE_CAP} == {}


def test_no_function_is_too_long() -> None:
    lengths = [pair for file in code_files() for pair in functions(file)]
    assert [pair for pair in lengths if pair[1] > FUNCTION_CAP] == []


def test_most_functions_are_short() -> None:
    lengths = sorted(n for file in (ROOT / "src").rglob("*.py") for _, n in functions(file))
    assert lengths[int(len(lengths) * 0.95)] <= FUNCTION_P95


def test_help_loads_nothing_heavy() -> None:
    loaded = modules_after("from tallystick.cli.main import main\nassert main(['--help']) == 0")
    heavy = ENGINE_MODULES | {"asyncio", "blake3", "nacl", "rfc8785", "rich", "ssl", "urllib"}
    assert heavy & loaded == set()
    assert {name for name in loaded if name.partition(".")[0] == "tallystick"} == {
        "tallystick",
        "tallystick.cli",
        "tallystick.cli.extras",
        "tallystick.cli.main",
        "tallystick.cli.output",
        "tallystick.errors",
    }
    assert len(loaded - modules_after("import click")) <= HELP_MODULES_BEYOND_CLICK


@pytest.mark.parametrize(
    "verb",
    [
        *("run", "verify", "replay", "inspect", "observe", "diff", "model", "units", "keys"),
        *("submit", "runs"),
    ],
)
def test_help_of_a_verb_loads_no_engine(verb: str) -> None:
    loaded = modules_after(
        f"from tallystick.cli.main import main\nassert main([{verb!r}, '--help']) == 0"
    )
    assert loaded & ENGINE_MODULES == set()


def test_the_core_install_is_small() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting = [Requirement(text) for text in project["dependencies"]]
    closure: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in closure or (
            requirement.marker and not requirement.marker.evaluate({"extra": ""})
        ):
            continue
        assert requirement.extras == set()
        closure.add(name)
        waiting += [Requirement(text) for text in metadata.requires(name) or ()]
    assert {"blake3", "click", "pynacl", "rfc8785"} <= closure
    assert len(closure) <= CORE_DISTRIBUTIONS, sorted(closure)


@pytest.mark.parametrize("lock", ["core", "engine", "worker", "dev"])
def test_the_locks_pin_and_hash_everything_and_name_no_place(lock: str) -> None:
    text = (ROOT / "requirements" / f"{lock}.lock").read_text()
    assert "://" not in text
    entries = re.split(r"\n(?=[a-z])", "\n".join(re.findall(r"(?m)^[^#\n].*$", text)))
    assert len(entries) >= 5
    for entry in entries:
        assert re.fullmatch(
            r"[a-z0-9-]+==[^ ;]+( ; [^\\]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+", entry.strip()
        ), entry


def test_the_locks_cover_the_declared_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = project["dependencies"]
    extras = project["optional-dependencies"]
    wanted = {
        "core": core,
        "engine": core + extras["engine"],
        "worker": core + extras["worker"],
        "dev": core + extras["engine"] + extras["worker"] + extras["dev"],
    }
    for lock, requirements in wanted.items():
        text = (ROOT / "requirements" / f"{lock}.lock").read_text()
        pins = dict(re.findall(r"(?m)^([a-z0-9-]+)==([^ ;\\]+)", text))
        for requirement in map(Requirement, requirements):
            assert pins[canonicalize_name(requirement.name)] in requirement.specifier


def test_no_tracked_file_names_a_machine_or_a_registry() -> None:
    # Each is split at a "~" here, so that this file does not match itself.
    parts = (
        "/wo~rk/ /tmp/scr~atch /tmp/pl~an /ro~ot/ /opt/wh~eels /opt/py~pi "
        "py~pi.org python~hosted deb.deb~ian.org registry.npm~js"
    )
    private = re.compile(re.escape(parts.replace("~", "")).replace("\\ ", "|").encode())
    found = {
        f"{file.relative_to(ROOT)}: {match.group().decode()}"
        for file in tracked_files()
        for match in private.finditer(file.read_bytes())
    }
    assert found == set()
