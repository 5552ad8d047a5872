"""model_type qwen3_5_text, qwen3_5_moe_text: the layers of qwen3_next with a dense feed-forward, or experts in all.

Source: the released Qwen3.5 and Qwen3.6 configs.
"""

from __future__ import annotations

from archcalc.families import qwen3_next
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys

ALIASES = qwen3_next.ALIASES
IGNORED = qwen3_next.IGNORED - {"intermediate_size"}
HEADS = qwen3_next.LINEAR_SIZES | {"head_dim": 256}
RELEASE = {
    "qwen3_5_text": HEADS | {"num_key_value_heads": 4},
    "qwen3_5_moe_text": HEADS
    | qwen3_next.WIDTHS
    | {"num_key_value_heads": 2, "num_local_experts": 256, "num_experts_per_tok": 8},
}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("mlp_only_layers", [])
    if k.raw.get("model_type") == "qwen3_5_moe_text":
        return qwen3_next.gated_hybrid(k, same(qwen3_next.experts(k)))
    return qwen3_next.gated_hybrid(k, same(feed_forward(k, act="silu", gated=True)))
