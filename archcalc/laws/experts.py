"""Seconds of a mixture's routed experts on one rank: two grouped products, and moving tokens to experts and back.

How many tokens an expert gets depends on how uneven routers are. `skew` 0: all experts get the same. Else the loads are
drawn from a density x^-skew between 1 and 0.8 x tokens, as in the measured tables, and the rank is the busiest one: it
has the hottest expert and average others.

    rows      of all its experts, each filled up to whole tiles of 64
    product   (compute^3 + memory^3)^(1/3), once for gate and up, once for down
    experts   launch + both products + rows moved + a serial part of each touched expert
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from archcalc.hardware import Device

US = 1e-6
TALL, WIDE = 64, 128


@dataclass(frozen=True)
class Experts:
    """Fitted constants.

    Args:
        launch: microseconds of routing, sorting, both products and the sum. rate, bandwidth: shares of the device's.
        passes: how often the routed activations cross memory. expert: microseconds of a touched expert. hottest: how
            far the hottest expert is from the mean, in times of what the density says.
    """

    launch: float
    rate: float
    bandwidth: float
    passes: float
    expert: float
    hottest: float


class Load(NamedTuple):
    """Rows of a rank's experts, and how many of these have any."""

    rows: float
    touched: float


def load(tokens: float, chosen: float, experts: float, ranks: float, skew: float, hottest: float) -> Load:
    """What the busiest of `ranks` gets of `tokens` that choose `chosen` of `experts` each."""
    choices = tokens * chosen
    if not skew:
        return Load(max(1, choices / ranks), max(1, min(experts, choices) / ranks))
    own, mean, power = experts / ranks, choices / experts, 1 - skew
    most = max(0.8 * tokens, 1.6)
    drawn = (most ** (1 + power) - 1) / (1 + power) * power / (most**power - 1)  # the density's mean
    top = (1 + (most**power - 1) * (1 - 0.5 / experts)) ** (1 / power)
    hot = min(tokens, max(mean, mean * (1 + (top / drawn - 1) * hottest)))
    others = (own - 1) * max(0, choices - hot) / max(experts - 1, 1)
    rows = max(1, min(hot + others, tokens * min(chosen, own)))
    least = max(1, 0.5 * drawn / mean)  # a smaller load is rounded to none
    idle = min(1, (least**power - 1) / (most**power - 1))
    used = max(1 - idle, min(mean, 0.3))
    return Load(rows, max(1, min(own, 1 + (own - 1) * used, choices)))


def experts_seconds(
    tokens: float,
    hidden: float,
    inner: float,
    chosen: float,
    experts: float,
    ranks: float,
    gated: bool,
    law: Experts,
    device: Device,
    rate: float,
    size: float,
    skew: float = 0.0,
) -> float:
    """Seconds of a layer's experts.

    Args:
        inner: channels of an expert on this rank. experts: of the layer, over `ranks` of expert parallelism.
        gated: gate and up, in place of one matrix. rate: FLOP/s of the products. size: bytes of a weight.
    """
    rows, touched = load(tokens, chosen, experts, ranks, skew, law.hottest)
    tiles = max(touched, rows / TALL + 0.5 * touched) if skew else touched * ceil(rows / touched / TALL)
    seconds = law.launch * US + 2 * hidden * rows * law.passes / device.bytes_per_second + law.expert * US * touched
    for wide, deep in (((1 + gated) * inner, hidden), (hidden, inner)):
        waves = max(1, tiles * ceil(wide / WIDE) / device.units)
        compute = waves * 2 * TALL * WIDE * deep * device.units / (law.rate * rate)
        memory = touched * wide * deep * size / (law.bandwidth * device.bytes_per_second)
        seconds += (compute**3 + memory**3) ** (1 / 3)
    return seconds
