"""model_type cohere2 (Command R7B, Command A): cohere, three of four layers windowed, the fourth without positions.

Source: Cohere 2025, arXiv:2504.00698.
"""

from __future__ import annotations

from archcalc.families.cohere import parallel_decoder
from archcalc.families.shared import periodic_windows
from archcalc.keys import Keys

ALIASES = {"sliding_window_pattern": ("layer_switch",), "partial_rotary_factor": ("rotary_pct",)}
IGNORED = frozenset({
    "order_of_interleaved_layers", "position_embedding_type",
    "use_parallel_embedding",  # how training split the table
})  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    for name in ("embedding_sharing", "gated_activation", "parallel_block"):
        k.must_be(f"use_{name}", True, "the family's class knows nothing else")
    k.must_be("use_qk_norm", False, "the family's class knows nothing else")
    return parallel_decoder(k, windows=periodic_windows(k, 4096, 4), full={"rotary": None})
