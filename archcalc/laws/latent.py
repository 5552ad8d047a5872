"""Seconds of latent attention in a decode step: all query heads of a sequence read one latent for each of its keys.

    reading    of latents and rotary keys at the memory's speed, or the products of heads in blocks of 64
    starts     of a unit's 64 heads of a sequence, in waves
    decode     launch + (reading^3 + starts^3)^(1/3) - a start + splitting the keys + queries and results

A prefill is ordinary attention with a key head for each query head: `attention.prefill_seconds`.
Source: DeepSeek-V2, arXiv:2405.04434 (absorbed matrices); the algorithm as FlashMLA has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp

from archcalc.hardware import Device

US = 1e-6
HEADS = 64  # of a block


@dataclass(frozen=True)
class LatentDecode:
    """Fitted constants.

    Args:
        launch, start: microseconds. bandwidth, rate: shares of the device's. splitting: microseconds that splitting
            and joining take, in full from about `span` microseconds of reading on. passes: how often queries and
            results cross memory.
    """

    launch: float
    bandwidth: float
    rate: float
    splitting: float
    span: float
    start: float
    passes: float


def latent_decode_seconds(
    sequences: float,
    keys: float,
    heads: int,
    width: float,
    value_width: float,
    law: LatentDecode,
    device: Device,
    size: float = 2,
) -> float:
    """Seconds of a decode step.

    Args:
        width: numbers of a key, its latent and its rotary part. value_width: of the latent alone. size: bytes of one.
    """
    blocks = ceil(heads / HEADS)
    memory = sequences * keys * width * size / (law.bandwidth * device.bytes_per_second)
    products = 2 * sequences * blocks * HEADS * keys * (width + value_width) / (law.rate * device.wide_rate)
    reading = max(memory, products)
    start = law.start * US
    waves = max(1, sequences * blocks / device.units)
    seconds = (reading**3 + (waves * start) ** 3) ** (1 / 3) - start
    seconds += law.splitting * US * (1 - exp(-reading / (law.span * US)))
    moved = 2 * sequences * heads * (width + value_width) * law.passes / device.bytes_per_second
    return law.launch * US + seconds + moved
