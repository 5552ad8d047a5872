"""What a paged engine reserves for keys and values: blocks of tokens, heads shared out over ranks, windows.

An engine cuts the cache of every layer into blocks of a few tokens and shares the layers' heads out over the ranks of
tensor parallelism. So a request costs whole blocks, and a rank more than its part where heads no longer divide.
Source: Kwon et al. 2023, arXiv:2309.06180 (blocks); Shoeybi et al. 2019, arXiv:1909.08053 (heads over ranks).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from archcalc.config import ModelConfig
from archcalc.cost import NO_TOKENS, bound
from archcalc.dims import Dims, Mask
from archcalc.errors import ConfigError, one_of
from archcalc.ops import size
from archcalc.precision import Precision

LONGEST = 2**40  # tokens; a request may not have more
UNITS = (
    {"B": 1}
    | {f"{p}B": 1000**n for n, p in enumerate("kMGT", 1)}
    | {f"{p}iB": 1024**n for n, p in enumerate("KMGT", 1)}
)


def parse_bytes(text: str) -> int:
    """Bytes of `3.81GiB`, `24 GB` or `1000`, rounded down to a whole byte. GB is 10^9, GiB 2^30.

    >>> parse_bytes("3.8125GiB"), parse_bytes("1.5 kB"), parse_bytes("7")
    (4093640704, 1500, 7)
    """
    found = re.fullmatch(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-z]*)\s*", text)
    if not found:
        raise ConfigError(f"bytes={text[:40]!r}: not a count of bytes; write one such as 3.81GiB, 24GB or 4096")
    one_of("unit", found[2] or "B", UNITS)
    return int(Fraction(found[1]) * UNITS[found[2] or "B"])


@dataclass(frozen=True)
class Paged:
    """How an engine keeps keys and values.

    Args:
        block_size: tokens of a block.
        tp: ranks of tensor parallelism. A rank holds max(1, K/tp) of K key/value heads: they are split while they
            last and then replicated. One latent for all heads (latent attention, an indexer's key) is replicated
            on every rank; the heads of a recurrent state are split.
        windowed_as_full: a layer that sees a window or a chunk is charged the whole length, as engines do that know
            one kind of layer only.
        prefill_chunk: most tokens of a prompt that are run at once. A windowed layer holds its window and them.
        room: bytes of one rank for keys and values. room_blocks: the same as a count of blocks, each `block_size`
            tokens in every layer. None: nothing is fitted.
    """

    block_size: int = 16
    tp: int = 1
    windowed_as_full: bool = False
    prefill_chunk: int = 8192
    room: int | None = None
    room_blocks: int | None = None

    def __post_init__(self):
        sizes = {"block_size": self.block_size, "tp": self.tp, "prefill_chunk": self.prefill_chunk}
        rooms = {"kv_bytes": self.room, "kv_blocks": self.room_blocks}
        for name, value in (sizes | {n: v for n, v in rooms.items() if v is not None}).items():
            if type(value) is not int or not 1 <= value <= 2**60:
                raise ConfigError(f"{name}={value!r}: must be a whole number from 1 to 2^60; give a positive integer")
        if None not in rooms.values():
            raise ConfigError(f"kv_bytes={self.room} with kv_blocks={self.room_blocks}: one says it; drop the other")


class Holding(NamedTuple):
    """One operand that `layers` layers keep between two passes; `elements` of one layer, on one rank.

    `tokens` is S where it grows with the decoder's tokens, X with the source's; empty: a state of fixed size.
    """

    name: str
    axes: str
    dims: Dims
    layers: int
    elements: int
    tokens: str
    mask: Mask | None

    def per_token(self) -> Fraction:
        """Elements of one more token in all layers: less than an entry where an entry stands for several tokens."""
        stride = self.mask and self.mask.kind != "blocks" and self.mask.stride
        return Fraction(self.layers * self.elements, stride or 1) if self.tokens == "S" else Fraction(0)

    def slots(self, engine: Paged, context: int, source: int) -> int:
        """Tokens that are reserved for one request: whole blocks; 1 for a state."""
        if not self.tokens:
            return 1
        block = engine.block_size
        full = -(-(source if self.tokens == "X" else context) // block)
        limit = self.mask.limit if self.mask and self.mask.kind in ("window", "chunk") else None
        if limit is None or engine.windowed_as_full:
            entries = self.mask and self.mask.kind != "blocks" and self.mask.stride  # one for so many tokens
            return full * block // (entries or 1)
        if self.mask.kind == "chunk":
            return min(full, -(-(limit + engine.prefill_chunk) // block)) * block
        return min(full, -(-(limit - 1 + engine.prefill_chunk) // block) + 1) * block


def holdings(config: ModelConfig, tp: int = 1) -> list[Holding]:
    """What a decoder keeps between two passes, as one of `tp` ranks holds it. An encoder alone keeps nothing."""
    found = []
    for line in bound(config)[1].lines if config.decoder else ():
        written = (line.op.output,) if line.op.output.role == "state" else ()
        for role, axes in line.op.inputs + written:
            tokens = "".join(axis for axis in "SX" if axis in axes)
            if role == "state" or (role == "cache" and tokens):
                mask, fixed = line.op.mask, axes.translate(NO_TOKENS)
                mask = mask and mask.bound(line.dims)
                elements = _on_a_rank(role, fixed, line.dims, tp)
                found.append(Holding(line.label, fixed, line.dims, line.count, elements, tokens, mask))
    return found


def _on_a_rank(role: str, axes: str, dims: Dims, tp: int) -> int:
    """Elements of one token (of a state: of one sequence) in one layer on one rank."""
    whole = size(axes, dims)
    if tp == 1:
        return whole
    if heads := dims.get("N"):
        _divides(tp, "num_attention_heads", heads)
    if "K" in axes:
        heads = dims["K"]
        if heads % tp and tp % heads:
            raise ConfigError(f"tp={tp}: neither divides num_key_value_heads={heads} nor is a multiple; change it")
        return whole // heads * max(1, heads // tp)
    if role != "state" or not set(axes) & set("xgihw"):
        return whole  # one for all heads: a latent, what compresses a chunk
    letter = next(axis for axis in "gihwx" if axis in (dims if "x" in axes else axes))
    heads = dims["g"] * dims["r"] if letter == "g" else dims[letter]
    _divides(tp, "heads of a recurrent state", heads)
    if "x" in axes and letter == "g":  # channels of a convolution: inputs of heads, then what groups write and read
        channels = heads * dims["u"] // tp + 2 * max(1, dims["g"] // tp) * dims["n"]
        return whole // dims["x"] * channels
    return whole // tp


def _divides(tp: int, name: str, heads: int) -> None:
    if heads % tp:
        raise ConfigError(f"tp={tp}: must divide {name}={heads}; give a divisor")


class Reserved:
    """The reserved cache of one model, engine and number format, in bytes of one rank."""

    def __init__(self, config: ModelConfig, engine: Paged, stored: Precision):
        self.engine, self.stored = engine, stored
        self.held = holdings(config, engine.tp)

    def _bytes(self, elements: int | Fraction) -> int:
        return self.stored.stored_bytes(elements)

    def per_token(self) -> int:
        """Bytes of one token in every layer that grows with it, rounded up."""
        return self._bytes(sum(h.per_token() for h in self.held))

    def per_block(self) -> int:
        """Bytes of one block in every layer that grows with the tokens."""
        return self._bytes(self.engine.block_size * sum(h.per_token() for h in self.held))

    def state(self) -> int:
        """Bytes of one request's states."""
        return self._bytes(sum(h.layers * h.elements for h in self.held if not h.tokens))

    def request(self, context: int, source: int = 0) -> int:
        """Bytes of one request of `context` tokens and `source` tokens of the encoder."""
        return self._bytes(sum(h.layers * h.elements * h.slots(self.engine, context, source) for h in self.held))

    def longest(self, room: int, source: int = 0) -> int:
        """Most tokens of one request that fit into `room` bytes; 0 where none do, `LONGEST` where any number does."""
        low, high = 0, LONGEST
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.request(middle, source) <= room else (low, middle - 1)
        return low


def reserved(
    config: ModelConfig, engine: Paged, batch: int, context: int, source: int, stored: Precision
) -> dict[str, Any]:
    """What an engine reserves for `batch` requests of `context` tokens, as plain data.

    Bytes are of one rank; `bytes` are those of all ranks, replicas included. With room given, `fits` says how many
    `blocks` and `tokens` (blocks times their size), how many such `requests` (`concurrency` before it is rounded
    down) and how long a single request may be.
    """
    cache = Reserved(config, engine, stored)
    one = cache.request(context, source if config.encoder and config.decoder else 0)
    slots = sorted({h.slots(engine, context, source) // engine.block_size for h in cache.held if h.tokens == "S"})
    found = {
        "block_size": engine.block_size,
        "tp": engine.tp,
        "windowed_as_full": engine.windowed_as_full,
        "prefill_chunk": engine.prefill_chunk,
        "rank_bytes_per_token": cache.per_token(),
        "rank_bytes_per_block": cache.per_block(),
        "rank_state_bytes_per_request": cache.state(),
        "blocks_per_request": slots[-1] if slots else 0,
        "windowed_blocks_per_request": slots[0] if len(slots) > 1 else None,
        "rank_bytes_per_request": one,
        "rank_bytes": batch * one,
        "bytes": engine.tp * batch * one,
    }
    room = engine.room if engine.room_blocks is None else engine.room_blocks * cache.per_block()
    return found | ({} if room is None else {"fits": _fits(cache, room, one, source, bool(config.encoder))})


def _fits(cache: Reserved, room: int, one: int, source: int, both: bool) -> dict[str, Any]:
    block, size = cache.per_block(), cache.engine.block_size
    blocks = room // block if block else 0
    # The pool of a cache of blocks alone is whole blocks; states take what is left of the last one.
    pool = blocks * block if block and not cache.state() else room
    return {
        "room_bytes": room,
        "blocks": blocks,
        "tokens": blocks * size,
        "concurrency": pool / one if one else None,
        "requests": pool // one if one else None,
        "longest_context": cache.longest(room, source if both else 0),
    }
