"""Kernels that were measured on GPUs, from the tables of the package `aiconfigurator-core` (Apache-2.0, NVIDIA).

They are read where the package is installed, `pip install "archcalc[tables]"`, and never copied. A row of a table is a
kernel of an engine, its sizes, and the milliseconds that it took; the newest version of an engine that has a table
counts. Products are measured in turns over copies of their weights, of 100 MB together (seen on L40S, whose cache is
nearly as large: their times jump where a number of copies falls below its cache).
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import NamedTuple

from archcalc.errors import ArchcalcError

SYSTEMS = {
    "h100-sxm": "h100_sxm",
    "h100-pcie": "h100_pcie",
    "h200": "h200_sxm",
    "a100-80gb-sxm": "a100_sxm",
    "a30": "a30",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "l4": "l4",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
ENGINES = {"tensorrt-llm": "trtllm", "vllm": "vllm", "sglang": "sglang"}
FORMATS = {"bf16": ("bfloat16", "float16"), "fp8": ("fp8",), "fp8-block": ("fp8_block",), "fp4": ("nvfp4",)}
COPIES_BYTES = 100e6


class Measured(NamedTuple):
    """A measured kernel: its sizes by name, and seconds."""

    sizes: dict[str, float]
    seconds: float


def systems() -> Path:
    """The package's folder of tables. Raises: ArchcalcError where it is not installed."""
    found = importlib.util.find_spec("aiconfigurator_core")
    if found is None or not found.submodule_search_locations:
        raise ArchcalcError('aiconfigurator-core: not installed; pip install "archcalc[tables]"')
    return Path(next(iter(found.submodule_search_locations))) / "systems"


def table(device: str, kind: str, engine: str, name: str):
    """A table as a pandas frame, of the newest version that has it whole; None where there is none.

    Some versions were measured for a few new models only: one with less than half the rows of another is no whole one.
    """
    import pandas

    folder = systems() / "data" / SYSTEMS[device] / kind / ENGINES.get(engine, engine)
    files = sorted(folder.glob(f"*/{name}_perf.parquet"), key=lambda path: _version(path.parent.name))
    found = [pandas.read_parquet(file) for file in files]
    most = max(map(len, found), default=0)
    return next((frame for frame in reversed(found) if 2 * len(frame) >= most), None)


def _version(name: str) -> tuple:
    parts = name.replace("rc", ".").split(".")
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)


@lru_cache(maxsize=64)
def products(device: str, engine: str, number_format: str) -> tuple[Measured, ...]:
    """Matrix products [m, k] by [k, n], n and k from 512, the median of repeated rows."""
    found = table(device, "gemm", engine, "gemm")
    if found is None:
        return ()
    found = found[found.gemm_dtype.isin(FORMATS[number_format]) & (found.n >= 512) & (found.k >= 512)]
    found = found.groupby(["m", "n", "k"], as_index=False).latency.median()
    return tuple(
        Measured({"m": float(m), "n": float(n), "k": float(k)}, float(latency) / 1e3)
        for m, n, k, latency in zip(found.m, found.n, found.k, found.latency, strict=True)
    )


def bytes_in_use(sizes: dict[str, float], bits: float) -> float:
    """What is used before a product's weights are used again, in these measurements."""
    m, n, k = sizes["m"], sizes["n"], sizes["k"]
    moved = bits / 8 * (m * k + n * k) + 2 * m * n
    return moved * ceil(COPIES_BYTES / moved)


@lru_cache(maxsize=64)
def prefills(device: str, engine: str) -> tuple[Measured, ...]:
    """Attention of whole prompts, in bf16 with keys and values in bf16."""
    return _attention(device, engine, "context", "isl")


@lru_cache(maxsize=64)
def decodes(device: str, engine: str) -> tuple[Measured, ...]:
    """Attention of one token to `context` keys, its own among them, in bf16 with keys and values in bf16."""
    return _attention(device, engine, "generation", "step")


