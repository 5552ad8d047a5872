"""model_type iquestcoder: the llama block with heads of 128. Source: IQuest Lab 2026, IQuest-Coder-V1."""

from __future__ import annotations

from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import default_head, feed_forward, same
from archcalc.keys import Keys


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("clip_qkv", None, "the family's class has none")
    k.must_be("use_sliding_window", False, "the family's class has no windows")
    mlp = same(feed_forward(k, act="silu", gated=True))
    return rotary_decoder(k, mlp, positions=131072, eps=1e-5, kv_heads=8, head=default_head(k, 128))
