"""The least time a pass can take on a device: each op at the peak rate or at the memory's speed.

Source: Williams, Waterman and Patterson 2009, doi:10.1145/1498765.1498785. Ops run one after another, so
the time of a pass is the sum over its ops, each max(FLOPs / peak, bytes / bandwidth). No launch times,
no overlap between ops, no collective: a limit, not a forecast.
"""

from __future__ import annotations

from typing import NamedTuple

from archcalc.cost import FLOPS, Pass, columns_of
from archcalc.hardware import Device
from archcalc.ops import Cost
from archcalc.precision import Precision


class Part(NamedTuple):
    """One line of a pass, all its layers together."""

    name: str
    layers: int
    flops: int
    bytes: int
    seconds: float
    bound: str  # "compute" or "memory"


class Roofline(NamedTuple):
    """A pass at the limit. `bound` is what most of the time is spent on; intensity is FLOPs a byte."""

    name: str
    flops: int
    bytes: int
    seconds: float
    bound: str
    parts: list[Part]

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes


def traffic(cost: Cost | list, weights: Precision, cache: Precision) -> int:
    """Bytes that an op must move: its weights once, activations in and out, keys and values."""
    _, _, weights_read, activations, cache_read, cache_written = cost
    moved = -(-weights_read * weights.weight_bits // 8) + weights.activation_bytes * activations
    return moved + cache.activation_bytes * (cache_read + cache_written)


def roofline(run: Pass, device: Device, weights: Precision, cache: Precision, dense: bool = False) -> Roofline:
    """Time of a pass at the device's peaks; `cache` is the number format of keys and values."""
    rate, bandwidth = device.rate(weights.rate), device.bytes_per_second
    lines, parts, of_equal_cost = run.bound.lines, [], {}
    flops, moved, spent = 0, 0, {"compute": 0.0, "memory": 0.0}
    for line, cost in zip(lines, columns_of(lines, run, dense), strict=True):
        count, found = line.count, of_equal_cost.get(id(cost))
        if found is None:
            found = of_equal_cost[id(cost)] = _least(cost, rate, bandwidth, weights, cache)
        bound, line_flops, line_bytes, seconds = found
        line_flops, line_bytes, seconds = count * line_flops, count * line_bytes, count * seconds
        parts.append(Part(line.name, count, line_flops, line_bytes, seconds, bound))
        spent[bound] += seconds
        flops += line_flops
        moved += line_bytes
    bound = "compute" if spent["compute"] > spent["memory"] else "memory"
    return Roofline(run.name, flops, moved, spent["compute"] + spent["memory"], bound, parts)


def _least(cost: list, rate: float, bandwidth: float, weights: Precision, cache: Precision):
    """(bound, FLOPs, bytes, seconds) of one layer of a line."""
    flops, moved = cost[FLOPS], traffic(cost, weights, cache)
    compute, memory = flops / rate, moved / bandwidth
    return ("compute", flops, moved, compute) if compute > memory else ("memory", flops, moved, memory)
