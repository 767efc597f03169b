"""A second implementation of docs/spec/observer.md#sealing-passes; imports nothing of the package.

The invented model has two layers with four experts each, two used, and eleven tokens. Graphs are
those of a batch: padding rows stand behind the sequence's own, and the last layer runs over the
rows with outputs only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.golden import reference_observer as live

Record = dict[str, Any]
Node = tuple[Record, list[Record], int | None, list[str]]

LAYERS, EXPERTS, USED, WIDTH, VOCABULARY = 2, 4, 2, 4, 11
METADATA = {
    "general.architecture": "qwen35moe",
    "general.file_type": "7",
    "general.quantization_version": "2",
    "qwen35moe.block_count": str(LAYERS),
    "qwen35moe.context_length": "4096",
    "qwen35moe.embedding_length": str(WIDTH),
    "qwen35moe.expert_count": str(EXPERTS),
    "qwen35moe.expert_used_count": str(USED),
}


@dataclass(frozen=True)
class Pass:
    """Token ids of a run, and the row class of the pass over it."""

    prompt: tuple[int, ...] = (3, 7, 1, 4, 1, 5, 9)
    generated: tuple[int, ...] = (2, 6, 5)
    floor: int = 2
    top: int = 4
    cells: int = 256

    @property
    def positions(self) -> int:
        return len(self.prompt) + len(self.generated) - 1


@dataclass(frozen=True)
class Chunk:
    """Positions, padding rows, rows with outputs, and how many of these are wanted."""

    positions: range
    padding: int
    outputs: int
    wanted: int

    @property
    def rows(self) -> int:
        return len(self.positions) + self.padding


def sizes(left: int, floor: int, top: int) -> list[int]:
    """execution.md#chunks."""
    if left < floor or top < 2 * floor:
        return [1] * left
    found = []
    while left > top:
        found.append(top if left - top >= floor else left - floor)
        left -= found[-1]
    return [*found, left]


def chunks(run: Pass) -> list[Chunk]:
    """execution.md#batches."""
    found = []
    first = 0
    for size in sizes(run.positions, run.floor, run.top):
        positions = range(first, first + size)
        padding = run.floor - size if size < run.floor else 0
        wanted = sum(position >= len(run.prompt) - 1 for position in positions)
        asked = max(wanted, min(size, run.floor)) + padding if wanted else 0
        found.append(Chunk(positions, padding, asked, wanted))
        first += size
    return found


def chosen(position: int, layer: int) -> list[int]:
    """Return the ids that a layer chose at a position."""
    first = (position + layer) % EXPERTS
    return [first, (first + 1 + position % 3) % EXPERTS]


def graph(chunk: Chunk) -> list[Node]:
    """Return the nodes of a step: tensor, sources, layer, categories."""
    n, o = chunk.rows, chunk.outputs
    embed = live.source("model.input_embed", "f32", WIDTH, n)
    found: list[Node] = [
        (
            live.tensor("model.input_embed", "GET_ROWS", "f32", WIDTH, n),
            [
                live.source("token_embd.weight", "q8_0", WIDTH, VOCABULARY),
                live.source("inp_tokens", "i32", n),
            ],
            None,
            ["lookup"],
        )
    ]
    for layer in range(LAYERS):
        rows = o if layer == LAYERS - 1 else n
        weights = live.source(f"blk.{layer}.attn_q.weight", "q8_0", WIDTH, WIDTH)
        query = live.tensor(f"Qcur-{layer}", "MUL_MAT", "f32", WIDTH, n)
        found.append((query, [weights, embed], layer, ["gemm"]))
        if not rows:
            continue
        sorted_ids = live.source(f"ffn_moe_argsort-{layer}", "i32", EXPERTS, rows)
        topk = live.tensor(f"ffn_moe_topk-{layer}", "VIEW", "i32", USED, rows)
        found.append((topk, [sorted_ids], layer, ["layout", "expert_ids"]))
        out = live.tensor(f"l_out-{layer}", "ADD", "f32", WIDTH, rows)
        found.append((out, [embed, embed], layer, ["elementwise", "layer_output"]))
    if o:
        head = live.source("output.weight", "f16", WIDTH, VOCABULARY)
        state = live.source(f"l_out-{LAYERS - 1}", "f32", WIDTH, o)
        logits = live.tensor("result_output", "MUL_MAT", "f32", VOCABULARY, o)
        found.append((logits, [head, state], None, ["gemm", "logits"]))
    return found


