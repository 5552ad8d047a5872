"""model_types glm4_moe, glm4v_moe_text and solar_open: experts after the first layers, shared ones beside them.

Source: GLM-4.5 Team 2025, arXiv:2508.06471; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.families.experts import ROUTING, after_first, dense, mixed, own_head, rms_norm, routed, weighed
from archcalc.families.rope import rotary
from archcalc.families.shared import attention, decoder, model, predictors, same
from archcalc.keys import Keys

ALIASES = {
    "num_local_experts": ("n_routed_experts", "num_experts"),
    "num_nextn_predict_layers": ("num_mtp_layers",),
}
IGNORED = ROUTING
RELEASE = {
    "glm4_moe": {
        "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
        "num_attention_heads": 96, "max_position_embeddings": 131072, "moe_intermediate_size": 1408,
        "num_experts_per_tok": 8, "num_local_experts": 128,
    },
    "glm4v_moe_text": {
        "vocab_size": 151424, "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
        "num_attention_heads": 96, "max_position_embeddings": 65536, "moe_intermediate_size": 1408,
        "num_experts_per_tok": 8, "num_local_experts": 128,
    },
    "solar_open": {
        "vocab_size": 196608, "hidden_size": 4096, "num_hidden_layers": 48, "num_attention_heads": 64,
        "max_position_embeddings": 131072, "moe_intermediate_size": 1280, "num_experts_per_tok": 8,
        "num_local_experts": 128,
    },
}  # fmt: skip
# Whether queries, keys and values have biases, the base of the positions, the share of a head that is turned.
DEFAULTS = {"glm4_moe": (False, 1e4, 0.5), "glm4v_moe_text": (True, 1e4, 0.5), "solar_open": (False, 1e6, 1.0)}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys. Only glm4_moe can norm its queries and keys."""
    norm, kind = rms_norm(k, 1e-5), k.raw["model_type"]
    k.must_be("moe_layer_freq", 1)
    bias, theta, share = DEFAULTS[kind]
    if kind != "glm4_moe":
        k.must_be("use_qk_norm", False)
    solar = kind == "solar_open"
    if solar:  # all of its layers have experts
        k.must_be("first_k_dense_replace", 0)
        k.int("intermediate_size", default=None)
    parts = {"rotary": rotary(k, theta, share), "head": own_head(k, 128) if solar else None, "bias": bias}
    qk_norm = norm if k.bool("use_qk_norm", default=False) else None
    mixer = attention(k, kv_heads=8, o_bias=False, qk_norm=qk_norm, **parts)
    shared = k.count("n_shared_experts", default=1) * k.int("moe_intermediate_size")
    experts = routed(k, shared=shared, correction_bias=True, **weighed(k, "sigmoid", scale=1.0, groups=(1, 1)))
    mlp = same(experts) if solar else mixed(after_first(k, default=1), experts, dense(k))
    return model(k, decoder(k, same(mixer), mlp, norm), tie=False, left_out=predictors(k))
