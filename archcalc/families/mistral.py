"""model_type mistral: the llama block with a sliding window in every layer (`sliding_window` null: none).

An absent `sliding_window` means 4096 and an absent `num_key_value_heads` 8, as in the Hugging Face class.
Source: Jiang et al. 2023, arXiv:2310.06825.
"""

from __future__ import annotations

from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    mlp = same(feed_forward(k, act="silu", gated=True))
    return rotary_decoder(k, mlp, positions=131072, kv_heads=8, window=4096)
