"""model_type glm4_moe_lite: deepseek_v3's block, dense in the first layer only.

Source: the released GLM-4.7-Flash config.
"""

from __future__ import annotations

from archcalc.families import latent
from archcalc.families.experts import weighed
from archcalc.families.latent import feed_forwards, latent_decoder
from archcalc.keys import Keys

ALIASES = {"n_routed_experts": ("num_local_experts",), "qk_rope_head_dim": ("head_dim",)}
IGNORED = latent.IGNORED - {"head_dim"}
STACK = {"vocab_size": 154880, "hidden_size": 2048, "num_hidden_layers": 47, "max_position_embeddings": 202752}
HEADS = {"num_attention_heads": 20, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256}
RANKS = {"q_lora_rank": 768, "kv_lora_rank": 512, "intermediate_size": 10240, "first_k_dense_replace": 1}
EXPERTS = {"n_routed_experts": 64, "n_shared_experts": 1, "moe_intermediate_size": 1536, "num_experts_per_tok": 4}
RELEASE = {"glm4_moe_lite": STACK | HEADS | RANKS | EXPERTS}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("mlp_bias", False)
    k.must_be("first_k_dense_replace", 1, "the Hugging Face class reads mlp_layer_types instead")
    routing = weighed(k, "sigmoid", scale=1.8, groups=(1, 1))
    return latent_decoder(k, feed_forwards(k, listed=True, **routing), eps=1e-5)
