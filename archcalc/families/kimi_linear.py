"""model_type kimi_linear: delta-rule layers, every fourth or so latent attention without positions; experts.

Source: Kimi Team 2025, arXiv:2510.26692.
"""

from __future__ import annotations

from archcalc.config import KimiDelta, Norm
from archcalc.errors import ConfigError
from archcalc.families import latent
from archcalc.families.experts import weighed
from archcalc.families.latent import HEAD, feed_forwards, latent_attention, latent_decoder
from archcalc.families.shared import FULL, LINEAR, layer_count, layer_types
from archcalc.keys import Keys

ALIASES = {
    "max_position_embeddings": ("model_max_length",),
    "num_experts": ("num_local_experts",),
    "num_experts_per_tok": ("num_experts_per_token",),
    "n_shared_experts": ("num_shared_experts",),
    "norm_topk_prob": ("moe_renormalize",),
    "n_group": ("num_expert_group",),
}
# No positions; which experts are chosen.
IGNORED = latent.IGNORED | {
    "rope_theta", "rope_scaling", "rope_parameters", "moe_router_activation_func", "use_grouped_topk",
}  # fmt: skip
STACK = {"vocab_size": 163840, "hidden_size": 2304, "num_hidden_layers": 27, "max_position_embeddings": 1048576}
DENSE = {"num_attention_heads": 32, "intermediate_size": 9216, "first_k_dense_replace": 1}
EXPERTS = {"num_experts": 256, "n_shared_experts": 1, "moe_intermediate_size": 1024, "num_experts_per_tok": 8}
# The flat key of each size of the delta rule, and its name inside linear_attn_config.
DELTA = {
    "linear_num_heads": "num_heads", "linear_head_dim": "head_dim", "linear_conv_kernel_dim": "short_conv_kernel_size",
}  # fmt: skip
SIZES = {"linear_num_heads": 32, "linear_head_dim": 128, "linear_conv_kernel_dim": 4}
RELEASE = {"kimi_linear": HEAD | STACK | DENSE | EXPERTS | SIZES}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    k.must_be("mlp_bias", False)
    k.must_be("attn_res_block_size", None, "attention over the outputs of earlier layers is not understood yet")
    k.must_be("mla_use_nope", True)
    k.must_be("tie_word_embeddings", False, "the Hugging Face class never ties them")
    routing, depth = weighed(k, "sigmoid", scale=2.446, groups=(1, 1)), layer_count(k)
    mlp = feed_forwards(k, listed=True, count="num_experts", **routing)
    nested = k.nested("linear_attn_config") or Keys({})
    found = {name: nested.int(old, default=None) for name, old in DELTA.items()}
    sizes = [found[name] or k.int(name) for name in DELTA]
    for name in DELTA:
        if found[name] and k.int(name, default=found[name]) != found[name]:
            raise ConfigError(f"{name}={k.raw[name]} with linear_attn_config: they disagree; give only one")
    types = _types(k, nested, depth)
    nested.finish()
    norm = Norm("rmsnorm", k.float("rms_norm_eps", default=1e-5))
    view = k.view({"q_lora_rank": None} | k.raw, k.aliases)  # absent, the class has none
    made = {FULL: latent_attention(view), LINEAR: KimiDelta(*sizes, norm)}
    return latent_decoder(k, mlp, eps=1e-5, mixer=lambda layer: made[types[layer]])


def _types(k: Keys, nested: Keys, depth: int) -> tuple[str, ...]:
    """`full_attention` or `linear_attention`, of each layer; linear_attn_config lists them from 1 on."""
    full, linear = nested.ints("full_attn_layers"), nested.ints("kda_layers")
    default = tuple(LINEAR if layer % 4 or not layer else FULL for layer in range(depth))
    if full is not None and linear is not None:
        if sorted(full + linear) != list(range(1, depth + 1)):
            raise ConfigError(
                f"linear_attn_config: full_attn_layers and kda_layers must name each of the {depth} layers once, "
                "counted from 1; fix them or num_hidden_layers"
            )
        default = tuple(FULL if layer + 1 in full else LINEAR for layer in range(depth))
    elif full is not None or linear is not None:
        raise ConfigError("linear_attn_config: has full_attn_layers or kda_layers alone; give both or neither")
    types = layer_types(k, depth, default, (FULL, LINEAR))
    if full is not None and types != default:
        raise ConfigError("layer_types with linear_attn_config: they disagree; give only one")
    return types
