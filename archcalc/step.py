"""Seconds of one step of an engine on one rank: its kernels one after another, each by its law."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from archcalc.dims import pairs, span
from archcalc.kernels import Attend, Kernels, Mixture


class Laws(Protocol):
    """Seconds of a kernel on a device; `export.calibrate` and `archcalc.laws` have such ones."""

    def product(self, m: float, n: int, k: int, higher: bool) -> float: ...

    def attention(self, attend: Attend, work: Sequences) -> float: ...

    def mixture(self, tokens: float, mixture: Mixture) -> float: ...

    def all_reduce(self, numbers: float, ranks: int) -> float: ...

    def moved(self, numbers: float, kernels: int) -> float: ...


class Sequences(NamedTuple):
    """`count` sequences with `tokens` new ones each, at the end of `context` tokens; `rows` of them get logits."""

    count: float
    tokens: float
    context: float
    rows: float = 1


class Spent(NamedTuple):
    """A kernel of a step, all its layers together."""

    name: str
    kind: str  # product, attention, experts, collective or memory
    layers: int
    seconds: float


def spent(found: Kernels, work: Sequences, laws: Laws, ranks: int) -> list[Spent]:
    """What a step spends on each kernel. Args: ranks: of tensor parallelism, which reduce together."""
    rows = {"B": work.count, "T": work.tokens, "S": work.context, "R": work.rows}
    tokens = work.count * work.tokens
    lines = []
    for name, count, axes, n, k, higher in found.products:
        m = 1.0
        for axis in axes:
            m *= rows[axis]
        lines.append(Spent(name, "product", count, count * laws.product(m, n, k, higher)))
    for attend in found.attention:
        lines.append(Spent(attend.name, "attention", attend.count, attend.count * laws.attention(attend, work)))
    for mixture in found.mixtures:
        lines.append(Spent(mixture.name, "experts", mixture.count, mixture.count * laws.mixture(tokens, mixture)))
    for name, count, width in found.reduces:
        lines.append(Spent(name, "collective", count, count * laws.all_reduce(tokens * width, ranks)))
    for name, count, per_token, per_sequence, kernels in found.moved:
        numbers = tokens * per_token + work.count * per_sequence
        lines.append(Spent(name, "memory", count, count * laws.moved(numbers, kernels)))
    return lines


def seen(attend: Attend, work: Sequences) -> tuple[float, float]:
    """(query, key) pairs of a sequence and head, and keys of it that are read."""
    whole = {"T": int(work.tokens), "S": max(int(work.context), int(work.tokens))}
    return pairs(whole, attend.mask), span(whole, attend.mask)
