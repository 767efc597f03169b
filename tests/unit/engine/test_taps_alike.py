"""Both observers on made-up graphs: alike in what they take, leave out, count and refuse.

The compiled observer is a library of ours that needs nothing of the engine's.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import cffi
import pytest

from tallystick.engine.compiled import ensure_observer
from tallystick.engine.libllama.cdef import DECLARATIONS
from tallystick.engine.libllama.compiled_tap import CompiledTaps
from tallystick.engine.libllama.python_tap import PythonTaps
from tallystick.engine.libllama.tap import MAX_KEPT, Tap, TapMaker
from tallystick.engine.port import Observation, Watch
from tallystick.errors import IncomparableError, RunFailedError, TallystickError

OPERATIONS = {"ADD": 2, "MUL_MAT": 29, "VIEW": 36, "SET_ROWS": 42, "FLASH_ATTN_EXT": 70}
TYPES = {0: b"f32", 1: b"f16", 26: b"i32"}
F32, F16, I32 = TYPES
ROWS: tuple[Literal["none", "layers"], ...] = ("none", "layers")
ROUTES: tuple[Literal["none", "experts"], ...] = ("none", "experts")
GRAPHS: tuple[Literal["none", "nodes", "products"], ...] = ("none", "nodes", "products")
WATCHES = [Watch(*each) for each in itertools.product(ROWS, ROUTES, GRAPHS)]
EVERYTHING = Watch("layers", "experts", "products")


class Library:
    """As much of the engine's library as a tap asks for."""

    def __init__(self) -> None:
        self.ffi = cffi.FFI()
        self.ffi.cdef(DECLARATIONS)
        self.operations = OPERATIONS
        names = {number: self.ffi.new("char[]", name) for number, name in TYPES.items()}
        self.lib = SimpleNamespace(ggml_type_name=names.__getitem__, ggml_nbytes=self._size)

    @staticmethod
    def _size(tensor: Any) -> int:
        return int(sum((tensor.ne[i] - 1) * tensor.nb[i] for i in range(4)) + 4)


@dataclass(frozen=True)
class Made:
    """A tensor to be made; ``strides`` None for a contiguous one."""

    name: str
    op: str = "ADD"
    type: int = F32
    shape: tuple[int, int, int, int] = (3, 2, 1, 1)
    strides: tuple[int, int, int, int] | None = None
    data: Literal["some", "none"] = "some"
    sources: tuple[Made, ...] = ()


@dataclass
class Graph:
    """Tensors in the engine's layout, and what keeps them alive."""

    library: Library
    kept: list[Any]

    def tensor(self, made: Made) -> Any:
        ffi = self.library.ffi
        tensor = ffi.new("struct ggml_tensor *")
        x, y, z, _ = made.shape
        tensor.type, tensor.op = made.type, OPERATIONS[made.op]
        tensor.ne = made.shape
        tensor.nb = made.strides or (4, 4 * x, 4 * x * y, 4 * x * y * z)
        tensor.name = made.name.encode()
        if made.data == "some":
            data = ffi.new("int32_t[]", [1_000_003 * i for i in range(2048)])
            tensor.data = data
            self.kept.append(data)
        for place, source in enumerate(made.sources):
            tensor.src[place] = self.tensor(source)
        self.kept.append(tensor)
        return tensor


@pytest.fixture(scope="module")
def library() -> Library:
    return Library()


@pytest.fixture(scope="module")
def makers(library: Library, tmp_path_factory: pytest.TempPathFactory) -> tuple[TapMaker, TapMaker]:
    path: Path | None = ensure_observer(tmp_path_factory.mktemp("observer"))
    if path is None:
        pytest.skip("there is no C compiler")
    return CompiledTaps(library, path), PythonTaps(library)  # type: ignore[arg-type]


def evaluate(library: Library, tap: Tap, tensors: Sequence[Any]) -> None:
    """Do what the engine's scheduler does: ask about each node, show those that are wanted."""
    callback = library.ffi.cast("eval_callback", tap.callback)
    for tensor in tensors:
        if callback(tensor, True, tap.user_data):
            assert callback(tensor, False, tap.user_data)


def plain(seen: Observation) -> tuple[object, ...]:
    return (
        [(block.layer, block.rows, bytes(block.data)) for block in seen.layers],
        [(r.layer, r.rows, r.used, r.experts, bytes(r.data)) for r in seen.routes],
        [(reading.node, reading.data) for reading in seen.nodes],
    )


