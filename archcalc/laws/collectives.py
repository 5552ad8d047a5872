"""Seconds of collectives between devices that are linked, each to each, within a node.

A short all-reduce goes in one step: each rank sends all that it has to every other. A long one goes in two: each rank
sums a part of the numbers and sends the sum round. An engine takes the faster one.

    one step    latency + ranks' share + bytes·(p - 1) / link
    two steps   latency + ranks' share + 2·bytes·(p - 1)/p / link
    gather      a half of two steps: each rank sends its part to all

Across nodes the second is a ring over the nodes' network beside those within. Source: Thakur, Rabenseifner and Gropp
2005, doi:10.1177/1094342005051521.
"""

from __future__ import annotations

from dataclasses import dataclass

from archcalc.hardware import Device

US = 1e-6


@dataclass(frozen=True)
class AllReduce:
    """Fitted constants: latencies in microseconds, shares of the link's bandwidth, microseconds of a further rank."""

    one_latency: float
    two_latency: float
    one_share: float
    two_share: float
    per_rank: float


def all_reduce_seconds(nbytes: float, ranks: int, law: AllReduce, device: Device) -> float:
    """An all-reduce of so many bytes, which every rank has and gets."""
    if ranks == 1:
        return 0.0
    others, link = ranks - 1, device.link_bytes_per_second
    one = law.one_latency * US + nbytes * others / (law.one_share * link)
    two = law.two_latency * US + 2 * nbytes * others / ranks / (law.two_share * link)
    return law.per_rank * US * others + min(one, two)


def gather_seconds(nbytes: float, ranks: int, law: AllReduce, device: Device) -> float:
    """An all-gather, a reduce-scatter or an all-to-all; `nbytes` is all that a rank ends, or begins, with."""
    if ranks == 1:
        return 0.0
    others, link = ranks - 1, device.link_bytes_per_second
    return (law.one_latency + law.per_rank * others) * US + nbytes * others / ranks / (law.two_share * link)
