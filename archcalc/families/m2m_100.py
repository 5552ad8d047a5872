"""model_type m2m_100 (and NLLB) and nllb-moe: pre-LayerNorm encoder-decoders with computed sinusoids.

In the second each `encoder_sparse_step`-th and `decoder_sparse_step`-th feed-forward is a mixture with two experts a
token.
Source: Fan et al. 2020, arXiv:2010.11125; NLLB team 2022, arXiv:2207.04672; Hugging Face defaults.
"""

from __future__ import annotations

from archcalc.config import MixtureOfExperts, Norm
from archcalc.families import pair
from archcalc.families.bart import sizes
from archcalc.families.shared import feed_forward
from archcalc.keys import Keys

ALIASES, PER_STACK = pair.ALIASES, pair.PER_STACK
IGNORED = pair.IGNORED | {
    "batch_prioritized_routing", "expert_capacity", "moe_eval_capacity_token_fraction", "moe_token_dropout",
    "normalize_router_prob_before_dropping", "output_router_logits", "router_aux_loss_coef", "router_dtype",
    "router_ignore_padding_tokens", "router_z_loss_coef", "second_expert_policy",
}  # fmt: skip
LARGE = sizes(128112, 1024, (12, 12), 16, 4096, 1024)
RELEASE = {"m2m_100": LARGE, "nllb-moe": LARGE | {"num_experts": 128}}
STEPS = ("encoder_sparse_step", "decoder_sparse_step")


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    for name in ("normalize_before", "add_final_layer_norm", "static_position_embeddings"):
        k.must_be(name, True, "the Hugging Face class of this model_type has it otherwise")
    norm = Norm("layernorm", 1e-5)  # fixed: the family has no key for its epsilon
    mixed = k.str("model_type") == "nllb-moe"
    stacks = pair.two_stacks(k, norm, "pre", norm, _experts if mixed else None, act="relu")
    fields = {"max_position_embeddings": k.int("max_position_embeddings"), "position_embedding": "sinusoidal"}
    return pair.pair_model(k, stacks, tie=None, scale_embedding=k.bool("scale_embedding", default=True), **fields)


def _experts(k: Keys, side: int) -> pair.FeedForwards:
    dense, step = feed_forward(k, act="relu", gated=False, bias=True), k.count(STEPS[side], default=4)
    router_bias = k.bool("router_bias", default=False)
    sparse = MixtureOfExperts(dense, k.int("num_experts"), 2, router_bias=router_bias)
    return lambda layer: sparse if step and (layer + 1) % step == 0 else dense