def outcome(library: Library, tap: Tap, tensors: Sequence[Any]) -> object:
    evaluate(library, tap, tensors)
    try:
        return plain(tap.take())
    except TallystickError as error:
        return type(error), error.message, error.expected


WEIGHTS = Made("blk.0.attn_q.weight", type=F16, shape=(3, 5, 1, 1))
CHOICE = Made("ffn_moe_argsort-3", type=I32, shape=(7, 2, 1, 1))
PRODUCT = Made("Qcur-0", "MUL_MAT", shape=(5, 2, 1, 1), sources=(WEIGHTS, Made("attn_norm-0")))
LAYER = Made("l_out-12", sources=(Made("a"), Made("b")))
CHOSEN = Made("ffn_moe_topk-3", "VIEW", I32, (4, 2, 1, 1), (4, 28, 56, 56), sources=(CHOICE,))
CACHE = Made("cache_k_l0 (view)", "SET_ROWS", F16)
SOUND = (
    Made("embd"),
    PRODUCT,
    replace(PRODUCT, name="large", shape=(40, 30, 2, 1)),
    Made("cache_r_l0 (view)", shape=(3, 0, 1, 1)),
    CACHE,
    replace(LAYER, name="l_out-0"),
    CHOSEN,
    LAYER,
    replace(LAYER, shape=(3, 0, 1, 1), data="none"),
    replace(CHOSEN, shape=(4, 0, 1, 1), data="none"),
    replace(PRODUCT, shape=(0, 2, 1, 1), data="none"),
    Made("x" * 63),
    Made("名-1"),
)
#: Names that are nearly those that are looked for.
NEARLY = tuple(
    Made(name, type=type_)
    for stem, type_ in (("l_out", F32), ("ffn_moe_topk", I32))
    for name in (stem, f"{stem}-", f"{stem}-01", f"{stem}-12345", f"{stem}-1 (view)", f" {stem}-1")
)
REFUSED = {
    "flash attention": Made("fa", "FLASH_ATTN_EXT"),
    "another cache": replace(CACHE, type=F32),
    "rows of ids": replace(LAYER, type=I32),
    "rows apart": replace(LAYER, strides=(4, 16, 32, 32)),
    "rows of three axes": replace(LAYER, shape=(3, 2, 2, 1)),
    "rows without data": replace(LAYER, data="none"),
    "ids as floats": replace(CHOSEN, type=F32),
    "ids apart": replace(CHOSEN, strides=(8, 28, 56, 56)),
    "ids without a source": replace(CHOSEN, sources=()),
    "ids without data": replace(CHOSEN, data="none"),
    "a product of ids": replace(PRODUCT, type=I32),
    "a product apart": replace(PRODUCT, strides=(4, 24, 48, 48)),
    "a product without data": replace(PRODUCT, data="none"),
}


@pytest.mark.parametrize("watch", WATCHES, ids=lambda w: f"{w.rows} {w.routes} {w.graph}")
def test_they_see_the_same(
    watch: Watch, library: Library, makers: tuple[TapMaker, TapMaker]
) -> None:
    graph = Graph(library, [])
    tensors = [graph.tensor(made) for made in (*SOUND, *NEARLY)]
    taps = [maker.open(watch) for maker in makers]
    # Again, in another order, and again: what was kept of a node must not show.
    for order in (tensors, tensors, tensors[::-1], tensors):
        compiled, python = [outcome(library, tap, order) for tap in taps]
        assert compiled == python
        assert taps[0].cache_writes == taps[1].cache_writes > 0


def test_what_they_see(library: Library, makers: tuple[TapMaker, TapMaker]) -> None:
    graph = Graph(library, [])
    tap = makers[0].open(EVERYTHING)
    evaluate(library, tap, [graph.tensor(made) for made in (*SOUND, *NEARLY)])
    seen = tap.take()
    assert [(block.layer, block.rows) for block in seen.layers] == [(0, 2), (12, 2), (12, 0)]
    assert [(r.layer, r.rows, r.used, r.experts) for r in seen.routes] == [
        (3, 2, 4, 7),
        (3, 0, 4, 7),
    ]
    values = library.ffi.new("int32_t[]", [1_000_003 * i for i in (0, 1, 2, 3, 7, 8, 9, 10)])
    assert bytes(seen.routes[0].data) == bytes(library.ffi.buffer(values))
    assert len(seen.nodes) == len(SOUND) + len(NEARLY) - 4
    read = {reading.node.tensor.name: reading.data for reading in seen.nodes if reading.data}
    assert {name: len(data) for name, data in read.items()} == {
        "Qcur-0": 40,
        "large": 256,
        "ffn_moe_topk-3": 32,
    }
    (product,) = [each.node for each in seen.nodes if each.node.tensor.name == "Qcur-0"]
    assert [source.name for source in product.sources] == ["blk.0.attn_q.weight", "attn_norm-0"]
    assert (product.tensor.op, product.tensor.shape) == ("MUL_MAT", (5, 2, 1, 1))


