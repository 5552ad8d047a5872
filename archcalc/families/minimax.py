"""model_type minimax: lightning attention with full attention in some layers, mixtures of experts.

Factors of the residual stream own nothing. Source: MiniMax 2025, arXiv:2501.08313.
"""

from __future__ import annotations

from archcalc.config import LightningAttention, MixtureOfExperts, Norm
from archcalc.families.rope import rotary
from archcalc.families.shared import (
    FULL,
    LINEAR,
    attention,
    decoder,
    feed_forward,
    head_dim,
    layer_count,
    layer_types,
    model,
)  # fmt: skip
from archcalc.keys import Keys

ALIASES = {"num_local_experts": ("num_experts",)}
IGNORED = frozenset({
    "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "full_attn_alpha_factor",
    "full_attn_beta_factor", "linear_attn_alpha_factor", "linear_attn_beta_factor", "mlp_alpha_factor",
    "mlp_beta_factor",
})  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    depth, norm = layer_count(k), Norm("rmsnorm", k.float("rms_norm_eps", default=1e-5))
    default = tuple(LINEAR if layer % 2 else FULL for layer in range(depth))
    types = layer_types(k, depth, default, (FULL, LINEAR))
    heads = k.int("num_attention_heads")
    linear = LightningAttention(heads, head_dim(k, heads), norm, k.int("block_size", default=256))
    window = k.int("sliding_window", default=None)
    full = attention(k, kv_heads=8, window=window, rotary=rotary(k, 1e6))
    expert = feed_forward(k, act="silu", gated=True)
    mlp = MixtureOfExperts(expert, k.int("num_local_experts"), k.int("num_experts_per_tok"))
    stack = decoder(k, lambda layer: full if types[layer] == FULL else linear, lambda layer: mlp, norm)
    return model(k, stack, tie=False, positions=131072)
