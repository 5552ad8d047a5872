"""model_type helium: the llama block with heads of 128. Source: Kyutai 2025, Helium-1."""

from __future__ import annotations

from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys

RELEASE = {
    "helium": {
        "vocab_size": 48000, "hidden_size": 2560, "num_hidden_layers": 24, "num_attention_heads": 20,
        "intermediate_size": 7040,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    mlp, heads = same(feed_forward(k, act="silu", gated=True)), k.int("num_attention_heads")
    head = k.int("head_dim", default=128)
    k.must_be("hidden_size", heads * head, "the output projection of this family is square")
    parts = {"kv_heads": 20, "head": head, "o_bias": False, "interleaved": True}
    return rotary_decoder(k, mlp, positions=4096, theta=1e5, eps=1e-8, **parts)
