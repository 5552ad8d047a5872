"""model_type cwm: the llama block; the first of each four layers sees everything, the others a window.

Source: FAIR 2025, arXiv:2510.02387.
"""

from __future__ import annotations

from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import FULL, SLIDING, default_head, feed_forward, layer_count, same
from archcalc.keys import Keys

RELEASE = {
    "cwm": {
        "vocab_size": 128256, "hidden_size": 6144, "num_hidden_layers": 64, "num_attention_heads": 48,
        "intermediate_size": 21504,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.int("pretraining_tp", default=1)  # sums in that many slices; the products are the same
    k.must_be("attention_bias", False, "the family's class has none")
    mlp, types = same(feed_forward(k, act="silu", gated=True)), first_of_four(layer_count(k))
    parts = {"kv_heads": 8, "head": default_head(k, 128), "window": 8192, "types": types}
    return rotary_decoder(k, mlp, positions=131072, theta=1e6, eps=1e-5, **parts)


def first_of_four(depth: int) -> tuple[str, ...]:
    """Layer types of which the first, the fifth and so on see everything."""
    return tuple(SLIDING if layer % 4 else FULL for layer in range(depth))
