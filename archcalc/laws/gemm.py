"""Seconds of a matrix product on a GPU: [m, k] by [k, n], as libraries run it in tiles.

A library cuts the result into tiles and gives each to a unit (a streaming multiprocessor) in waves; where there are
fewer tiles than units it cuts k too, and adds up. It picks what is fastest, so the law takes the least of a few tiles
and splits. Beside this stands the time to read and write memory; both join in a soft maximum, p = 4.

    tile      ((2·tm·tn·k' / unit's rate)^4 + (pipeline steps of k')^4)^(1/4) + writing it + a wave's start
    compute   waves x tile + summing the parts of a split k
    memory    bytes / bandwidth + a ramp, that short transfers do not get over
    product   launch + (compute^4 + memory^4)^(1/4), and before it the rounding of the activations to 8 or 4 bits

The constants of a device, engine and number format are fitted to measured products: see `archcalc.laws.fit`.
Derivation: waves and tiles as in NVIDIA's "Matrix Multiplication Background User's Guide".
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, inf, log2

from archcalc.hardware import Device

TILES = ((64, 64), (64, 128), (128, 128), (128, 256))
SPLITS = (1, 2, 4, 8, 16)
SHORTEST_SPLIT = 256  # of k
STEP_BYTES = 128  # of k that a unit loads at once
WIDE = ("bf16", "fp16", "fp32")
US = 1e-6


@dataclass(frozen=True)
class Gemm:
    """Fitted constants. Shares are of the device's dense rate and of its bandwidth; times are in microseconds.

    Args:
        launch: what any product takes. rate, bandwidth: shares that are reached at most.
        ramp, ramp_span: extra time of a transfer, in full from about `ramp_span` at full bandwidth on.
        wave: start of a wave. step: least time of a pipeline step. epilogue: writing a tile, in times at the unit's
            part of the bandwidth. split: of each doubling of the parts of k.
        rounding: times that the activations' bytes pass through memory before a product in 8 or 4 bits.
        resident: share of a transfer that is saved where all that is in use fits into the device's cache.
    """

    launch: float
    rate: float
    bandwidth: float
    ramp: float
    ramp_span: float
    wave: float
    step: float
    epilogue: float
    split: float
    rounding: float = 0.0
    resident: float = 0.0


def gemm_seconds(
    m: float, n: float, k: float, law: Gemm, device: Device, number_format: str, bits: float, in_use: float = inf
) -> float:
    """Seconds of a product.

    Args:
        number_format: whose rate of the device the product has. bits: of an entry of the weights [k, n], and of the
            activations too, unless the product is one of 16 bits.
        in_use: bytes that are used before the same weights are used again; infinite in a large model.
    """
    bandwidth = device.bytes_per_second
    size = bits / 8
    other = 2 if number_format in WIDE else size
    compute = _least(m, n, k, law, device, device.rate(number_format), size)
    moved = other * m * k + size * n * k + 2 * m * n
    memory = moved / (law.bandwidth * bandwidth) * (1 - _saved(in_use, law, device))
    memory += law.ramp * US * (1 - exp(-moved / (law.ramp_span * US * bandwidth)))
    rounding = law.rounding * (2 + other) * m * k / (law.bandwidth * bandwidth) if other < 2 else 0.0
    return law.launch * US + (compute**4 + memory**4) ** 0.25 + rounding


def _saved(in_use: float, law: Gemm, device: Device) -> float:
    """The share of memory's time that the cache saves: all that it can, up to some per cent above its size."""
    return 0.0 if in_use == inf else law.resident / (1 + (in_use / (1.08 * device.cache_bytes)) ** 32)


def _least(m: float, n: float, k: float, law: Gemm, device: Device, rate: float, size: float) -> float:
    """Seconds of computing with the best tile and split."""
    units, bandwidth = device.units, device.bytes_per_second
    best = inf
    padded = ceil(m / 16) * 16
    for tall, wide in TILES:
        tiles = max(padded / tall, 1) * ceil(n / wide)
        area = tall * wide
        fixed = law.wave * US + law.epilogue * 2 * area * units / bandwidth
        per_k = 2 * area * units / (law.rate * rate)
        least_per_k = size / STEP_BYTES * law.step * US
        slope = (per_k**4 + least_per_k**4) ** 0.25
        for parts in SPLITS:
            if parts > 1 and k < parts * SHORTEST_SPLIT:
                break
            waves = ceil(tiles * parts / units)
            seconds = waves * (slope * k / parts + fixed)
            if parts > 1:
                seconds += law.split * US * log2(parts) + 4 * (parts - 1) * m * n / bandwidth
            best = min(best, seconds)
            if tiles * parts >= 2 * units:
                break
    return best
