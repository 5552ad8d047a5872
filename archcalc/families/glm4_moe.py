"""model_type glm4_moe: half of each head is turned, experts after the first layers, a shared one beside them.

Source: GLM-4.5 Team 2025, arXiv:2508.06471; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.families.experts import ROUTING, after_first, dense, mixed, rms_norm, routed
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
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    norm = rms_norm(k, 1e-5)
    k.must_be("moe_layer_freq", 1)
    qk_norm = norm if k.bool("use_qk_norm", default=False) else None
    mixer = attention(k, rotary=rotary(k, 1e4, 0.5), kv_heads=8, o_bias=False, qk_norm=qk_norm)
    shared = k.count("n_shared_experts", default=1) * k.int("moe_intermediate_size")
    mlp = mixed(after_first(k, default=1), routed(k, shared=shared, correction_bias=True), dense(k))
    return model(k, decoder(k, same(mixer), mlp, norm), tie=False, left_out=predictors(k))
