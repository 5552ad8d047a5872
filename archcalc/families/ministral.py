"""model_type ministral: the llama block without biases, all layers windowed or as `layer_types` says.

Source: Mistral AI 2024, Ministral 8B.
"""

from __future__ import annotations

from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    for name in ("attention_bias", "mlp_bias"):
        k.must_be(name, False, "this family has no biases")
    mlp = same(feed_forward(k, act="silu", gated=True))
    return rotary_decoder(k, mlp, positions=131072, kv_heads=8, window=4096)
