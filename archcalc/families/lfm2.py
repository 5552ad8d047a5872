"""model_type lfm2, lfm2_moe: short convolutions, attention in some layers; the latter with experts after a few layers.

Source: the released LFM2 configs.
"""

from __future__ import annotations

from dataclasses import replace

from archcalc.config import FeedForward, Norm, ShortConvolution
from archcalc.families.experts import ROUTING, after_first, dense, mixed, routed, weighed
from archcalc.families.rope import rotary
from archcalc.families.shared import FULL, attention, decoder, layer_count, layer_types, model, same
from archcalc.keys import Keys

ALIASES = {
    "rms_norm_eps": ("norm_eps", "block_norm_eps"),
    "intermediate_size": ("block_ff_dim",),
    "tie_word_embeddings": ("tie_embedding",),
    "hidden_size": ("block_dim", "conv_dim", "conv_dim_out"),
    "num_attention_heads": ("num_heads",),
    "num_local_experts": ("num_experts",),
}
IGNORED = ROUTING | {
    "block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init", "conv_use_xavier_init",
}  # fmt: skip


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("block_use_swiglu", True)
    k.must_be("use_pos_enc", True)
    depth, norm = layer_count(k), Norm("rmsnorm", k.float("rms_norm_eps", default=1e-5))
    chosen = k.ints("full_attn_idxs")
    default = tuple(FULL if chosen is None or layer in chosen else "conv" for layer in range(depth))
    types = layer_types(k, depth, default, (FULL, "conv"))
    full = attention(k, kv_heads=8, rotary=rotary(k, 1e6), qk_norm=norm)
    taps, bias = k.int("conv_L_cache", default=3), k.bool("conv_bias", default=False)
    short = ShortConvolution(k.int("hidden_size"), taps, bias)
    stack = decoder(k, lambda layer: full if types[layer] == FULL else short, _feed_forwards(k), norm)
    return model(k, stack, tie=True, positions=128000)


def _feed_forwards(k: Keys):
    """The feed-forward of each layer."""
    if k.raw["model_type"] == "lfm2":
        return same(_adjusted(k))
    experts = routed(
        k, correction_bias=k.bool("use_expert_bias", default=True), **weighed(k, "sigmoid", scale=1.0)
    )  # fmt: skip
    return mixed(after_first(k, "num_dense_layers", 2), experts, dense(k))


def _adjusted(k: Keys) -> FeedForward:
    """Of two thirds of the given width, times a factor, rounded up to a multiple, unless that is switched off."""
    mlp, adjusted = dense(k), k.bool("block_auto_adjust_ff_dim", default=True)
    multiple = k.int("block_multiple_of", default=256)
    factor = k.float("block_ffn_dim_multiplier", default=1.0)
    if not adjusted:
        return mlp
    width = -(-int(factor * int(2 * mlp.intermediate_size / 3)) // multiple) * multiple
    return replace(mlp, intermediate_size=width)
