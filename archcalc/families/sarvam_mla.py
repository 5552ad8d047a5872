"""model_type sarvam_mla: deepseek_v3's block, also under the names of its first release.

Source: the released Sarvam-105B config.
"""

from __future__ import annotations

from archcalc.families import latent
from archcalc.families.experts import weighed
from archcalc.families.latent import HEAD, feed_forwards, latent_decoder
from archcalc.keys import Keys

ALIASES = {
    "n_routed_experts": ("num_local_experts", "num_experts"),
    "n_shared_experts": ("num_shared_experts",),
    "num_nextn_predict_layers": ("num_mtp_layers",),
    "qk_head_dim": ("q_head_dim",),
}
IGNORED = latent.IGNORED
STACK = {"vocab_size": 262144, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 64}
DENSE = {"intermediate_size": 16384, "first_k_dense_replace": 1, "max_position_embeddings": 4096}
EXPERTS = {"n_routed_experts": 128, "n_shared_experts": 1, "moe_intermediate_size": 2048, "num_experts_per_tok": 8}
RELEASE = {"sarvam_mla": HEAD | STACK | DENSE | EXPERTS}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("mlp_bias", False)
    raw, scaling = {"q_lora_rank": None} | k.raw, k.raw.get("rope_scaling")  # absent, the class has no rank
    if type(scaling) is dict:  # deepseek_yarn was its first name of yarn
        raw["rope_scaling"] = {name: "yarn" if value == "deepseek_yarn" else value for name, value in scaling.items()}
    view = k.view(raw, k.aliases)
    return latent_decoder(view, feed_forwards(view, **weighed(view, "sigmoid", scale=2.5, groups=(1, 1))), eps=1e-6)
