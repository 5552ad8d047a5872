"""Devices as data: dense peak rates, memory bandwidth and size, each with its source. Never sparse rates."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

from archcalc.errors import ConfigError, nearest
from archcalc.hf import read_json


@dataclass(frozen=True)
class Device:
    """Peak `flops_per_second` by number format, `bytes_per_second` of its memory, `memory_bytes` (1 GB = 10^9).

    Args:
        units: that work side by side: streaming multiprocessors, compute units, cores. cache_bytes: of the last cache
            before memory.
        link_bytes_per_second: to the other devices of a node together, one direction; 0 where there is no link.
        devices_per_node: that are linked so.
    """

    name: str
    source: str
    flops_per_second: dict[str, float]
    bytes_per_second: float
    memory_bytes: float
    units: int = 1
    cache_bytes: float = 0.0
    link_bytes_per_second: float = 0.0
    devices_per_node: int = 1

    def rate(self, number_format: str) -> float:
        """FLOP/s in a number format; ConfigError if the device has no such unit."""
        if number_format not in self.flops_per_second:
            known = ", ".join(self.flops_per_second)
            raise ConfigError(f"precision={number_format}: {self.name} has no {number_format} rate; it has {known}")
        return self.flops_per_second[number_format]

    @property
    def wide(self) -> str:
        """The format of its products in 16 bits, or in 32 if it has none."""
        return next(name for name in ("bf16", "fp16", "fp32") if name in self.flops_per_second)

    @property
    def wide_rate(self) -> float:
        return self.flops_per_second[self.wide]


@lru_cache(maxsize=1)
def devices() -> dict[str, Device]:
    """Every known device by name."""
    rows = read_json(os.path.join(os.path.dirname(__file__), "devices.json"))
    return {name: Device(name, **row) for name, row in rows.items()}


def device(name: str) -> Device:
    """Look a device up by its exact name; ConfigError names the nearest."""
    known = devices()
    if name not in known:
        raise ConfigError(f"device={name!r}: unknown{nearest(name, known)}; known are {', '.join(known)}")
    return known[name]
