"""Fixtures that many tests share: the toy models, written once a session."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tallystick.engine import gguf_writer
from tallystick.engine.suite import architectures, weights
from tests.support import gguf_files, models, tokenizer
from tests.support.runs import endless_model, engine_home, smollm2  # noqa: F401 - fixtures

# Set it to keep the models between sessions; otherwise nothing outside pytest's own temporary
# folder is written.
_CACHE_VARIABLE = "TALLYSTICK_TEST_CACHE"
_BUILDERS = (gguf_writer, architectures, weights, gguf_files, models, tokenizer)

ToyModel = Callable[[str], Path]


def _builders_digest() -> str:
    digest = hashlib.sha256()
    for module in _BUILDERS:
        assert module.__file__ is not None
        digest.update(Path(module.__file__).read_bytes())
    return digest.hexdigest()[:16]


@pytest.fixture(scope="session")
def toy_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyModel]:
    """Return the path of the toy model of a name in tests.support.models; never write to it."""
    kept = os.environ.get(_CACHE_VARIABLE)
    folder = (
        tmp_path_factory.mktemp("toy-models") if kept is None else Path(kept) / _builders_digest()
    )
    folder.mkdir(parents=True, exist_ok=True)

    def path_of(name: str) -> Path:
        path = folder / f"{name}.gguf"
        if not path.exists():
            partial = folder / f"{name}.{os.getpid()}.partial"
            models.write_model(name, partial)
            partial.replace(path)
        return path

    yield path_of
    if kept is None:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def toy_llama(toy_model: ToyModel) -> Path:
    """A dense llama, Q8_0."""
    return toy_model("llama-q8_0")


@pytest.fixture(scope="session")
def toy_kquant(toy_model: ToyModel) -> Path:
    """A dense llama with Q2_K to Q6_K weights."""
    return toy_model("kquant")


@pytest.fixture(scope="session")
def toy_gemma3(toy_model: ToyModel) -> Path:
    """A gemma3 whose sliding window of 16 tokens every ordinary run crosses."""
    return toy_model("gemma3")


@pytest.fixture(scope="session")
def toy_moe(toy_model: ToyModel) -> Path:
    """A qwen3moe with Q4_K and Q6_K experts."""
    return toy_model("moe")


@pytest.fixture(scope="session")
def toy_hybrid_q8(toy_model: ToyModel) -> Path:
    """A qwen35moe of 40 layers and 256 experts, Q8_0."""
    return toy_model("hybrid-q8")


@pytest.fixture(scope="session")
def toy_hybrid_q4k(toy_model: ToyModel) -> Path:
    """A qwen35moe of 8 layers and 64 experts, Q4_K and Q6_K, experts included."""
    return toy_model("hybrid-q4k")
