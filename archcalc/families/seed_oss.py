"""model_type seed_oss: the llama block, with biases of queries, keys and values.

Source: ByteDance Seed 2025, Seed-OSS.
"""

from __future__ import annotations

from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import default_head, feed_forward, same
from archcalc.keys import Keys


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.int("pretraining_tp", default=1)  # sums in that many slices; the products are the same
    mlp, out = same(feed_forward(k, act="silu", gated=True)), k.bool("attention_out_bias", default=False)
    head = default_head(k, 128)
    return rotary_decoder(k, mlp, positions=524288, bias=True, o_bias=out, head=head, kv_heads=8)
