"""Devices as data: dense peak rates, memory bandwidth and size, each with its source. Never sparse rates."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from archcalc.errors import ConfigError, nearest


@dataclass(frozen=True)
class Device:
    """Peak `flops_per_second` by number format, `bytes_per_second` of its memory, `memory_bytes` (1 GB = 10^9)."""

    name: str
    source: str
    flops_per_second: dict[str, float]
    bytes_per_second: float
    memory_bytes: float

    def rate(self, number_format: str) -> float:
        """FLOP/s in a number format; ConfigError if the device has no such unit."""
        if number_format not in self.flops_per_second:
            known = ", ".join(self.flops_per_second)
            raise ConfigError(f"precision={number_format}: {self.name} has no {number_format} rate; it has {known}")
        return self.flops_per_second[number_format]


def devices() -> dict[str, Device]:
    """Every known device by name."""
    rows = json.loads((Path(__file__).parent / "devices.json").read_text())
    return {name: Device(name, **row) for name, row in rows.items()}


def device(name: str) -> Device:
    """Look a device up by its exact name; ConfigError names the nearest."""
    known = devices()
    if name not in known:
        raise ConfigError(f"device={name!r}: unknown{nearest(name, known)}; known are {', '.join(known)}")
    return known[name]
