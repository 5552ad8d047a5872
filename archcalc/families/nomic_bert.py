"""model_type nomic_bert: the post-LayerNorm block of BERT with rotary positions, SwiGLU and no biases.

Its first releases spell their keys as GPT-2 does.
Source: Nussbaum et al. 2024, arXiv:2402.01613; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.config import Embedding
from archcalc.families import encoder
from archcalc.families.rope import rotary
from archcalc.keys import Keys

ALIASES = {
    "hidden_size": ("n_embd",),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
    "intermediate_size": ("n_inner",),
    "max_position_embeddings": ("n_positions",),
    "layer_norm_eps": ("layer_norm_epsilon",),
    "rope_theta": ("rotary_emb_base",),
    "partial_rotary_factor": ("rotary_emb_fraction",),
}
# The bias switches of the first releases, all false there, and what computes the same in another order.
FIXED = {
    "activation_function": "swiglu", "causal": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False,
    "parallel_block": False, "parallel_block_tied_norm": False, "prenorm": False, "qkv_proj_bias": False,
    "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "use_rms_norm": False, "num_experts": 0,
}  # fmt: skip
IGNORED = encoder.IGNORED | {
    "fused_bias_fc", "fused_dropout_add_ln", "use_flash_attn", "use_xentropy",
    "rotary_scaling_factor", "dense_seq_output", "last_layer_subset", "max_trained_positions", "sequence_parallel",
}  # fmt: skip
RELEASE = {
    "nomic_bert": {
        "vocab_size": 30528, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "max_position_embeddings": 2048, "type_vocab_size": 2,
    }
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    for name, value in FIXED.items():
        k.must_be(name, value)
    stack, norm = encoder.post_norm_encoder(k, rotary=rotary(k, 1000.0), bias=False, act="silu", gated=True)
    embedding = Embedding(type_vocab_size=k.count("type_vocab_size"), norm=norm)
    return encoder.encoder_model(k, stack, encoder.task_head(k, norm, pooler=False), embedding=embedding)
