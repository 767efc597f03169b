"""Platform facts: what is looked at, what is left out, and that nothing is guessed."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from tallystick.contracts.platform import ENVIRONMENT, NAME_ONLY
from tallystick.engine.port import EngineSummary
from tallystick.errors import IncomparableError, RunFailedError
from tallystick.execution import platform
from tallystick.execution.platform import (
    build_facts,
    environment_facts,
    loaded_libraries,
    mapped_objects,
    program_facts,
    wheel_facts,
)
from tests.support.documents import digest_of

RECORD = """\
engine-1.2.dist-info/INSTALLER,sha256=zuuue4knoyJ,4
engine-1.2.dist-info/METADATA,sha256=n45,9
engine-1.2.dist-info/RECORD,,
engine-1.2.dist-info/REQUESTED,sha256=47DE,0
engine/__init__.py,sha256=TKF,787
engine/__pycache__/__init__.cpython-311.pyc,,
engine/lib.so,sha256=eNy,105964808
"""
BUILD = build_facts(EngineSummary("0.26.0", "unknown", "CPU : AVX2 = 1 | ", False))


def digest_of_file(path: Path) -> str:
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process map of invented libraries, which are files in the same folder."""
    names = {
        "libc.so.6": "r-xp",
        "libgomp-a34b3233.so.1.0.0": "r-xp",
        "libstdc++.so.6.0.30": "r-xp",
        "ld-linux-x86-64.so.2": "r-xp",
        "libm.so.6": "r--p",
        "libpython3.11.so.1.0": "r-xp",
        "libcrypto.so.3": "r-xp",
        "lib.so": "r-xp",
        "0123abcd.so": "r-xp",
        "with space libm.so": "r-xp",
    }
    lines = [
        "7ffc00000000-7ffc00001000 r-xp 00000000 00:00 0      [vdso]",
        "7f00-7f01 rw-p 0 0:0 0",
    ]
    for name, mode in names.items():
        path = tmp_path / name
        path.write_bytes(name.encode())
        lines += [f"7f0000000000-7f0000001000 {mode} 00001000 08:01 42      {path}"] * 2
    file = tmp_path / "maps"
    file.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(platform, "MAPS", file)
    return tmp_path


def test_libraries_are_those_of_the_process_that_the_engine_needs(maps: Path) -> None:
    found = loaded_libraries(maps / "lib.so", digest_of("engine"), maps / "0123abcd.so")

    expected = {
        name: digest_of_file(maps / name)
        for name in (
            "0123abcd.so",
            "ld-linux-x86-64.so.2",
            "libc.so.6",
            "libgomp-a34b3233.so.1.0.0",
            "libstdc++.so.6.0.30",
        )
    }
    expected["lib.so"] = digest_of("engine")
    assert {library.name: library.digest for library in found} == expected
    assert [library.name for library in found] == sorted(expected)


def test_an_observer_that_is_not_loaded_is_not_named(maps: Path) -> None:
    found = loaded_libraries(maps / "lib.so", digest_of("engine"))

    assert "0123abcd.so" not in {library.name for library in found}


def test_a_library_that_is_gone_fails_the_run(maps: Path) -> None:
    (maps / "libc.so.6").unlink()

    with pytest.raises(RunFailedError, match="in use cannot be read") as caught:
        loaded_libraries(maps / "lib.so", digest_of("engine"))

    assert str(maps) not in str(caught.value)


def test_without_a_map_the_engine_alone_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "MAPS", tmp_path / "missing")

    found = loaded_libraries(tmp_path / "lib.so", digest_of("engine"))

    assert [library.name for library in found] == ["lib.so"]


@pytest.mark.skipif(not platform.MAPS.exists(), reason="the system has no map of a process")
def test_this_very_process_has_a_c_library() -> None:
    names = {os.path.basename(path) for path in mapped_objects()}

    assert any(name.startswith(("libc.", "libc-", "ld-musl")) for name in names)


def test_the_environment_is_named_and_users_folders_are_not() -> None:
    found = environment_facts({"LANG": "C.UTF-8", "PYTHONPATH": "/home/someone", "TZ": "UTC"})

    assert found == ("LANG=C.UTF-8", "PYTHONPATH", "TZ=UTC")
    assert set(NAME_ONLY) < set(ENVIRONMENT)
    with pytest.raises(IncomparableError, match="no manifest can name") as caught:
        environment_facts({"LD_PRELOAD": "secret"})
    assert "LD_PRELOAD" in str(caught.value)
    assert "secret" not in str(caught.value)


def installed(folder: Path, record: str | None, version: str = "1.2") -> Path:
    package = folder / "engine"
    package.mkdir(parents=True)
    if record is not None:
        info = folder / f"engine-{version}.dist-info"
        info.mkdir()
        (info / "RECORD").write_text(record)
    return package / "lib.so"


def test_a_wheel_is_known_by_what_it_brought(tmp_path: Path) -> None:
    first = wheel_facts(installed(tmp_path / "a", RECORD))
    assert (first.name, first.version) == ("engine", "1.2")
    # Another installer: other lines about itself, in another order.
    lines = [line for line in RECORD.splitlines() if "INSTALLER" not in line]
    lines = [*reversed(lines), "engine-1.2.dist-info/INSTALLER,sha256=other,2",
             "engine-1.2.dist-info/direct_url.json,sha256=x,2"]  # fmt: skip
    assert wheel_facts(installed(tmp_path / "b", "\n".join(lines))) == first
    changed = RECORD.replace("sha256=eNy", "sha256=eNz")
    assert wheel_facts(installed(tmp_path / "c", changed)).record != first.record


def test_a_wheel_without_a_record_is_unknown(tmp_path: Path) -> None:
    found = wheel_facts(installed(tmp_path / "a", None))
    assert found.version == "unknown"
    two = installed(tmp_path / "b", RECORD)
    (tmp_path / "b" / "engine-1.3.dist-info").mkdir()
    assert wheel_facts(two).version == "unknown"


def test_the_program_is_known_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(folder: Path) -> str:
        monkeypatch.setattr(platform, "_PACKAGE", folder)
        return program_facts().sources

    first = tmp_path / "one"
    (first / "inner" / "__pycache__").mkdir(parents=True)
    (first / "a.py").write_bytes(b"a")
    (first / "inner" / "data.json").write_bytes(b"{}")
    second = tmp_path / "two"
    shutil.copytree(first, second)
    (second / "inner" / "__pycache__" / "x.py").write_bytes(b"ignored")
    (second / "a.pyc").write_bytes(b"ignored")

    assert of(first) == of(second)
    (second / "inner" / "data.json").write_bytes(b"[]")
    assert of(first) != of(second)
    (second / "inner" / "data.json").rename(second / "data.json")
    (second / "data.json").write_bytes(b"{}")
    assert of(first) != of(second)
