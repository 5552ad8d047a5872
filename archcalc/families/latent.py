"""What the families with latent attention have in common: its sizes, which layers are sparse, their experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from archcalc.config import FeedForward, LatentAttention, MixtureOfExperts, Norm, Rotary
from archcalc.errors import ConfigError
from archcalc.families.rope import rotary, score_factor
from archcalc.families.shared import ACTIVATIONS, decoder, layer_count, model, predictors, same
from archcalc.keys import Keys

# What the class of a family fixes, training, kernels. It sets head_dim from qk_rope_head_dim.
IGNORED = frozenset({
    "topk_method", "scoring_func", "aux_loss_alpha",
    "seq_aux", "ep_size", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "moe_router_dtype",
    "rope_interleave", "indexer_rope_interleave", "index_share_for_mtp_iteration", "head_dim", "tf_legacy_loss",
})  # fmt: skip
LATENT_NORM = Norm("rmsnorm", 1e-6)  # of both latents: no config has a key for it
# A head of DeepSeek-V2, of V3 and of what follows them.
HEAD = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}


def nullable(k: Keys, read: Callable, name: str, none: Any) -> Any:
    """A key whose null says `none`, and whose absence means the size of the released model."""
    return read(name, default=none) if k.given(name) else read(name)


def latent_attention(k: Keys, turned: Rotary | None = None, **parts: Any) -> LatentAttention:
    """Latent attention; `parts` are further fields of it.

    Its rotary part is turned as a whole, by halves: checkpoints that pair neighbours are reordered when loaded.
    """
    heads = k.int("num_attention_heads")
    kv_heads = k.int("num_key_value_heads", default=heads)
    if kv_heads != heads:
        raise ConfigError(
            f"num_key_value_heads={kv_heads} with num_attention_heads={heads}: latent attention has keys for every "
            "head; make them equal"
        )
    nope, rope = k.int("qk_nope_head_dim"), k.int("qk_rope_head_dim")
    if (whole := k.int("qk_head_dim", default=nope + rope)) != nope + rope:
        raise ConfigError(f"qk_head_dim={whole}: is qk_nope_head_dim + qk_rope_head_dim = {nope + rope}; remove it")
    ranks = nullable(k, k.int, "q_lora_rank", None), k.int("kv_lora_rank")
    bias = k.bool("attention_bias", default=False)
    if turned:
        factor, turned = score_factor(k, turned), replace(turned, partial_rotary_factor=1.0)
        parts |= {"rotary": turned, "scale": factor * whole**-0.5 if factor != 1 else None}
    return LatentAttention(heads, *ranks, nope, rope, k.int("v_head_dim"), LATENT_NORM, bias, **parts)


def sparse_layers(k: Keys, listed: bool) -> tuple[bool, ...]:
    """Of each layer, whether it has experts: all but the first `first_k_dense_replace`, or as `mlp_layer_types` says.

    Args:
        listed: whether the Hugging Face class reads mlp_layer_types.
    """
    depth = layer_count(k)
    k.must_be("moe_layer_freq", 1)
    types = k.strings("mlp_layer_types", ("dense", "sparse")) if listed else None
    if types is None or k.raw.get("first_k_dense_replace") is not None:
        first = k.count("first_k_dense_replace")
        default = ("dense",) * min(first, depth) + ("sparse",) * max(depth - first, 0)
        if types not in (None, default):
            raise ConfigError(f"first_k_dense_replace={first} with mlp_layer_types: they disagree; give only one")
        types = default
    if len(types) != depth:
        raise ConfigError(
            f"mlp_layer_types of {len(types)} entries with num_hidden_layers={depth}: one entry a layer; give {depth}"
        )
    return tuple(kind == "sparse" for kind in types)


def dense(k: Keys, bias: bool = False) -> FeedForward:
    """The feed-forward of a layer without experts."""
    return FeedForward(k.int("intermediate_size"), k.choice("hidden_act", ACTIVATIONS, default="silu"), True, bias)


def experts(k: Keys, *, correction_bias=True, bias=False, count="n_routed_experts", **parts: Any) -> MixtureOfExperts:
    """Routed experts and `n_shared_experts` shared ones, which are one feed-forward of that many times the width.

    Args:
        bias: of the shared experts. count: the key of the number of experts. parts: further fields of the mixture.
    """
    width, act = k.int("moe_intermediate_size"), k.choice("hidden_act", ACTIVATIONS, default="silu")
    many = nullable(k, k.count, "n_shared_experts", 0)
    shared = FeedForward(width * many, act, True, bias) if many else None
    sizes = k.int(count), k.int("num_experts_per_tok")
    return MixtureOfExperts(FeedForward(width, act, True), *sizes, shared, correction_bias=correction_bias, **parts)


def feed_forwards(k: Keys, *, listed: bool = False, bias: bool = False, **parts: Any) -> Callable:
    """The feed-forward of each layer. A kind that no layer has is still read: its sizes must be sizes."""
    sparse, plain, routed = sparse_layers(k, listed), dense(k, bias), experts(k, bias=bias, **parts)
    return lambda layer: routed if sparse[layer] else plain


def latent_decoder(k: Keys, mlp: Callable, *, eps: float, tie=False, mixer=None, **parts: Any) -> dict:
    """A model of latent attention around the feed-forward of each layer.

    Args:
        eps, tie: defaults of absent keys. mixer: of each layer; parts: fields of it where all are the same.
    """
    mixer = mixer or same(latent_attention(k, rotary(k, 1e4), **parts))
    stack = decoder(k, mixer, mlp, Norm("rmsnorm", k.float("rms_norm_eps", default=eps)))
    return model(k, stack, tie=tie, left_out=predictors(k))
