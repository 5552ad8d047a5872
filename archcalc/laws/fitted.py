"""Laws with the constants that were fitted to an engine on a device; see `archcalc.laws.fit`."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from archcalc.errors import ConfigError, one_of
from archcalc.hardware import Device, device
from archcalc.kernels import Attend, Mixture
from archcalc.laws.attention import Decode, Kernels, Prefill, decode_kernels, decode_seconds, prefill_seconds
from archcalc.laws.collectives import AllReduce, all_reduce_seconds
from archcalc.laws.experts import Experts, experts_seconds
from archcalc.laws.gemm import Gemm, gemm_seconds
from archcalc.laws.latent import LatentDecode, latent_decode_seconds
from archcalc.precision import Precision
from archcalc.step import Sequences, seen

KINDS = {
    "gemm": Gemm,
    "prefill": Prefill,
    "decode": Decode,
    "all_reduce": AllReduce,
    "experts": Experts,
    "latent": LatentDecode,
}
SKEW = 1.01  # of the experts' loads: close to what routers of released models do, as aiconfigurator has it
ENGINES = ("tensorrt-llm", "vllm", "sglang")
# Devices that nobody measured kernels on, and those whose shares of the peaks they are given.
LIKE = {
    "h100-nvl": "h100-sxm", "h100-pcie": "h100-sxm", "gb200": "b200", "b300": "b200", "a100-40gb-sxm": "a100-80gb-sxm",
    "a30": "a100-80gb-sxm", "a10": "a100-80gb-sxm", "t4": "a100-80gb-sxm", "v100-sxm": "a100-80gb-sxm",
    "rtx3090": "l40s", "rtx4090": "l40s", "rtx5090": "l40s", "rtx-pro-6000": "l40s", "l4": "l40s",
    "mi300x": "h100-sxm", "mi325x": "h200", "mi355x": "b200", "tpu-v5e": "a100-80gb-sxm", "tpu-v6e": "h100-sxm",
    "m2-ultra": "l40s",
}  # fmt: skip


@lru_cache(maxsize=1)
def fitted() -> dict[str, dict[str, dict[str, Any]]]:
    """Everything in `fitted.json`."""
    return json.loads(Path(__file__).with_name("fitted.json").read_text())


def constants(law: str, name: str, engine: str, number_format: str = "") -> tuple[Any, str]:
    """(a law's constants, the device they were measured on): this one's, or those of the one that it is like.

    Raises: ConfigError where no device has any.
    """
    rows = fitted()[law]
    suffix = f"/{number_format}" if number_format else ""
    for known in (name, LIKE.get(name), "h100-sxm"):
        for by in (engine, "tensorrt-llm"):
            if row := rows.get(f"{known}/{by}{suffix}"):
                kind = KINDS[law]
                return kind(**{field.name: row[field.name] for field in fields(kind)}), known
    raise ConfigError(f"precision={number_format}: no product in it was measured on {name} or a like device")


@dataclass(frozen=True)
class Fitted:
    """Laws of `step.Laws` for an engine on a device.

    Args:
        cache_size: bytes of a number of keys and values.
    """

    device: Device
    weights: Precision
    cache_size: float
    low: Gemm
    high: Gemm
    before: Prefill
    after: Decode
    splits: Kernels
    latent: LatentDecode
    reduce: AllReduce
    routed: Experts
    measured_on: str

    def product(self, m: float, n: int, k: int, higher: bool) -> float:
        if higher or self.weights.rate in ("bf16", "fp16"):
            bits = 16 if higher else self.weights.bits
            return gemm_seconds(m, n, k, self.high, self.device, self.device.wide, bits)
        bits = 4.5 if self.weights.rate == "fp4" else self.weights.bits
        return gemm_seconds(m, n, k, self.low, self.device, self.weights.rate, bits)

    def attention(self, attend: Attend, work: Sequences) -> float:
        pairs, _ = seen(attend, work)
        rate = self.device.wide_rate
        both = attend.width + attend.value_width
        if work.tokens > 1:
            window = attend.mask.limit if attend.mask.causal else None
            heads = attend.heads, attend.kv_heads
            width = both / 2
            return prefill_seconds(
                work.count, work.tokens, pairs, *heads, width, window, self.before, self.device, rate
            )
        window = attend.mask.limit if attend.mask.causal else None
        if attend.shared:
            keys = work.context if window is None else min(window, work.context)
            known = self.latent, self.device, self.cache_size
            return latent_decode_seconds(work.count, keys, attend.heads, attend.width, attend.value_width, *known)
        width = both / 2
        heads = attend.heads, attend.kv_heads
        known = self.after, self.splits, self.device, self.cache_size
        return decode_seconds(work.count, work.context, window, *heads, width, *known)

    def mixture(self, tokens: float, mixture: Mixture) -> float:
        known = mixture.matrices > 2, self.routed, self.device, self.device.rate(self.weights.rate)
        ranks, size = mixture.every / mixture.experts, self.weights.bits / 8
        counts = mixture.chosen, mixture.every, ranks
        return experts_seconds(tokens, mixture.hidden, mixture.inner, *counts, *known, size, SKEW)

    def all_reduce(self, numbers: float, ranks: int) -> float:
        return all_reduce_seconds(2 * numbers, ranks, self.reduce, self.device)

    def moved(self, numbers: float, kernels: int) -> float:
        return 2 * numbers / (0.7 * self.device.bytes_per_second)


@lru_cache(maxsize=256)
def laws(name: str, engine: str, weights: Precision, cache: Precision) -> Fitted:
    """The laws of an engine on a device. Raises: ConfigError for an unknown name, or a format without a rate."""
    one_of("engine", engine, ENGINES)
    target = device(name)
    target.rate(weights.rate)
    kind = "bf16" if weights.rate in ("bf16", "fp16") else _measured(weights.rate)
    high, on = constants("gemm", name, engine, "bf16")
    alone = {law: constants(law, name, engine)[0] for law in ("prefill", "decode", "latent", "all_reduce")}
    return Fitted(
        device=target,
        weights=weights,
        cache_size=cache.bits / 8,
        low=constants("gemm", name, engine, kind)[0],
        high=high,
        before=alone["prefill"],
        after=alone["decode"],
        splits=decode_kernels(name, engine),
        latent=alone["latent"],
        reduce=alone["all_reduce"],
        routed=constants("experts", name, engine, kind)[0],
        measured_on=on,
    )


def _measured(rate: str) -> str:
    return {"int8": "fp8", "fp32": "bf16", "fp16": "bf16"}.get(rate, rate)
