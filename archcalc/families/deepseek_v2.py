"""model_type deepseek_v2: latent attention, and experts of which some are shared.

Source: DeepSeek-AI 2024, arXiv:2405.04434.
"""

from __future__ import annotations

from archcalc.families import latent
from archcalc.families.experts import weighed
from archcalc.families.latent import HEAD, feed_forwards, latent_decoder
from archcalc.keys import Keys

ALIASES = {"n_routed_experts": ("num_experts",)}
IGNORED = latent.IGNORED
EXPERTS = {"n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407, "first_k_dense_replace": 0}
RELEASE = {"deepseek_v2": HEAD | EXPERTS | {"q_lora_rank": 1536, "max_position_embeddings": 2048}}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("norm_topk_prob", False, "the class never divides by the sum")
    grouped = k.str("topk_method", default="greedy") != "greedy"
    routing = weighed(k, norm=None, scale=1.0, groups=(1, 1)) | {"norm_topk_prob": False}
    routing |= {} if grouped else {"n_group": 1, "topk_group": 1}
    mlp = feed_forwards(k, bias=k.bool("mlp_bias", default=False), correction_bias=False, **routing)
    return latent_decoder(k, mlp, eps=1e-6)
