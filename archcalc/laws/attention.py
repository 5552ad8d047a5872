"""Seconds of attention on a GPU, in a prefill and in a decode step.

Prefill. A unit takes 128 queries of a head (a tile) and goes over their keys:

    pair      4·H / (rate of a unit) + softmax          for each (query, key), diagonal blocks whole
    work      all tiles' starts and pairs / units       the longest tile at least
    memory    queries, keys, values and results, some times, at the memory's speed or, where they fit, the cache's
    prefill   launch + memory + (work^2 + tail^2)^(1/2)

Decode. A packed kernel gives a unit one key head of a sequence with all query heads that share it; another one, for
groups that the packed one does not serve, a single query head. Where there are few of these, keys are split:

    starts    waves x a unit's fixed time, less where a split's neighbours have loaded the same queries
    reading   of keys and values at the memory's speed, or at that of a wave of units
    decode    launch + (starts^q + reading^q)^(1/q) + joining the splits

Source of the algorithms: Dao 2023, arXiv:2307.08691 (tiles), and its split keys for decoding; XQA and MMHA of
TensorRT-LLM.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, log2
from typing import NamedTuple

from archcalc.hardware import Device

US, PS = 1e-6, 1e-12
TALL = 128  # queries of a tile
BLOCK = 64  # keys and queries that are masked together
FITS = 0.8  # of the cache's size: what it holds from one step to the next
TUNED = 128  # head_dim that kernels are written for


@dataclass(frozen=True)
class Prefill:
    """Fitted constants.

    Args:
        launch, tile: microseconds of a launch, of a tile's start; tuned: share of both, where heads have 128 channels.
        rate: share of the device's. softmax: picoseconds of a pair on a unit. passes: how often what is read and
            written passes through memory. tail: how much of the longest tile is left alone.
        edge: further blocks of keys at the edge of a window. spill: size from which on memory counts, in sizes of the
            cache; resident: of memory's time, what is left below it.
    """

    launch: float
    tile: float
    rate: float
    softmax: float
    passes: float
    tail: float
    tuned: float
    edge: float
    spill: float
    resident: float


@dataclass(frozen=True)
class Kernels:
    """How an engine splits a decode step's keys, read off the steps in its measured times; not fitted.

    Args:
        shortest: keys of a split. waves: of splits at most; only while heads are at most `until` x units.
        whole: the rule sees all keys, not those of the window. groups: sizes of a group that the packed kernel serves,
            where sequences x key heads x tiles of 128 keys reach units / `least`. per_group: a group of g costs
            1 + g/per_group. masked: cost of a start with a window. at_once: units' share of single heads that start
            together. by_units: whether units limit the reading.
    """

    shortest: int
    waves: float
    until: float
    whole: bool
    groups: tuple[float, float]
    least: float
    per_group: float
    masked: float = 1.0
    at_once: float = 1.0
    by_units: bool = False


@dataclass(frozen=True)
class Decode:
    """Fitted constants.

    Args:
        launch, start: microseconds of the smallest kernel, and of a packed start alone on its unit.
        bandwidth: share of the device's that a long read reaches. neighbours: a start of s splits costs s^-neighbours.
        joining: microseconds, a fifth more for each doubling of the splits. resident: of memory's time, x/(1+x) is
            left where keys and values fit into the cache. overlap: of starts and reading, as a norm.
        single, crowded, merging, reading: of the kernel for single query heads: microseconds of a start, of one on a
            busy unit, of merging a wave of splits; and how fast units read, in times of the memory's bandwidth.
    """

    launch: float
    bandwidth: float
    start: float
    joining: float
    neighbours: float
    resident: float
    overlap: float
    single: float
    crowded: float
    reading: float
    merging: float


def prefill_seconds(
    sequences: float,
    tokens: float,
    pairs: float,
    heads: int,
    kv_heads: int,
    width: float,
    window: int | None,
    law: Prefill,
    device: Device,
    rate: float,
    size: float = 2,
) -> float:
    """Seconds of a prefill's attention.

    Args:
        pairs: (query, key) pairs of a sequence and head that are not masked. width: channels of a head, the mean of
            keys' and values'. rate: FLOP/s of the device. size: bytes of a number.
    """
    units = device.units
    seen = tokens if window is None else min(window, tokens)
    rows = ceil(tokens / BLOCK) * BLOCK
    blocks = pairs + rows * BLOCK * (1 if seen == tokens else 1 + law.edge)
    pair = 4 * width * units / (law.rate * rate) + law.softmax * PS
    tuned = law.tuned if width == TUNED else 1
    tile = law.tile * US * tuned
    work = sequences * heads * (ceil(tokens / TALL) * tile + blocks * pair) / units
    tail = (tile + min(TALL, rows) * min(seen + TALL, rows) * pair) * law.tail
    moved = size * sequences * tokens * width * 2 * (heads + kv_heads)
    spilled = 1 / (1 + (law.spill * device.cache_bytes / moved) ** 3)
    memory = moved * law.passes / device.bytes_per_second * (spilled + (1 - spilled) * law.resident)
    return law.launch * US * tuned + memory + (work**2 + tail**2) ** 0.5


def decode_seconds(
    sequences: float,
    context: float,
    window: float | None,
    heads: int,
    kv_heads: int,
    width: float,
    law: Decode,
    kernels: Kernels,
    device: Device,
    size: float = 2,
) -> float:
    """Seconds of a decode step's attention.

    Args:
        context: keys of a sequence, of which the last `window` are read. width: channels of a head, the mean of keys'
            and values'. size: bytes of a number of keys and values.
    """
    keys = context if window is None else min(window, context)
    row = 2 * width * size  # bytes of a token's key and value of a head
    moved = sequences * kv_heads * keys * row
    spilled = 1 / (1 + (FITS * device.cache_bytes / moved) ** 4)
    memory = moved / (law.bandwidth * device.bytes_per_second)
    memory *= spilled + (1 - spilled) * law.resident / (1 + law.resident)
    work = _Step(sequences, context, keys, heads, kv_heads, width, row, memory)
    seconds = (
        _packed(work, law, kernels, device)
        if _is_packed(work, kernels, device)
        else _single(work, law, kernels, device)
    )
    return law.launch * US + seconds


class _Step(NamedTuple):
    sequences: float
    context: float
    keys: float
    heads: int
    kv_heads: int
    width: float
    row: float
    memory: float


def _is_packed(work: _Step, kernels: Kernels, device: Device) -> bool:
    least, most = kernels.groups
    group, history = work.heads / work.kv_heads, work.context if kernels.whole else work.keys
    tiles = work.sequences * work.kv_heads * max(1, history // 128)
    return least <= group <= most and (not kernels.least or tiles * kernels.least >= device.units)


def _packed(work: _Step, law: Decode, kernels: Kernels, device: Device) -> float:
    starts, units = work.sequences * work.kv_heads, device.units
    history = work.context if kernels.whole else work.keys
    splits = 1.0
    if starts <= kernels.until * units:
        splits = min(max(history // kernels.shortest, 1), ceil(kernels.waves * units / starts))
    busy = min(1, ceil(work.keys * splits / history) / splits)  # those with keys inside of the window
    waves = ceil(starts * splits / units)
    channels = 2 ** ceil(log2(work.width)) / 128
    fixed = waves * (busy + 0.7 * (1 - busy)) * law.start * US * (0.85 + 0.15 * channels**2)
    fixed *= (1 + work.heads / work.kv_heads / kernels.per_group) * splits**-law.neighbours
    fixed *= kernels.masked if work.keys < work.context else 1
    read = work.memory
    if kernels.by_units:
        read = max(waves * work.keys / splits * work.row * units / (law.reading * device.bytes_per_second), read)
    q = 1 + 0.4 * law.overlap if splits > 1 else 1 + law.overlap
    joined = law.joining * US * (1 + 0.2 * log2(splits)) if splits > 1 else 0.0
    return (fixed**q + read**q) ** (1 / q) + joined


def _single(work: _Step, law: Decode, kernels: Kernels, device: Device) -> float:
    starts, units = work.sequences * work.heads, device.units
    channels = 2 ** ceil(log2(work.width))
    splits = 1.0
    if starts <= units:
        splits = min(max(work.keys * channels // 32768, 1), ceil(3 * units / starts))
    share = starts * splits / units
    alone = law.single * min(1, 0.5 + work.width / 256) * (1 + 0.75 * min(1, work.keys / 64))
    alone *= 1 + 1.5 * (starts > kernels.at_once * units)
    crowded = share * law.crowded * (1 + 0.35 * min(1, work.keys / 16) ** 2)
    fixed = US * (alone**4 + crowded**4) ** 0.25
    read = max(share, 1) * work.keys / splits * work.row * units / (law.reading * device.bytes_per_second)
    read = max(read, work.memory)
    merged = law.merging * US * max(1, share) if splits > 1 else 0.0
    return (fixed**1.8 + read**1.8) ** (1 / 1.8) + merged


XQA = Kernels(128, 8, 4, True, (2, 32), 4, 64, at_once=2, by_units=True)
FLASH = Kernels(64, 1, 0.5, False, (1, inf), 0, 200, masked=1.5)
GENERATED = Kernels(512, 8, 4, False, (1, 32), 0, 24)
KERNELS = {  # by engine, and by the architecture of devices where that has others
    "tensorrt-llm": XQA,
    "tensorrt-llm/a100": replace(XQA, at_once=1),
    "tensorrt-llm/b": GENERATED,
    "vllm": FLASH,
    "sglang": FLASH,
}


def decode_kernels(device: str, engine: str) -> Kernels:
    """How this engine decodes on this device."""
    if engine == "tensorrt-llm":
        kind = "/b" if device in BLACKWELL else "/a100" if device.startswith("a100") else ""
        return KERNELS[engine + kind]
    return replace(GENERATED, groups=(1, inf)) if device in BLACKWELL else KERNELS[engine]


BLACKWELL = ("b200", "b300", "gb200")
