"""The least time a pass can take on a device: each op at the peak rate or at the memory's speed.

Source: Williams, Waterman and Patterson 2009, doi:10.1145/1498765.1498785. Ops run one after another, so
the time of a pass is the sum over its ops, each max(FLOPs / peak, bytes / bandwidth). No launch times,
no overlap between ops, no collective: a limit, not a forecast.
"""

from __future__ import annotations

from typing import NamedTuple, TypedDict

from archcalc.cost import Pass, costs
from archcalc.hardware import Device
from archcalc.ops import Cost
from archcalc.precision import Precision


class Part(TypedDict):
    """One line of a pass, all its layers together: plain data, as a report has it."""

    name: str
    layers: int
    flops: int
    bytes: int
    seconds: float
    bound: str  # "compute" or "memory"
    block: str  # the kind of block; empty outside of blocks


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


def traffic(cost: Cost, weights: Precision, cache: Precision) -> int:
    """Bytes that an op must move: its weights once, activations in and out, keys and values."""
    _, _, read, activations, cached, written = cost
    moved = -(-read * weights.bits // 8) + weights.activation_bytes * activations  # `stored_bytes`, without the calls
    return moved - (-(cached + written) * cache.bits // 8)


def roofline(run: Pass, device: Device, weights: Precision, cache: Precision, dense: bool = False) -> Roofline:
    """Time of a pass at the device's peaks; `cache` is the number format of keys and values."""
    rate, bandwidth = device.rate(weights.rate), device.bytes_per_second
    parts, flops, moved, spent = [], 0, 0, {"compute": 0.0, "memory": 0.0}
    for line, cost in zip(run.bound.lines, costs(run, dense), strict=True):
        name, _, group, _, count, _, _ = line
        line_flops, line_bytes = count * cost.flops, count * traffic(cost, weights, cache)
        compute, memory = line_flops / rate, line_bytes / bandwidth
        bound, seconds = ("compute", compute) if compute > memory else ("memory", memory)
        part: Part = {
            "name": name,
            "layers": count,
            "flops": line_flops,
            "bytes": line_bytes,
            "seconds": seconds,
            "bound": bound,
            "block": group.block,
        }
        parts.append(part)
        spent[bound] += seconds
        flops += line_flops
        moved += line_bytes
    bound = "compute" if spent["compute"] > spent["memory"] else "memory"
    return Roofline(run.name, flops, moved, spent["compute"] + spent["memory"], bound, parts)
