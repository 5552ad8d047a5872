"""Axis letters, their legend, and the three algebras in which the same formulas are computed.

An axis size may be a Python int (a report), a numpy array (a sweep) or a sympy symbol (a formula).
What differs between them is only how to take a minimum, a maximum and a half: an `Algebra`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

AXES = {
    "B": "batch: sequences at once",
    "T": "query tokens a sequence in this pass",
    "S": "key/value tokens a sequence: the past and this pass",
    "X": "source tokens a sequence (encoder)",
    "R": "positions a sequence that get logits",
    "D": "hidden_size",
    "N": "num_attention_heads",
    "K": "num_key_value_heads",
    "G": "query heads a key/value head: N/K",
    "H": "head_dim",
    "U": "v_head_dim",
    "C": "q_lora_rank",
    "J": "kv_lora_rank",
    "P": "qk_nope_head_dim",
    "Q": "qk_rope_head_dim",
    "I": "index_n_heads",
    "Y": "index_head_dim",
    "Z": "index_topk, index_topk_blocks",
    "F": "intermediate_size",
    "E": "num_local_experts",
    "A": "num_experts_per_tok",
    "V": "vocab_size",
    "M": "max_position_embeddings, and the offset of a table",
    "O": "labels of a classifier",
    "W": "sliding_window",
    "L": "layers of a kind",
    "a": "residual streams that are made",
    "b": "buckets of a relative position bias",
    "c": "tokens of a chunk: attention_chunk_size, compress_rate, index_block_size",
    "d": "width of the token embedding where it is not hidden_size",
    "e": "hidden_size, as the other side of a square matrix",
    "f": "intermediate size of the shared expert",
    "g": "groups of heads: of a state space, or o_groups",
    "h": "heads of a linear attention",
    "i": "key heads of a linear attention",
    "j": "key head_dim of a linear attention",
    "k": "taps of a convolution",
    "l": "width in which routed experts work",
    "m": "residual streams",
    "n": "state_size",
    "o": "one",
    "p": "time_step_rank",
    "q": "two",
    "r": "value heads a key head, or heads a group",
    "s": "three",
    "t": "type_vocab_size",
    "u": "value head_dim of a linear attention or a state space",
    "v": "rows of a table from tokens to experts",
    "w": "inner width of a state space",
    "x": "channels of a convolution",
    "y": "weights that mix residual streams: m·(m + 2)",
    "z": "num_mel_bins",
    "κ": "tokens that a convolution keeps where its own is not among them",
    "μ": "attention maps: heads of all layers",
    "ω": "o_lora_rank",
    "π": "hidden_size_per_layer_input",
}

Size = Any  # int, numpy array or sympy expression
Dims = Mapping[str, Size]


@dataclass(frozen=True)
class Algebra:
    """Minimum, maximum and exact half of what an axis size is made of."""

    minimum: Callable[[Size, Size], Size]
    maximum: Callable[[Size, Size], Size]
    half: Callable[[Size], Size]


INTEGERS = Algebra(min, max, lambda even: even // 2)


class Mask(NamedTuple):
    """Which keys a query of self-attention sees.

    Args:
        causal: keys up to its own position; otherwise all S.
        limit: of those at most so many (in an op, the letter of that axis; bound, its size); None for no limit.
        kind: which ones: the last ones (`window`; without `causal`, as many after as before), those of its own
            `chunk` of positions, the chosen ones (`topk`), or those of so many chosen chunks of `stride` tokens, its
            own among them (`blocks`). `made` is no attention: each chunk of `stride` tokens makes one entry.
        stride: a key stands for so many tokens, and is seen once all of them are past; None: for one.
    """

    causal: bool
    limit: Size | None
    kind: str = "window"
    stride: Size | None = None

    def bound(self, sizes: Dims) -> Mask:
        """The mask with sizes in place of letters."""
        limit, stride = self.limit and sizes[self.limit], self.stride and sizes[self.stride]
        return self._replace(limit=limit, stride=stride)

    @property
    def dense(self) -> Mask:
        """The same keys, every one of them seen by every query."""
        return self if self.kind == "made" else Mask(False, None, stride=self.stride if self.kind != "blocks" else None)


CAUSAL = Mask(causal=True, limit=None)


def pairs(dims: Dims, mask: Mask, algebra: Algebra = INTEGERS) -> Size:
    """(query, key) pairs of one sequence and head: what attention computes, 0 for what a mask hides.

    Args:
        dims: `T` query tokens at the end of `S` key tokens.
    Source: with a limit W, m = the queries that see fewer than W keys; they see S-T+1, S-T+2, ... keys, the others W.
    """
    T, S, limit = dims["T"], dims["S"], mask.limit
    past = S - T
    if mask.stride is not None:
        return _strided(S, mask, algebra) - _strided(past, mask, algebra) if mask.causal else T * (S // mask.stride)
    if not mask.causal:
        return T * S if limit is None else _band(S, limit, algebra)
    if limit is None:
        return T * past + algebra.half(T * (T + 1))
    if mask.kind == "chunk":
        return _chunked(S, limit, algebra) - _chunked(past, limit, algebra)
    m = algebra.maximum(0, algebra.minimum(T, limit - past))
    return m * past + algebra.half(m * (m + 1)) + (T - m) * limit


def _chunked(tokens: Size, chunk: Size, algebra: Algebra) -> Size:
    """Pairs of so many tokens from the first on, each with those of its chunk up to itself."""
    whole = tokens // chunk
    rest = tokens - whole * chunk
    return whole * algebra.half(chunk * (chunk + 1)) + algebra.half(rest * (rest + 1))


def _strided(tokens: Size, mask: Mask, algebra: Algebra) -> Size:
    """Pairs of so many tokens from the first on with chunks of tokens, or with the entries that stand for them.

    Of n tokens, the m-th sees m // stride entries: stride times each number below n // stride but the first (0, which
    counts nothing), and the rest n // stride. Where the limit is reached after `few` tokens, all others see the limit.
    """
    stride, limit = mask.stride, mask.limit
    if mask.kind == "made":
        return tokens // stride
    few = tokens if limit is None else algebra.minimum(tokens, limit * stride)
    if mask.kind == "blocks":
        beyond = _chunked(tokens, stride, algebra) - _chunked(few, stride, algebra)
        return algebra.half(few * (few + 1)) + (tokens - few) * (limit - 1) * stride + beyond
    whole = few // stride
    seen = stride * algebra.half(whole * (whole - 1)) + whole * (few - whole * stride + 1)
    return seen if limit is None else seen + (tokens - few) * limit


def _band(S: Size, window: Size, algebra: Algebra) -> Size:
    """Pairs at most `window` apart on either side, where all S tokens are queries: an encoder's local attention."""
    reach = algebra.minimum(window, S - 1)
    return S + 2 * (reach * S - algebra.half(reach * (reach + 1)))


def span(dims: Dims, mask: Mask, algebra: Algebra = INTEGERS) -> Size:
    """Keys of one sequence that at least one of the T queries sees (so: that must be read)."""
    T, S, limit = dims["T"], dims["S"], mask.limit
    if mask.kind == "blocks":
        return algebra.minimum(S, limit * mask.stride * T)
    S = S if mask.stride is None else S // mask.stride
    if limit is None or not mask.causal:
        return S
    if mask.kind == "chunk":
        return S - ((S - T) // limit) * limit
    return algebra.minimum(S, limit * T if mask.kind == "topk" else limit + T - 1)


def kept(tokens: Size, mask: Mask | None, algebra: Algebra = INTEGERS) -> Size:
    """Of so many tokens, the keys or entries that a later query can still see: a window or a chunk forgets the rest."""
    if mask is None or mask.kind == "blocks":
        return tokens
    tokens = tokens if mask.stride is None else tokens // mask.stride
    if mask.limit is None or mask.kind == "topk" or not mask.causal:
        return tokens
    return algebra.minimum(tokens, mask.limit)
