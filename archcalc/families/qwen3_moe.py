"""model_types qwen3_moe and qwen3_vl_moe_text: the qwen3 block, norms of each head, with experts in most layers.

Source: Yang et al. 2025, arXiv:2505.09388; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.families.experts import ROUTING, dense, mixed, rms_norm, routed, stepped, switched_windows, weighed
from archcalc.families.rope import rotary
from archcalc.families.shared import decoder, model, windowed
from archcalc.keys import Keys

ALIASES = {"num_local_experts": ("num_experts",)}
IGNORED = ROUTING | {"max_window_layers"}  # here a window holds for every layer or for none
RELEASE = {
    "qwen3_moe": {
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
        "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 32768,
        "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_local_experts": 128,
    },
    "qwen3_vl_moe_text": {
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
        "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 128000,
        "moe_intermediate_size": 1408, "num_experts_per_tok": 4, "num_local_experts": 60,
    },
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    vision = k.raw["model_type"] == "qwen3_vl_moe_text"
    norm = rms_norm(k, 1e-6)
    for name, allowed in (("use_qk_norm", True), ("qkv_bias", False), ("shared_expert_intermediate_size", 0)):
        k.must_be(name, allowed)
    windows = switched_windows(k, 4096, None)
    theta, kv_heads = (5e5, 16) if vision else (1e4, 4)
    mixer = windowed(k, windows, rotary=rotary(k, theta), kv_heads=kv_heads, qk_norm=norm)
    experts = routed(k, **weighed(k, norm=None if vision else False))
    return model(k, decoder(k, mixer, mixed(stepped(k), experts, dense(k)), norm), tie=vision)
