"""model_type deepseek_v3 and kimi_k2: latent attention, and experts whose load a bias of the router balances.

Source: DeepSeek-AI 2024, arXiv:2412.19437; Kimi Team 2025, arXiv:2507.20534.
"""

from __future__ import annotations

from archcalc.families import latent
from archcalc.families.experts import weighed
from archcalc.families.latent import HEAD, feed_forwards, latent_decoder
from archcalc.keys import Keys

ALIASES = {"n_routed_experts": ("num_local_experts",), "num_nextn_predict_layers": ("num_mtp_layers",)}
IGNORED = latent.IGNORED
STACK = {"vocab_size": 129280, "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128}
DENSE = {"intermediate_size": 18432, "first_k_dense_replace": 3, "q_lora_rank": 1536}
EXPERTS = {"n_routed_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 2048, "num_experts_per_tok": 8}
V3 = HEAD | STACK | DENSE | EXPERTS
RELEASE = {"deepseek_v3": V3 | {"max_position_embeddings": 4096}}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("mlp_bias", False)
    return latent_decoder(k, feed_forwards(k, **weighed(k, "sigmoid", scale=2.5, groups=(8, 4))), eps=1e-6)