def _attention(device: str, engine: str, kind: str, tokens: str) -> tuple[Measured, ...]:
    found = table(device, "attention", engine, f"{kind}_attention")
    if found is None:
        return ()
    found = found[found.attn_dtype.isin(FORMATS["bf16"]) & found.kv_cache_dtype.isin(FORMATS["bf16"])]
    if "window_size" not in found:  # a version that had no windows
        found = found.assign(window_size=0)
    keys = ["batch_size", tokens, "num_heads", "num_key_value_heads", "head_dim", "window_size"]
    found = found.groupby(keys, as_index=False).latency.median()
    names = ("batch", "tokens", "heads", "kv_heads", "width", "window")
    rows = zip(*(found[key] for key in keys), found.latency, strict=True)
    return tuple(Measured(dict(zip(names, map(float, sizes), strict=True)), float(ms) / 1e3) for *sizes, ms in rows)


LATENT, ROTARY = 512, 64  # numbers of a key in the tables of latent attention, which are DeepSeek's


@lru_cache(maxsize=64)
def latent_decodes(device: str, engine: str) -> tuple[Measured, ...]:
    """Latent attention of one token to `tokens` + 1 keys, all in bf16."""
    found = table(device, "mla", engine, "generation_mla")
    if found is None:
        return ()
    found = found[found.mla_dtype.isin(FORMATS["bf16"]) & found.kv_cache_dtype.isin(FORMATS["bf16"])]
    keys = ["batch_size", "isl", "step", "num_heads"]
    found = found.groupby(keys, as_index=False).latency.median()
    rows = zip(found.batch_size, found.step, found.num_heads, found.latency, strict=True)
    return tuple(
        Measured({"batch": float(batch), "tokens": float(step), "heads": float(heads)}, float(ms) / 1e3)
        for batch, step, heads, ms in rows
    )


@lru_cache(maxsize=64)
def all_reduces(device: str, engine: str) -> tuple[Measured, ...]:
    """All-reduces of bf16 numbers by an engine's own kernels, as it runs them in a CUDA graph."""
    found = table(device, "comm", engine, "custom_allreduce")
    if found is None:
        return ()
    if "implementation" in found and engine != "tensorrt-llm":
        found = found[~found.implementation.str.contains("eager")]
    found = found.groupby(["num_gpus", "message_size"], as_index=False).latency.min()
    rows = zip(found.num_gpus, found.message_size, found.latency, strict=True)
    return tuple(Measured({"ranks": float(p), "numbers": float(n)}, float(ms) / 1e3) for p, n, ms in rows)


EXPERT_KERNELS = {  # of several that an engine has: the one that it takes for most models
    "tensorrt-llm": ("moe_torch_flow_cutlass", "deepgemm"),
    "vllm": ("vllm_unquantizedfusedmoe_triton_triton", "vllm_fp8moe_triton_tritonexperts"),
    "sglang": ("sglang_fused_moe_triton",),
}


@lru_cache(maxsize=64)
def experts(device: str, engine: str, number_format: str) -> tuple[Measured, ...]:
    """Routed experts with gates, each row's tokens spread evenly (`skew` 0) or by a power law."""
    found = table(device, "moe", engine, "moe")
    if found is None:
        return ()
    mine = found.kernel_source.str.startswith(EXPERT_KERNELS[engine]) & ~found.kernel_source.str.contains("nongated")
    found = found[mine & found.moe_dtype.isin(FORMATS[number_format])]
    keys = ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"]
    found = found.groupby([*keys, "distribution"], as_index=False).latency.median()
    names = ("tokens", "hidden", "inner", "chosen", "experts", "tp", "ranks")
    rows = []
    for *sizes, distribution, ms in zip(*(found[key] for key in keys), found.distribution, found.latency, strict=True):
        skew = float(distribution.rpartition("_")[2]) if distribution.startswith("power_law") else 0.0
        rows.append(Measured(dict(zip(names, map(float, sizes), strict=True)) | {"skew": skew}, float(ms) / 1e3))
    return tuple(rows)
