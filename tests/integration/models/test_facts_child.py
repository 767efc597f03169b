"""Headers are parsed in a child whose memory stays small, whatever the file says."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tallystick.errors import IncomparableError, InputError, RunFailedError, TallystickError
from tallystick.models.facts import facts_of
from tallystick.models.facts_child import PROGRAM, read_facts
from tallystick.sandbox.process import Child
from tests.support.gguf_bytes import ARRAY, STRING, U32, GgufBytes, as_file, scalar, tiny

MIB = 1 << 20


# The kernel counts what a process was before it became the child, so the starter must be small.
MEASURE = """
import os, sys
from tallystick.errors import TallystickError
from tallystick.models.facts_child import PROGRAM
from tallystick.sandbox.process import Child

descriptor = os.open(sys.argv[1], os.O_RDONLY)
words = "facts"
with Child(PROGRAM, {"fd": descriptor}, pass_fds=(descriptor,)) as child:
    try:
        for _ in child.messages(idle_timeout=60):
            pass
    except TallystickError as error:
        words = error.message
print(child.peak_rss)
print(words)
"""


def peak_memory(path: Path) -> tuple[int, str]:
    """Return the child's peak resident bytes and what it ended with."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True
    )
    peak, words = done.stdout.splitlines()
    return int(peak), words


def test_the_child_says_what_the_parser_says() -> None:
    with as_file(tiny().build()) as descriptor:
        assert read_facts(descriptor) == facts_of(descriptor)


@pytest.mark.parametrize(
    ("built", "error", "words"),
    [
        (replace(tiny(), version=1), InputError, "unsupported GGUF version"),
        (tiny().with_entries(("split.count", scalar(U32, 2))), IncomparableError, "split"),
        (replace(tiny(), final_padding=100), InputError, "goes on"),
    ],
)
def test_refusals_cross_the_pipe_with_all_their_parts(
    built: GgufBytes, error: type[TallystickError], words: str
) -> None:
    with as_file(built.build()) as descriptor:
        with pytest.raises(error, match=words) as here:
            facts_of(descriptor)
        with pytest.raises(error, match=words) as there:
            read_facts(descriptor)
    assert str(there.value) == str(here.value)


@pytest.mark.parametrize(
    "built",
    [
        replace(tiny(), entry_count=2**60),
        replace(tiny(), tensor_count=2**60),
        tiny().with_entries(("x", struct.pack("<IQ", STRING, 2**60))),
        tiny().with_entries(("x", struct.pack("<IIQ", ARRAY, STRING, 2**60))),
        tiny().with_entries(("x", struct.pack("<IIQ", ARRAY, U32, 2**60))),
    ],
)
def test_hostile_counts_cost_no_memory(built: GgufBytes, tmp_path: Path) -> None:
    (tmp_path / "ordinary").write_bytes(tiny().build())
    (tmp_path / "hostile").write_bytes(built.build())
    ordinary, words = peak_memory(tmp_path / "ordinary")
    assert words == "facts"
    hostile, words = peak_memory(tmp_path / "hostile")
    assert "too many" in words or "truncated" in words
    assert 0 < hostile < ordinary + 16 * MIB


def test_metadata_of_hundreds_of_megabytes_costs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    start = b"GGUF" + struct.pack("<IQQ", 3, 0, 2)
    start += struct.pack("<Q", 1) + b"a" + struct.pack("<IQ", STRING, 300 * MIB)
    with path.open("wb") as file:
        file.write(start)
        file.seek(len(start) + 300 * MIB)  # a hole: the disk holds nothing of it
        file.write(struct.pack("<Q", 1) + b"b" + struct.pack("<IIQ", ARRAY, STRING, 2**20))
        file.truncate(file.tell() + 8 * 2**20)  # a million empty strings
    peak, words = peak_memory(path)
    assert "architecture" in words  # it was read to its end
    assert peak < 100 * MIB


def test_a_header_beyond_the_bound_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    start = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    start += struct.pack("<Q", 1) + b"a" + struct.pack("<IQ", STRING, 600 * MIB)
    with path.open("wb") as file:
        file.write(start)
        file.truncate(700 * MIB)
    descriptor = os.open(path, os.O_RDONLY)
    with pytest.raises(InputError, match="header is too large"):
        read_facts(descriptor)
    os.close(descriptor)


def test_running_out_of_memory_is_the_files_fault() -> None:
    script = (
        "from tallystick.models.children import bounded_memory\n"
        "from tallystick.errors import InputError\n"
        "import resource\n"
        "try:\n"
        "    with bounded_memory(512 << 20):\n"
        "        bytearray(1 << 30)\n"
        "except InputError as error:\n"
        "    print(error.message, resource.getrlimit(resource.RLIMIT_AS))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    limit = 512 * MIB
    assert done.stdout.strip() == f"the model's header needs too much memory ({limit}, {limit})"


def test_a_request_without_a_descriptor_fails() -> None:
    for request in ({}, {"fd": "3"}, {"fd": True}, {"fd": -1}):
        with pytest.raises(RunFailedError), Child(PROGRAM, dict(request)) as child:
            list(child.messages(idle_timeout=60))
