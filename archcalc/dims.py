"""Axis letters, their legend, and the three algebras in which the same formulas are computed.

An axis size may be a Python int (a report), a numpy array (a sweep) or a sympy symbol (a formula).
What differs between them is only how to take a minimum, a maximum and a half: an `Algebra`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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
    "F": "intermediate_size",
    "E": "num_local_experts",
    "A": "num_experts_per_tok",
    "V": "vocab_size",
    "M": "max_position_embeddings",
    "W": "sliding_window",
    "L": "layers of a kind",
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


def pairs(dims: Dims, causal: bool, window: Size | None, algebra: Algebra = INTEGERS) -> Size:
    """(query, key) pairs of one sequence and head: what attention computes, 0 for what a mask hides.

    Args:
        dims: `T` query tokens at the end of `S` key tokens.
        causal: a query sees keys up to its own position; otherwise all S.
        window: with `causal`, a query sees at most this many keys, its own among them.
    Source: m = the queries whose window is not yet full; they see S-T+1, S-T+2, ... keys, the others W.
    """
    T, S = dims["T"], dims["S"]
    if not causal:
        return T * S
    past = S - T
    if window is None:
        return T * past + algebra.half(T * (T + 1))
    m = algebra.maximum(0, algebra.minimum(T, window - past))
    return m * past + algebra.half(m * (m + 1)) + (T - m) * window


def span(dims: Dims, causal: bool, window: Size | None, algebra: Algebra = INTEGERS) -> Size:
    """Keys of one sequence that at least one of the T queries sees (so: that must be read)."""
    if window is None or not causal:
        return dims["S"]
    return algebra.minimum(dims["S"], window + dims["T"] - 1)