def test_what_was_read_outlives_its_tap(
    library: Library, makers: tuple[TapMaker, TapMaker]
) -> None:
    """Whoever holds rows of a context that is gone holds rows, not memory that was freed."""
    graph = Graph(library, [])
    tensors = [graph.tensor(replace(LAYER, shape=(512, 4, 1, 1)))]
    for maker in makers:
        tap = maker.open(Watch(rows="layers"))
        evaluate(library, tap, tensors)
        data = tap.take().layers[0].data
        expected, gone = bytes(data), weakref.ref(tap)
        del tap
        gc.collect()
        assert gone() is None
        # As much again, to be written where it was if it was freed.
        other = maker.open(Watch(rows="layers"))
        evaluate(library, other, [graph.tensor(replace(LAYER, shape=(511, 4, 1, 1)))])
        assert bytes(data) == expected


@pytest.mark.parametrize("what", REFUSED)
def test_they_refuse_the_same(
    what: str, library: Library, makers: tuple[TapMaker, TapMaker]
) -> None:
    graph = Graph(library, [])
    tensors = [graph.tensor(made) for made in (*SOUND, REFUSED[what])]
    compiled, python = [outcome(library, maker.open(EVERYTHING), tensors) for maker in makers]
    assert compiled == python
    assert isinstance(compiled, tuple)
    graphs = {"flash attention", "another cache"}
    assert compiled[0] is (IncomparableError if what in graphs else RunFailedError)


@pytest.mark.parametrize("what", ["flash attention", "another cache"])
def test_graphs_are_checked_whatever_is_watched(
    what: str, library: Library, makers: tuple[TapMaker, TapMaker]
) -> None:
    tensor = Graph(library, []).tensor(REFUSED[what])
    for maker, watch in itertools.product(makers, WATCHES):
        tap = maker.open(watch)
        evaluate(library, tap, [tensor])
        with pytest.raises(IncomparableError):
            tap.take()


def variants(made: Made) -> Iterator[Made]:
    """Nodes that differ from ``made`` in one thing each."""
    yield replace(made, name=made.name + "x")
    yield replace(made, op="VIEW")
    yield replace(made, type=I32)
    yield replace(made, shape=(3, 4, 1, 1))
    yield replace(made, strides=(4, 16, 32, 32))
    yield replace(made, sources=made.sources[:1])
    yield replace(made, sources=(*made.sources, Made("c")))
    yield replace(made, sources=(made.sources[0], replace(made.sources[1], type=F16)))


def test_a_node_is_another_one_when_anything_about_it_changes(
    library: Library, makers: tuple[TapMaker, TapMaker]
) -> None:
    made = Made("node", sources=(Made("a"), Made("b")))
    for maker in makers:
        tap = maker.open(Watch(graph="nodes"))
        graph = Graph(library, [])
        seen = []
        for each in (made, *variants(made), made):
            evaluate(library, tap, [graph.tensor(each)])
            seen.append(tap.take().nodes[0].node)
        assert len({*seen}) == len(seen) - 1
        assert seen[-1] is seen[0]


def test_too_many_nodes_are_forgotten_and_described_again(
    library: Library, makers: tuple[TapMaker, TapMaker]
) -> None:
    graph = Graph(library, [])
    tensor, other = graph.tensor(Made("node")), graph.tensor(Made("other"))
    for maker in makers:
        tap = maker.open(Watch(graph="nodes"))
        for size in range(MAX_KEPT + 2):
            tensor.nb[3] = size
            evaluate(library, tap, [tensor])
            if size % 4096 == 0:
                tap.take()
        tap.take()
        evaluate(library, tap, [other, tensor])
        assert [reading.node.tensor.name for reading in tap.take().nodes] == ["other", "node"]


def test_a_failure_in_the_python_callback_is_raised_by_take(library: Library) -> None:
    tap = PythonTaps(library).open(Watch(graph="nodes"))  # type: ignore[arg-type]
    graph = Graph(library, [])
    unknown = graph.tensor(Made("odd"))
    unknown.op = 99
    evaluate(library, tap, [unknown, graph.tensor(Made("fine"))])
    with pytest.raises(KeyError):
        tap.take()
