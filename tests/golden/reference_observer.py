"""A second implementation of docs/spec/observer.md: plain records, plain arithmetic.

It imports nothing from the package. The transcript is of an invented model of one layer with four
experts, two used: two prompt tokens, two generated ones, so two prefill steps and one decode step.
"""

from __future__ import annotations

import json
import struct
from fractions import Fraction
from typing import Any

Record = dict[str, Any]

BOUNDS = [Fraction(1, 256), Fraction(1, 16), Fraction(1, 4), Fraction(1), Fraction(4), Fraction(16)]
PROMPT_IDS = [3, 7]
GENERATED_IDS = [5, 2]
OUTPUT = b"hi"
VOCABULARY = 11
# The values of each product, by name; the step's number is added to the first.
PRODUCTS = {"Qcur-0": [0.0, -0.0, 0.5, -3.0], "result_output": [1.0] * VOCABULARY}
CHOSEN = [[3, 1], [0, 2], [1, 0]]


def nibble(value: float, negative: bool) -> int:
    """Return the nibble of a finite value whose sign bit is ``negative``."""
    size = abs(Fraction(value))
    bucket = 0 if size == 0 else 1 + sum(size >= bound for bound in BOUNDS)
    return 8 * negative + bucket


def sketch(data: bytes) -> str:
    """Return the sketch of up to 64 little-endian float32 values."""
    count = len(data) // 4
    values = struct.unpack(f"<{count}f", data)
    signs = [bool(data[4 * i + 3] & 0x80) for i in range(count)]
    digits = [f"{nibble(v, s):x}" for v, s in zip(values, signs, strict=True)]
    return "".join(digits) + "0" * (64 - count)


def lanes(digits: str) -> list[int]:
    """Return the four lanes of a sketch."""
    words = [int(digits[i : i + 16], 16) for i in range(0, 64, 16)]
    return [word - 2**64 if word >= 2**63 else word for word in words]


def tensor(name: str, op: str, kind: str, *shape: int) -> Record:
    four = [*shape, 1, 1, 1][:4]
    size = 4
    for extent in four:
        size *= extent
    return {"name": name, "op": op, "type": kind, "shape": four, "n_bytes": size}


def source(name: str, kind: str, *shape: int) -> Record:
    return {"name": name, "type": kind, "shape": [*shape, 1, 1, 1][:4]}


def graph() -> list[tuple[Record, list[Record], int | None, list[str]]]:
    """Return the nodes of a step: tensor, sources, layer, categories."""
    embed = source("model.input_embed", "f32", 4)
    experts = source("ffn_moe_argsort-0", "i32", 4)
    state = source("l_out-0", "f32", 4)
    return [
        (
            tensor("model.input_embed", "GET_ROWS", "f32", 4),
            [source("token_embd.weight", "q8_0", 4, VOCABULARY), source("inp_tokens", "i32", 1)],
            None,
            ["lookup"],
        ),
        (
            tensor("Qcur-0", "MUL_MAT", "f32", 4),
            [source("blk.0.attn_q.weight", "q8_0", 4, 4), embed],
            0,
            ["gemm"],
        ),
        (
            tensor("cache_k_l0 (view)", "SET_ROWS", "f16", 4, 8),
            [source("Qcur-0", "f32", 4), source("attn_inp_k_idxs", "i64", 1)],
            0,
            ["cache_write"],
        ),
        (tensor("ffn_moe_topk-0", "VIEW", "i32", 2), [experts], 0, ["layout", "expert_ids"]),
        (tensor("l_out-0", "ADD", "f32", 4), [embed, embed], 0, ["elementwise", "layer_output"]),
        (
            tensor("result_output", "MUL_MAT", "f32", VOCABULARY),
            [source("output.weight", "f16", 4, VOCABULARY), state],
            None,
            ["gemm", "logits"],
        ),
    ]


