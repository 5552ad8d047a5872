"""model_type minimax, minimax_text_01, minimax_m1: lightning attention, full attention in some layers, experts.

Factors of the residual stream own nothing. Source: MiniMax 2025, arXiv:2501.08313.
"""

from __future__ import annotations

from archcalc.config import LightningAttention, MixtureOfExperts, Norm
from archcalc.errors import ConfigError
from archcalc.families.experts import switches
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
    "mlp_beta_factor", "layernorm_full_attention_alpha", "layernorm_full_attention_beta", "layernorm_mlp_alpha",
    "layernorm_linear_attention_alpha", "layernorm_linear_attention_beta", "layernorm_mlp_beta", "postnorm",
    "rotary_dim", "shared_moe_mode",
})  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    depth, norm = layer_count(k), Norm("rmsnorm", k.float("rms_norm_eps", default=1e-5))
    types = layer_types(k, depth, _types(k, depth), (FULL, LINEAR))
    if k.raw.get("shared_intermediate_size") != [0]:  # some releases write a list
        k.must_be("shared_intermediate_size", 0)
    k.used.add("shared_intermediate_size")
    heads = k.int("num_attention_heads")
    linear = LightningAttention(heads, head_dim(k, heads), norm, k.int("block_size", default=256))
    window = k.int("sliding_window", default=None)
    full = attention(k, kv_heads=8, window=window, rotary=rotary(k, 1e6))
    expert = feed_forward(k, act="silu", gated=True)
    mlp = MixtureOfExperts(expert, k.int("num_local_experts"), k.int("num_experts_per_tok"))
    stack = decoder(k, lambda layer: full if types[layer] == FULL else linear, lambda layer: mlp, norm)
    return model(k, stack, tie=False, positions=131072)


def _types(k: Keys, depth: int) -> tuple[str, ...]:
    """Those of an absent `layer_types`: by `attn_type_list` of 0 and 1, or alternating as in the Hugging Face class."""
    full = switches(k, "attn_type_list")
    if full is None and k.raw["model_type"] != "minimax" and not k.given("layer_types"):
        raise ConfigError(
            "attn_type_list: missing, and never guessed; give 0 or 1 for each layer, 1 for full attention"
        )
    return tuple(FULL if on else LINEAR for on in full or [layer % 2 == 0 for layer in range(depth)])