def product(event: Record, number: int, observer: str) -> None:
    """Add what a product's event has besides."""
    made, (left, right) = event["tensor"]["shape"], (x["shape"] for x in event["sources"])
    event["gemm"] = {
        "variant": "ggml_graph_op_v1",
        "m": left[1],
        "n": right[1],
        "k": left[0],
        "batch_shape": [1, 1],
    }
    if observer != "sketch":
        return
    count = min(64, made[0] * made[1])
    event["stage"] = "post_compute_sketch"
    event["sketch"] = {
        "scheme": "sign_bucket_256_v1",
        "bits": 256,
        "elements": count,
        "hex": "".join(f"{(number + i) % 16:x}" for i in range(count)).ljust(64, "0"),
    }
    event["tile"] = {
        "variant": "graph_fallback_logical_prefix_v1",
        "offset": 0,
        "elements": count,
    }
    event["kernel_trace"] = {
        "available": False,
        "backend": "none",
        "claim": "not_a_cuda_kernel_trace",
    }


def header(run: Pass, observer: str) -> Record:
    found = live.header(observer)
    found["model"]["n_layer"] = LAYERS
    found["model"]["metadata"] = [{"key": k, "value": v} for k, v in sorted(METADATA.items())]
    rows = min(run.top, run.cells)
    found["execution_policy"] |= {
        "policy": "row-class",
        "row_floor": run.floor,
        "row_max": run.top,
        "prompt_tokens": len(run.prompt),
        "generated_tokens": len(run.generated),
        "n_ctx": run.cells,
        "n_threads": 3,
        "n_threads_batch": 3,
        "n_batch": rows,
        "n_ubatch": rows,
        "n_seq_max": run.floor,
    }
    return found


def records(run: Pass, observer: str = "sketch") -> list[Record]:
    """Return a whole transcript."""
    found = [header(run, observer)]
    events = routes = 0
    for number, chunk in enumerate(chunks(run)):
        for made, sources, layer, categories in graph(chunk):
            events += 1
            event: Record = {
                "record": "event",
                "event_seq": events,
                "phase": "sealing",
                "phase_step": number,
                "stage": "ask_metadata",
                "layer": layer,
                "categories": categories,
                "tensor": made,
                "sources": sources,
            }
            found.append(event)
            if made["op"] == "MUL_MAT":
                product(event, events, observer)
            elif "expert_ids" in categories and observer == "sketch":
                assert layer is not None
                last = layer == LAYERS - 1
                skipped = len(chunk.positions) - chunk.wanted if last else 0
                for position in chunk.positions[skipped:]:
                    routes += 1
                    found.append(
                        {
                            "record": "route",
                            "route_seq": routes,
                            "event_seq": events,
                            "phase": "sealing",
                            "phase_step": number,
                            "position": position,
                            "layer": layer,
                            "expert_count": EXPERTS,
                            "expert_ids": chosen(position, layer),
                        }
                    )
    result = {
        "record": "result",
        "status": "ok",
        "stop_reason": "n_predict",
        "prompt_token_ids": list(run.prompt),
        "generated_token_ids": list(run.generated),
        "output_bytes": [],
        "output_n_bytes": 5,
        "event_count": events,
    }
    return [*found, result]


def transcript(run: Pass, observer: str = "sketch") -> bytes:
    """Return the bytes of a whole transcript."""
    return b"".join(map(live.line, records(run, observer)))
