"""What is fitted and validated: a law, the measured rows that it must explain, how a row's sizes are read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from archcalc.hardware import Device, device
from archcalc.laws import tables
from archcalc.laws.attention import Decode, Kernels, Prefill, decode_kernels, decode_seconds, prefill_seconds
from archcalc.laws.collectives import AllReduce, all_reduce_seconds
from archcalc.laws.experts import Experts, experts_seconds
from archcalc.laws.gemm import Gemm, gemm_seconds
from archcalc.laws.latent import LatentDecode, latent_decode_seconds
from archcalc.laws.tables import Measured

SEED = 0
DECODE_MOST = (40, 1, 60, 30, 0.6, 50, 10, 40, 20, 12, 60)
FEWEST = 500  # rows of experts: fewer are of one model
PRODUCT_BITS = {"bf16": 16, "fp8": 8, "fp4": 4.5}  # of an entry; those of 4 bits share a scale of 8 among 16


class Problem(NamedTuple):
    """Rows of one law on one device, by one engine, in one number format.

    Args:
        key: `device/engine`, `/format` where there are several. seconds: of a law's constants and a row's sizes.
        start, most: constants to begin a fit with, 0 for one that stays 0, and the largest that they may become.
    """

    law: str
    key: str
    rows: Sequence[Measured]
    seconds: Callable[[Any, dict[str, float]], float]
    start: Any
    most: tuple[float, ...]

    def halves(self) -> tuple[list[Measured], list[Measured]]:
        """(rows to fit, rows to report on), drawn by a fixed seed."""
        order = random.Random(SEED).sample(range(len(self.rows)), len(self.rows))
        middle = len(order) // 2
        return [self.rows[i] for i in order[:middle]], [self.rows[i] for i in order[middle:]]

    def errors(self, law: Any, rows: Sequence[Measured]) -> list[float]:
        """Predicted / measured - 1 of each row."""
        return [self.seconds(law, row.sizes) / row.seconds - 1 for row in rows]


def problems(name: str, engine: str) -> Iterator[Problem]:
    """All of a device and engine that have measured rows."""
    target, key = device(name), f"{name}/{engine}"
    for number_format, bits in PRODUCT_BITS.items():
        rows = tables.products(name, engine, number_format)
        if rows and number_format in target.flops_per_second:
            yield _products(target, f"{key}/{number_format}", rows, number_format, bits)
        rows = tables.experts(name, engine, number_format)
        if len(rows) >= FEWEST and number_format in target.flops_per_second:
            yield _experts(target, f"{key}/{number_format}", rows, number_format, bits)
    if rows := tables.prefills(name, engine):
        start, most = Prefill(12, 1, 0.7, 20, 2, 1, 0.85, 1, 0.5, 0.3), (60, 20, 1.2, 200, 30, 3, 2, 20, 10, 1)
        yield Problem("prefill", key, rows, lambda law, sizes: _prefill(law, sizes, target), start, most)
    if rows := tables.decodes(name, engine):
        start, most = (
            Decode(5.2, 0.9, 4.4, 3, 0.1, 0.5, 0.8, 3.3, 1.2, 1.3, 6),
            (40, 1, 60, 30, 0.6, 50, 10, 40, 20, 12, 60),
        )
        kernels = decode_kernels(name, engine)
        yield Problem("decode", key, rows, lambda law, sizes: _decode(law, sizes, kernels, target), start, most)
    if rows := tables.latent_decodes(name, engine):
        start, most = LatentDecode(12, 0.9, 0.7, 10, 5, 8, 1), (60, 1, 1, 60, 100, 80, 10)
        yield Problem("latent", key, rows, lambda law, sizes: _latent(law, sizes, target), start, most)
    if rows := tables.all_reduces(name, engine):
        start, most = AllReduce(4, 15, 0.6, 0.7, 0.2), (100, 200, 1.2, 1.2, 20)
        yield Problem("all_reduce", key, rows, lambda law, sizes: _all_reduce(law, sizes, target), start, most)


def _products(target: Device, key: str, rows, number_format: str, bits: float) -> Problem:
    def seconds(law: Gemm, sizes: dict[str, float]) -> float:
        in_use = tables.bytes_in_use(sizes, bits)
        return gemm_seconds(sizes["m"], sizes["n"], sizes["k"], law, target, number_format, bits, in_use)

    cached = 0.3 if target.cache_bytes > 0.9 * tables.COPIES_BYTES else 0.0
    start = Gemm(2.5, 0.8, 0.8, 3, 8, 0.3, 0.05, 0.2, 1, float(bits < 16), cached)
    return Problem("gemm", key, rows, seconds, start, (50, 1.2, 1.1, 60, 400, 20, 5, 5, 200, 10, 0.95))


def _experts(target: Device, key: str, rows, number_format: str, bits: float) -> Problem:
    rate = target.rate(number_format)

    def seconds(law: Experts, sizes: dict[str, float]) -> float:
        inner, counts = sizes["inner"] / sizes["tp"], (sizes["chosen"], sizes["experts"], sizes["ranks"])
        known = True, law, target, rate, bits / 8, sizes["skew"]
        return experts_seconds(sizes["tokens"], sizes["hidden"], inner, *counts, *known)

    return Problem("experts", key, rows, seconds, Experts(20, 0.7, 0.85, 4, 0.2, 2), (200, 1.5, 1.2, 100, 10, 30))


def _prefill(law: Prefill, sizes: dict[str, float], target: Device) -> float:
    tokens, window = sizes["tokens"], int(sizes["window"]) or None
    seen = tokens if window is None else min(window, tokens)
    pairs = seen * (seen + 1) / 2 + (tokens - seen) * seen
    heads, rate = (int(sizes["heads"]), int(sizes["kv_heads"])), target.wide_rate
    return prefill_seconds(sizes["batch"], tokens, pairs, *heads, sizes["width"], window, law, target, rate)


def _decode(law: Decode, sizes: dict[str, float], kernels: Kernels, target: Device) -> float:
    heads, window = (int(sizes["heads"]), int(sizes["kv_heads"])), sizes["window"] or None
    return decode_seconds(sizes["batch"], sizes["tokens"] + 1, window, *heads, sizes["width"], law, kernels, target)


def _latent(law: LatentDecode, sizes: dict[str, float], target: Device) -> float:
    widths = tables.LATENT + tables.ROTARY, tables.LATENT
    seconds = latent_decode_seconds(sizes["batch"], sizes["tokens"] + 1, int(sizes["heads"]), *widths, law, target)
    return max(seconds, 1e-7)  # while a fit looks for a start that is not longer than the rest


def _all_reduce(law: AllReduce, sizes: dict[str, float], target: Device) -> float:
    return all_reduce_seconds(2 * sizes["numbers"], int(sizes["ranks"]), law, target)
