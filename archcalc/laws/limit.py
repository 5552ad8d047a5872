"""The speed of light: each kernel at the device's peak rate or at its memory's speed, nothing launched."""

from __future__ import annotations

from dataclasses import dataclass

from archcalc.hardware import Device
from archcalc.kernels import Attend, Mixture
from archcalc.precision import Precision
from archcalc.step import Sequences, seen


@dataclass(frozen=True)
class Limit:
    """Laws of step.Laws. Args: cache: format of keys and values; activations are in 16 bits."""

    device: Device
    weights: Precision
    cache: Precision

    def product(self, m: float, n: int, k: int, higher: bool) -> float:
        bits, rate = (16, self.device.wide_rate) if higher else (self.weights.bits, self.device.rate(self.weights.rate))
        moved = bits / 8 * n * k + 2 * m * (n + k)
        return max(2 * m * n * k / rate, moved / self.device.bytes_per_second)

    def attention(self, attend: Attend, work: Sequences) -> float:
        pairs, keys = seen(attend, work)
        both = attend.width if attend.shared else attend.width + attend.value_width
        flops = 2 * work.count * pairs * attend.heads * (attend.width + attend.value_width)
        moved = work.count * keys * attend.kv_heads * both * self.cache.bits / 8
        moved += 2 * work.count * work.tokens * attend.heads * (attend.width + attend.value_width)
        return max(flops / self.device.wide_rate, moved / self.device.bytes_per_second)

    def mixture(self, tokens: float, mixture: Mixture) -> float:
        matrix = mixture.matrices * mixture.hidden * mixture.inner
        flops = 2 * tokens * mixture.chosen * mixture.experts / mixture.every * matrix
        moved = touched(tokens, mixture) * matrix * self.weights.bits / 8
        return max(flops / self.device.rate(self.weights.rate), moved / self.device.bytes_per_second)

    def all_reduce(self, numbers: float, ranks: int) -> float:
        link = self.device.link_bytes_per_second
        return 2 * 2 * numbers * (ranks - 1) / ranks / link if ranks > 1 else 0.0

    def moved(self, numbers: float, kernels: int) -> float:
        return 2 * numbers / self.device.bytes_per_second


def touched(tokens: float, mixture: Mixture) -> float:
    """How many of a rank's experts so many tokens choose, on average, where all experts are as likely."""
    return mixture.experts * (1 - (1 - mixture.chosen / mixture.every) ** tokens)
