"""model_type qwen3_next: gated delta nets, every fourth layer gated attention; mixtures of experts with a shared one.

Source: Yang et al. 2024, arXiv:2412.06464 (the linear attention); the released Qwen3-Next configs.
"""

from __future__ import annotations

from archcalc.config import GatedDeltaNet, MixtureOfExperts, Norm
from archcalc.families.experts import ROUTING, dense, mixed, routed, stepped, weighed
from archcalc.families.rope import rotary
from archcalc.families.shared import (
    FULL,
    LINEAR,
    attention,
    decoder,
    every,
    layer_count,
    layer_types,
    model,
    predictors,
    same,
)  # fmt: skip
from archcalc.keys import Keys

ALIASES = {"num_local_experts": ("num_experts",)}
IGNORED = frozenset({
    "intermediate_size", "mamba_ssm_dtype", "full_attention_interval", "mtp_use_dedicated_embeddings",
}) | ROUTING  # fmt: skip
LINEAR_SIZES = {
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 10, "num_local_experts": 512}
WIDTHS = {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}
RELEASE = {"qwen3_next": LINEAR_SIZES | EXPERTS | WIDTHS | {"num_key_value_heads": 2, "head_dim": 256}}


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    sparse, one = stepped(k), experts(k)
    return gated_hybrid(k, same(one) if all(sparse) else mixed(sparse, one, dense(k)))


def experts(k: Keys) -> MixtureOfExperts:
    """Routed experts and one that every token goes through, behind a gate."""
    routing = weighed(k, norm=True if k.raw["model_type"] == "qwen3_next" else None)
    return routed(k, shared=k.int("shared_expert_intermediate_size"), shared_gate=True, **routing)


def gated_hybrid(k: Keys, mlp) -> dict:
    """A model of gated delta nets and gated attention around the feed-forward of each layer."""
    depth = layer_count(k)
    period = k.int("full_attention_interval", default=4)
    types = layer_types(k, depth, every(period, FULL, LINEAR, depth), (FULL, LINEAR))
    eps = k.float("rms_norm_eps", default=1e-6)
    norm = Norm("rmsnorm", eps, offset=1.0)
    k.must_be("attn_output_gate", True)
    k.must_be("output_gate_type", "swish")
    linear = GatedDeltaNet(*map(k.int, LINEAR_SIZES), Norm("rmsnorm", eps))
    parts = {"rotary": rotary(k, 1e4, 0.25), "qk_norm": norm, "output_gate": "element"}
    full = attention(k, kv_heads=k.int("num_key_value_heads"), head=k.int("head_dim"), **parts)
    stack = decoder(k, lambda layer: full if types[layer] == FULL else linear, mlp, norm)
    return model(k, stack, tie=False, positions=32768, left_out=predictors(k, "mtp_num_hidden_layers"))
