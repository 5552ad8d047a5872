"""model_type nemotron_h: blocks of one sublayer, a state space, attention without positions, a feed-forward or experts.

`hybrid_override_pattern` names them by letters, `layers_block_type` by words; where both are given they must agree.
Source: NVIDIA 2025, arXiv:2504.03624; the released Nemotron 3 configs.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from archcalc.config import Attention, FeedForward, Mamba2, MixtureOfExperts, Norm
from archcalc.errors import ConfigError, one_of
from archcalc.families.experts import weighed
from archcalc.families.shared import ACTIVATIONS, attention, decoder, feed_forward, model, predictors
from archcalc.keys import Keys

ALIASES = {
    "layer_types": ("layers_block_type",),
    "head_dim": ("attention_head_dim",),
    "hidden_act": ("mlp_hidden_act",),
    "num_local_experts": ("n_routed_experts",),
    "n_groups": ("mamba_n_groups",),
    "conv_kernel": ("mamba_d_conv",),
    "use_conv_bias": ("mamba_conv_bias",),
    "chunk_size": ("mamba_chunk_size",),
    "time_step_min": ("mamba_dt_min",),
}
IGNORED = frozenset({
    # Time steps, precision, kernels, the choice among experts; positions, which this attention does not have.
    "time_step_min", "time_step_max", "time_step_floor", "time_step_limit", "time_step_rank", "mamba_dt_min",
    "mamba_dt_max", "mamba_dt_limit", "mamba_dt_init_floor", "use_mamba_kernels", "sliding_window",
    "mamba_ssm_cache_dtype", "rescale_prenorm_residual", "residual_in_fp32", "num_logits_to_keep", "n_group",
    "topk_group", "norm_topk_prob", "routed_scaling_factor", "output_router_logits", "moe_shared_expert_overlap",
    "norm_eps", "rms_norm_eps", "rope_theta", "rope_scaling", "partial_rotary_factor", "expand", "mamba_expand",
    "mtp_hybrid_override_pattern", "mtp_layers_block_type",
    # Sizes of the sublayers that this pattern may not have.
    "intermediate_size", "moe_intermediate_size", "moe_shared_expert_intermediate_size", "moe_latent_size",
    "n_routed_experts", "num_local_experts", "num_experts_per_tok", "n_shared_experts", "mlp_hidden_act", "mlp_bias",
    "num_attention_heads", "num_key_value_heads", "head_dim", "attention_head_dim", "attention_bias",
    "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel", "use_bias", "use_conv_bias",
    "chunk_size", "mamba_proj_bias", "mamba_hidden_act", "mamba_n_groups", "mamba_d_conv", "mamba_conv_bias",
    "mamba_chunk_size",
})  # fmt: skip
RELEASE = {"nemotron_h": {"head_dim": 128, "ssm_state_size": 128, "mamba_num_heads": 128, "mamba_head_dim": 64,
                          "n_groups": 8, "conv_kernel": 4, "num_key_value_heads": 8}}  # fmt: skip
LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
WORDS = {word: word for word in LETTERS.values()} | {"linear_attention": "mamba", "full_attention": "attention"}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("tie_word_embeddings", False, "the head of this family has a matrix of its own")
    types, norm = sublayers(k), Norm("rmsnorm", k.float("layer_norm_epsilon", default=1e-5))
    mixers = {"mamba": lambda: _mamba(k, norm), "attention": lambda: _attention(k)}
    feeds = {"mlp": lambda: _feed_forward(k, "intermediate_size"), "moe": lambda: _experts(k)}
    made = {kind: (mixers | feeds)[kind]() for kind in dict.fromkeys(types)}
    mixer, mlp = ([made[kind] if kind in part else None for kind in types] for part in (mixers, feeds))
    view = k.view(k.raw | {"num_hidden_layers": len(types)}, k.aliases)
    stack = decoder(view, mixer.__getitem__, mlp.__getitem__, norm)
    return model(k, stack, tie=False, positions=4096, left_out=predictors(k))


def sublayers(k: Keys) -> tuple[str, ...]:
    """What each block is: `mamba`, `attention`, `mlp` or `moe`."""
    pattern, words = k.str("hybrid_override_pattern", default=None), k.strings("layer_types", tuple(WORDS))
    for letter in pattern or "":
        one_of("hybrid_override_pattern", letter, tuple(LETTERS))
    types = tuple(WORDS[word] for word in words or ()) or tuple(LETTERS[letter] for letter in pattern or "")
    if not types:
        raise ConfigError("hybrid_override_pattern: missing, and never guessed; give it or layers_block_type")
    if pattern and types != tuple(LETTERS[letter] for letter in pattern):
        raise ConfigError("hybrid_override_pattern with layers_block_type: they disagree; give only one")
    depth = k.int("num_hidden_layers", default=len(types))
    if depth != len(types):
        raise ConfigError(
            f"num_hidden_layers={depth} with {len(types)} sublayers in the pattern: they disagree; fix one"
        )
    return types


def _mamba(k: Keys, norm: Norm) -> Mamba2:
    k.must_be("mamba_proj_bias", False)
    k.choice("mamba_hidden_act", ACTIVATIONS, default="silu")
    names = ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel")
    biases = k.bool("use_bias", default=False), k.bool("use_conv_bias", default=True)
    least = k.float("time_step_min", default=0.001)  # the class takes this as the limit, whatever time_step_limit says
    parts = {"chunk_size": k.int("chunk_size", default=128), "time_step_limit": (least, inf), "norm_per_group": True}
    return Mamba2(*map(k.int, names), *biases, norm, **parts)


def _attention(k: Keys) -> Attention:
    k.must_be("attention_bias", False, "this attention has none")
    k.must_be("sliding_window", None)
    return attention(k, kv_heads=k.int("num_key_value_heads"), head=k.int("head_dim"))


def _feed_forward(k: Keys, width: str) -> FeedForward:
    return feed_forward(k, act="relu2", gated=False, name=width)


def _experts(k: Keys) -> MixtureOfExperts:
    """Experts without biases, in a narrower space where `moe_latent_size` is given, and a shared one in full width."""
    k.must_be("n_shared_experts", 1, "more than one shared expert is not understood")
    shared = _feed_forward(k, "moe_shared_expert_intermediate_size")
    expert = replace(_feed_forward(k, "moe_intermediate_size"), bias=False)
    latent = k.int("moe_latent_size", default=None)
    counts = k.int("num_local_experts"), k.int("num_experts_per_tok")
    parts = {"latent_size": latent, "latent_bias": shared.bias} | weighed(k, "sigmoid", scale=1.0, groups=(1, 1))
    return MixtureOfExperts(expert, *counts, shared, correction_bias=True, **parts)
