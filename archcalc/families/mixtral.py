"""model_type mixtral: the llama block whose feed-forward is a mixture of experts.

Source: Jiang et al. 2024, arXiv:2401.04088.
"""

from __future__ import annotations

from archcalc.config import MixtureOfExperts
from archcalc.families.llama import rotary_decoder
from archcalc.families.shared import feed_forward, same
from archcalc.keys import Keys

ALIASES = {"num_local_experts": ("num_experts",)}
IGNORED = frozenset({"output_router_logits", "router_aux_loss_coef", "router_jitter_noise"})  # training only


def build(k: Keys) -> dict:
    """ModelConfig fields from Hugging Face keys."""
    expert = feed_forward(k, act="silu", gated=True)
    mlp = MixtureOfExperts(expert, k.int("num_local_experts"), k.int("num_experts_per_tok"))
    return rotary_decoder(k, same(mlp), positions=131072, theta=1e6, eps=1e-5, kv_heads=8)
