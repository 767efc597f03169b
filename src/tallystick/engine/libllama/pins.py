"""The engine builds that the adapter knows, by the sha256 of the shared object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ENGINE_NAME: Final = "llama.cpp (xllamacpp)"
LIBRARY_FILE: Final = "xllamacpp.abi3.so"


@dataclass(frozen=True, slots=True)
class Pin:
    """One published wheel: its version and platform, and the sha256 of its library."""

    version: str
    platform: str
    library: str


PINS: Final = (
    Pin(
        "2026.10.11549",
        "linux x86_64",
        "sha256:78dcbbfcc861ee3377554325dc12864829a76ec3de6f1882886d4a82a2def7f5",
    ),
)

# What the pinned build's default parameters are: if a field moved, these would not be found here.
MODEL_DEFAULTS: Final = {
    "n_gpu_layers": -1,
    "split_mode": 1,
    "load_mode": -1,
    "lazy_mode": 1,
    "main_gpu": 0,
    "vocab_only": False,
    "check_tensors": False,
    "use_extra_bufts": True,
    "no_host": False,
    "no_alloc": False,
    "load_mtp": False,
}
CONTEXT_DEFAULTS: Final = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_rs_seq": 0,
    "n_outputs_max": 0,
    "n_outputs_max_per_seq": 1,
    "n_threads": 4,
    "n_threads_batch": 4,
    "ctx_type": 0,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
    "rope_freq_base": 0.0,
    "rope_freq_scale": 0.0,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": -1.0,
    "yarn_beta_fast": -1.0,
    "yarn_beta_slow": -1.0,
    "yarn_orig_ctx": 0,
    "defrag_thold": -1.0,
    "type_k": 1,
    "type_v": 1,
    "moe_cache_size": 0,
    "embeddings": False,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
    "kv_unified": False,
    "n_samplers": 0,
}
STRUCT_SIZES: Final = {
    "llama_model_params": 80,
    "llama_context_params": 168,
    "ggml_tensor": 336,
    "llama_batch": 56,
}
MAX_OPERATION: Final = 101


def find_pin(library: str) -> Pin | None:
    """Return the pin whose library digest is ``library``."""
    return next((pin for pin in PINS if pin.library == library), None)
