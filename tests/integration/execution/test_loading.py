"""How a model is read where there is no path to it, as in a sandbox's root."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tallystick.models.registry import resolve
from tests.support.runs import EngineHome

# The engine reads a header in pieces of a few bytes, and here it has a vocabulary of thousands.
MOST_READS = 2000
CODE = """
import os, sys
import cffi
from tallystick.engine.libllama import adapter
from tallystick.engine.libllama.cdef import DECLARATIONS
from tallystick.engine.libllama.locate import library_path

def reads():
    with open("/proc/self/io") as file:
        return int(dict(line.split(": ") for line in file)["syscr"])

ffi = cffi.FFI()
ffi.cdef(DECLARATIONS)
lib = ffi.dlopen(str(library_path()))
quiet = ffi.callback("void(int, const char *, void *)", lambda *_: None)
lib.llama_log_set(quiet, ffi.NULL)
lib.llama_backend_init()
params = lib.llama_model_default_params()
params.n_gpu_layers = 0
params.use_extra_bufts = False
descriptor = os.open(sys.argv[1], os.O_RDONLY)
adapter.os.path.isdir = lambda _: False
before, opened = reads(), len(os.listdir("/proc/self/fd"))
model = adapter._load(lib, descriptor, params)
assert model != ffi.NULL
assert len(os.listdir("/proc/self/fd")) == opened
print(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)), reads() - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="the system counts no reads")
def test_a_descriptor_is_read_through_a_buffer(engine_home: EngineHome, smollm2: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(resolve(smollm2, engine_home.path).path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    tokens, reads = map(int, done.stdout.split())
    assert tokens > 10 * MOST_READS
    assert 0 < reads < MOST_READS