def header(observer: str) -> Record:
    return {
        "record": "header",
        "schema": "misaka.palw.runtime_observer",
        "schema_version": 2,
        "producer": "tallystick",
        "observer": observer,
        "trace_variant": "none" if observer == "off" else "graph_fallback",
        "cuda_kernel_trace": False,
        "model": {
            "path": "invented.gguf",
            "description": "invented 1-layer",
            "tensor_size_bytes": 4096,
            "parameter_count": 1000,
            "file_type": 7,
            "n_ctx_train": 4096,
            "n_embd": 4,
            "n_layer": 1,
            "n_head": 1,
            "n_head_kv": 1,
            "n_vocab": VOCABULARY,
            "rope_type": "neox",
            "rope_freq_scale_train": "0.25",
            "metadata": [{"key": "general.architecture", "value": "invented % 日本"}],
        },
        "runtime": {
            "ggml_version": "0.0.0",
            "ggml_commit": "unknown",
            "system_info": "CPU : AVX2 = 1 | ",
            "supports_gpu_offload": False,
            "requested_gpu_layers": 0,
            "devices": [],
        },
        "execution_policy": {
            "n_ctx": 4096,
            "n_batch": 1,
            "n_ubatch": 1,
            "n_seq_max": 1,
            "n_threads": 1,
            "n_threads_batch": 1,
            "sampler": "greedy",
            "flash_attn": "disabled",
            "type_k": "f16",
            "type_v": "f16",
            "split_mode": "none",
            "use_mmap": True,
        },
        "observation_policy": {
            "read_only": True,
            "graph_metadata_stage": "ask",
            "sketch_bits": 256,
            "sketch_probe": "gemm_output_contiguous_prefix_64",
            "raw_activation_values_published": False,
            "tile_variant": "graph_fallback_logical_prefix_v1",
            "kernel_trace_claim": "none",
        },
    }


def product_data(name: str, step: int) -> bytes:
    """Return what is read of a product in evaluation ``step``."""
    values = PRODUCTS[name]
    return struct.pack(f"<{len(values)}f", values[0] + step, *values[1:])


def steps() -> list[tuple[str, int]]:
    return [("prefill", 0), ("prefill", 1), ("decode", 0)]


def observed(observer: str) -> list[Record]:
    """Return the events and routes."""
    found: list[Record] = []
    events = routes = 0
    for position, (phase, number) in enumerate(steps()):
        for made, sources, layer, categories in graph():
            events += 1
            event: Record = {
                "record": "event",
                "event_seq": events,
                "phase": phase,
                "phase_step": number,
                "stage": "ask_metadata",
                "layer": layer,
                "categories": categories,
                "tensor": made,
                "sources": sources,
            }
            found.append(event)
            if made["op"] == "MUL_MAT":
                (k, m), n = sources[0]["shape"][:2], sources[1]["shape"][1]
                event["gemm"] = {
                    "variant": "ggml_graph_op_v1",
                    "m": m,
                    "n": n,
                    "k": k,
                    "batch_shape": [1, 1],
                }
                if observer == "sketch":
                    data = product_data(made["name"], position)
                    event["stage"] = "post_compute_sketch"
                    event["sketch"] = {
                        "scheme": "sign_bucket_256_v1",
                        "bits": 256,
                        "elements": len(data) // 4,
                        "hex": sketch(data),
                    }
                    event["tile"] = {
                        "variant": "graph_fallback_logical_prefix_v1",
                        "offset": 0,
                        "elements": len(data) // 4,
                    }
                    event["kernel_trace"] = {
                        "available": False,
                        "backend": "none",
                        "claim": "not_a_cuda_kernel_trace",
                    }
            elif made["name"] == "ffn_moe_topk-0" and observer == "sketch":
                routes += 1
                found.append(
                    {
                        "record": "route",
                        "route_seq": routes,
                        "event_seq": events,
                        "phase": phase,
                        "phase_step": number,
                        "position": position,
                        "layer": 0,
                        "expert_count": 4,
                        "expert_ids": CHOSEN[position],
                    }
                )
    return found


def records(observer: str) -> list[Record]:
    """Return a whole transcript."""
    body = [] if observer == "off" else observed(observer)
    result = {
        "record": "result",
        "status": "ok",
        "stop_reason": "eog",
        "prompt_token_ids": PROMPT_IDS,
        "generated_token_ids": GENERATED_IDS,
        "output_bytes": list(OUTPUT),
        "output_n_bytes": len(OUTPUT),
        "event_count": sum(record["record"] == "event" for record in body),
    }
    return [header(observer), *body, result]


def line(record: Record) -> bytes:
    """Return the line of one record."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode() + b"\n"


def transcript(observer: str) -> bytes:
    """Return the bytes of a whole transcript."""
    return b"".join(map(line, records(observer)))
