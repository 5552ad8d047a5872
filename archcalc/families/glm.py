"""model_type glm (GLM-4-9B): the llama block with biases of queries, keys and values, and half of each head turned.

Source: GLM team 2024, arXiv:2406.12793.
"""

from __future__ import annotations

from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import default_head, feed_forward, same
from archcalc.keys import Keys

SIZES = {
    "vocab_size": 151552, "hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32,
    "intermediate_size": 13696,
}  # fmt: skip
RELEASE = {"glm": SIZES}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    return half_turned_decoder(k)


def half_turned_decoder(k: Keys, **parts) -> dict:
    """What both generations share; arguments as in `rotary_decoder`."""
    mlp = same(feed_forward(k, act="silu", gated=True))
    head = default_head(k, 128)
    parts |= {"head": head, "kv_heads": 2, "bias": True, "o_bias": False, "interleaved": True}
    return rotary_decoder(k, mlp, positions=131072, share=0.5, eps=1.5625e-7, **parts)
