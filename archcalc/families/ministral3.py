"""model_type ministral3: the llama block without biases, heads of 128. Source: Mistral AI 2025, Ministral 3."""

from __future__ import annotations

from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import default_head, feed_forward, same
from archcalc.keys import Keys


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    for name in ("attention_bias", "mlp_bias"):
        k.must_be(name, False, "this family has no biases")
    k.must_be("layer_types", None, "the family's class has one window for all layers or none")
    mlp = same(feed_forward(k, act="silu", gated=True))
    head = default_head(k, 128)
    return rotary_decoder(k, mlp, positions=262144, theta=1e6, eps=1e-5, kv_heads=8, head=head)
