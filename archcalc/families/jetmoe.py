"""model_type jetmoe: experts of queries and outputs as well as of feed-forwards, each sum with one bias.

Source: Shen et al. 2024, arXiv:2404.07413; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.families.experts import ROUTING, rms_norm, routed
from archcalc.families.rope import rotary
from archcalc.families.shared import decoder, model, same
from archcalc.keys import Keys
from archcalc.parts.routed_attention import RoutedAttention

ALIASES = {
    "head_dim": ("kv_channels",),
    "hidden_act": ("activation_function",),
    "intermediate_size": ("ffn_hidden_size",),
    "num_hidden_layers": ("num_layers",),
    "num_local_experts": ("num_experts", "moe_num_experts"),
    "num_experts_per_tok": ("moe_top_k",),
}
IGNORED = ROUTING | {"aux_loss_coef", "layer_norm_epsilon"}
RELEASE = {
    "jetmoe": {
        "vocab_size": 32000, "hidden_size": 2048, "num_hidden_layers": 12, "num_key_value_heads": 16, "head_dim": 128,
        "intermediate_size": 5632, "max_position_embeddings": 4096, "num_local_experts": 8, "num_experts_per_tok": 2,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    for name, allowed in (("glu", True), ("bias", True), ("rotary_percent", 1.0), ("attention_bias", False)):
        k.must_be(name, allowed)
    kv_heads, experts = k.int("num_key_value_heads"), routed(k, "intermediate_size", output_bias=True)
    heads = kv_heads * experts.num_experts_per_tok
    k.must_be("num_attention_heads", heads, "it is num_key_value_heads * num_experts_per_tok here")
    mixer = RoutedAttention(
        heads, kv_heads, k.int("head_dim"), rotary=rotary(k, 1e4), num_local_experts=experts.num_local_experts
    )  # fmt: skip
    return model(k, decoder(k, same(mixer), same(experts), rms_norm(k, 1e-6)), tie=True)
